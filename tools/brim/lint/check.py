"""Run every rule over every configuration, and turn faults into findings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from brim.config.places import NOWHERE
from brim.findings import Finding
from brim.limits import DEFAULT_TRITON_RELEASE
from brim.lint import (  # noqa: F401  (each registers its rules)
    batcher,
    ensembles,
    instances,
    onnx_agreement,
    queue_policy,
    ragged,
    releases,
    repository,
    structure,
    syntax,
    tensorrt,
    warmup,
)
from brim.lint.discover import discover
from brim.lint.rule import RULES, Fault, Rule
from brim.lint.subject import Model, Workspace


def lint_paths(paths: Iterable[Path | str], *, release: str = DEFAULT_TRITON_RELEASE) -> list[Finding]:
    """Every finding of every configuration in ``paths``, ordered by file, line and column.

    Args:
        paths: .pbtxt files, model folders, model repositories, or folders above them.
        release: the Triton release whose defects count.

    Raises:
        InputError: a path does not exist or holds no configuration, or the release is unknown.
    """
    releases.check_release(release)
    workspace = Workspace(release)
    findings: set[Finding] = set()
    for file, folder in discover([Path(path) for path in paths]):
        model = Model(file, folder, workspace.parsed(file), workspace)
        readable = model.parsed.message is not None
        for rule in RULES.values() if readable else [RULES[code] for code in syntax.CODES]:
            findings.update(_finding(model, rule, fault) for fault in rule.check(model))
    return sorted(findings, key=lambda found: (found.file, found.line, found.column, found.code, found.message))


def _finding(model: Model, rule: Rule, fault: Fault) -> Finding:
    file, line, column = str(fault.file or model.file), fault.line, fault.column
    if fault.file is None:
        place = model.parsed.positions.nearest(fault.path)
        line, column = (1, 1) if place == NOWHERE else place
    return Finding(rule.code, fault.severity or rule.severity, file, line, column, fault.message, fault.hint)
