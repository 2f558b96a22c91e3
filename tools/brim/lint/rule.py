"""What a rule is: one function, its code, its reason, one good and one bad example. Tests and docs/lint.md use both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from brim.findings import Severity
from brim.limits import DEFAULT_TRITON_RELEASE
from brim.lint.onnx_file import OnnxFile
from brim.lint.subject import Model

Tree: TypeAlias = Mapping[str, "str | OnnxFile"]
"""Path below a repository's root to content."""

Example: TypeAlias = "str | Tree"
"""The text of one configuration file, or a small repository."""

HEAD = 'name: "m"\nbackend: "python"\nmax_batch_size: 100\n'
"""What most examples start with."""


def warm_up(size: int, name: str = "x", value: str = "data_type: TYPE_FP32 dims: 4 zero_data: true") -> str:
    """The text of a warm-up sample of ``size`` rows that feeds the input ``name``, for examples."""
    return f'model_warmup {{ name: "w{size}" batch_size: {size} inputs {{ key: "{name}" value {{ {value} }} }} }}\n'


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule found.

    ``path`` is a field path of the configuration, from which the place follows. A fault in another file names that
    file, line and column itself. ``severity`` overrides the rule's.
    """

    message: str
    path: str = ""
    hint: str = ""
    severity: Severity | None = None
    file: Path | None = None
    line: int = 0
    column: int = 0


Check: TypeAlias = Callable[[Model], Iterable[Fault]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``source`` says where it comes from: an upstream file, or a measurement."""

    code: str
    severity: Severity
    title: str
    why: str
    source: str
    good: Example
    bad: Example
    release: str
    check: Check


RULES: dict[str, Rule] = {}
"""Every rule by code, in the order of definition."""


def rule(
    code: str,
    severity: Severity,
    title: str,
    *,
    why: str,
    source: str,
    good: Example,
    bad: Example,
    release: str = DEFAULT_TRITON_RELEASE,
) -> Callable[[Check], Check]:
    """Register the decorated function as the rule ``code``. Its examples are judged under ``release``."""

    def register(check: Check) -> Check:
        if code in RULES:
            raise ValueError(f"two rules are called {code}")
        RULES[code] = Rule(code, severity, title, why, source, good, bad, release, check)
        return check

    return register
