"""``brim dashboards``: Grafana's dashboards, written, checked, or put somewhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say
from brim.dashboards.check import check as lint
from brim.dashboards.files import BOARDS, differing, texts
from brim.dashboards.known import known_series
from brim.errors import InputError
from brim.paths import find_project
from brim.service.load import find_services


def dashboards(
    check: Annotated[
        bool, typer.Option("--check", help="Lint the queries and compare the committed files; exit 1 on a finding.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the committed files.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write them into this folder instead, to be imported by hand.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Grafana's dashboards: is the GPU full, are callers happy, who is refused and why."""
    if check and (write or out):
        raise InputError("--check and --write, --out exclude each other", hint="--check compares, the others write")
    project = find_project()
    findings = lint(BOARDS, known_series(find_services(project.services, [])))
    root, wanted = (Path(), texts((str(out),))) if out else (project.root, texts())
    differences = differing(root, wanted)
    if (write or out) and not findings:
        for place in differences:
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(wanted[place], encoding="utf-8")
    wrote = bool(write or out) and not findings
    ok = not findings and (wrote or not check or not differences)
    if as_json:
        put_answer(
            "dashboards",
            {
                "dashboards": [{"name": board.name, "title": board.title} for board in BOARDS],
                "findings": [finding.as_json() for finding in findings],
                "changed" if wrote else "differences": differences,
            },
            ok=ok,
        )
        return 0 if ok else 1
    for finding in findings:
        put(finding.render())
    if wrote:
        say("\n".join(f"wrote {place}" for place in differences) or "every file was up to date")
    elif check:
        for place in differences:
            say(f"{place} differs from brim.dashboards; `brim dashboards --write` brings it up to date")
    else:
        for board in BOARDS:
            put(f"{board.title}: {board.description}")
    return 0 if ok else 1
