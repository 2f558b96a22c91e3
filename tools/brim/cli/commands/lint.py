"""``brim lint``: every fault of configurations, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say
from brim.findings import Severity, has_errors
from brim.limits import DEFAULT_TRITON_RELEASE
from brim.lint import lint_paths


def lint(
    paths: Annotated[list[Path], typer.Argument(help="config.pbtxt files, model folders or whole repositories.")],
    triton: Annotated[str, typer.Option(help="Triton release whose defects to look for.")] = DEFAULT_TRITON_RELEASE,
    as_json: JsonFlag = False,
) -> int:
    """Check configurations: syntax, contradictions, files, and defects of a Triton release."""
    findings = lint_paths(paths, release=triton)
    failed = has_errors(findings)
    if as_json:
        put_answer("lint", {"findings": [finding.as_json() for finding in findings]}, ok=not failed)
    else:
        for finding in findings:
            put(finding.render())
        errors = sum(finding.severity is Severity.ERROR for finding in findings)
        say(f"{errors} errors, {len(findings) - errors} warnings")
    return 1 if failed else 0
