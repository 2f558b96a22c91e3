"""Write docs/lint.md, the page of every rule: ``python -m brim.lint.page``."""

from __future__ import annotations

import brim.lint.check  # noqa: F401  (registers every rule)
from brim.findings import Severity
from brim.lint.example import show_example
from brim.lint.releases import DEFECTS, RELEASES
from brim.lint.rule import RULES, Rule
from brim.paths import find_project

GROUPS = {
    "CFG0": "Text and structure",
    "BAT": "Dynamic batcher",
    "QUE": "Queue policy and priorities",
    "INS": "Instances",
    "RAG": "Ragged batches",
    "ENS": "Ensembles",
    "ONX": "ONNX file",
    "TRT": "TensorRT profiles",
    "WRM": "Warm-up",
    "REP": "Model repository",
    "TRI": "Defects of Triton, by release",
}
"""Start of a code to the heading of its group, in the order of the page."""

_INTRODUCTION = """\
# What `brim lint` checks

`brim lint PATH...` reads configuration files, model folders or whole model repositories, and reports every fault at once:
place, code, what is wrong, and a way out. Errors make the answer no (exit code 1); warnings do not.
`--triton RELEASE` sets the release whose defects count; without it {default} is assumed.

This page is generated from the rules (`python -m brim.lint.page`). Each rule's examples are tests: the rule is
silent on the good one, and on the bad one it fires and nothing else does.

TensorRT engines cannot be read without a GPU, so their optimisation profiles come from a file `profiles.json` in the
version folder or beside the configuration: `{{"INPUT": {{"min": [1, 3], "opt": [50, 3], "max": [100, 3]}}}}`, or several such
profiles by name.
"""


def page() -> str:
    """The whole page as Markdown."""
    default = next(iter(RELEASES))
    parts = [_INTRODUCTION.format(default=default), _summary()]
    for start, heading in GROUPS.items():
        parts.append(f"## {heading}\n")
        parts += [_rule(RULES[code]) for code in sorted(RULES) if code.startswith(start)]
        if start == "TRI":
            parts.append(_releases())
    return "\n".join(parts)


def _summary() -> str:
    rows = [f"| [{rule.code}](#{rule.code.lower()}) | {rule.severity.value} | {rule.title} |" for rule in _ordered()]
    return "\n".join(["| Code | Severity | Rule |", "|---|---|---|", *rows, ""])


def _ordered() -> list[Rule]:
    return [RULES[code] for start in GROUPS for code in sorted(RULES) if code.startswith(start)]


def _rule(rule: Rule) -> str:
    severity = "Error" if rule.severity is Severity.ERROR else "Warning"
    return (
        f"### {rule.code}\n\n**{rule.title}** {severity}.\n\n{rule.why}\n\nSource: {rule.source.rstrip('.')}.\n\n"
        f"Good:\n\n{show_example(rule.good)}\nBad:\n\n{show_example(rule.bad)}"
    )


def _releases() -> str:
    codes = list(DEFECTS)
    lines = ["### Releases\n", f"| Release | {' | '.join(codes)} |", "|---|" + "---|" * len(codes)]
    for release in RELEASES:
        marks = " | ".join("yes" if DEFECTS[code].has(release) else "no" for code in codes)
        lines.append(f"| {release} | {marks} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    target = find_project().root / "docs" / "lint.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(page(), encoding="utf-8")
