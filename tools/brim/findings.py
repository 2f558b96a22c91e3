"""What a validator says: one finding a fault, all of them at once, each with a stable code and a place."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``error`` makes the answer no; ``warning`` does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: stable ``code`` (``CFG012``), place (1-based line and column, 0 when it has none), text, hint."""

    code: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    hint: str = ""

    def render(self) -> str:
        """``file:line:column: severity CODE message`` and the hint on a line of its own."""
        place = self.file + (f":{self.line}:{self.column}" if self.line else "")
        text = f"{place}: {self.severity.value} {self.code} {self.message}"
        return f"{text}\n    hint: {self.hint}" if self.hint else text

    def as_json(self) -> dict[str, object]:
        """The finding as the JSON object of the command-line envelope."""
        return {**asdict(self), "severity": self.severity.value}


def has_errors(findings: list[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity is Severity.ERROR for finding in findings)
