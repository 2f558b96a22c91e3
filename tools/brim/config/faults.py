"""What can be wrong with the text of a configuration: a code for each kind of fault, and the faults of one text."""

from __future__ import annotations

from brim.config.places import Place
from brim.findings import Finding, Severity

NOT_UTF8 = "CFG001"
BYTE_ORDER_MARK = "CFG002"
LOOKALIKE = "CFG003"
WRONG_COMMENT = "CFG004"
COMMA = "CFG005"
NO_FIELD_NAME = "CFG006"
UNKNOWN_FIELD = "CFG007"
QUOTED_ENUM = "CFG008"
ENUM_NAME = "CFG009"
WRONG_VALUE = "CFG010"
GIVEN_TWICE = "CFG011"
ONEOF_TWICE = "CFG012"
ENUM_NUMBER = "CFG013"
OCTAL = "CFG014"
DUPLICATE_KEY = "CFG015"
EMPTY = "CFG016"
UNBALANCED = "CFG017"
TOO_DEEP = "CFG018"
BAD_STRING = "CFG019"
NO_COLON = "CFG020"
UNEXPECTED = "CFG021"


class EnoughFaults(Exception):
    """The limit on faults is reached."""


class Faults:
    """The faults of one text, in the order in which they were found."""

    def __init__(self, file: str, most: int) -> None:
        """Collect up to ``most`` faults, each under the name ``file``."""
        self.findings: list[Finding] = []
        self._file = file
        self._most = most

    def add(self, code: str, place: Place, message: str, hint: str = "", severity: Severity = Severity.ERROR) -> None:
        """Note one fault.

        Raises:
            EnoughFaults: it is noted, and is the last that is wanted.
        """
        self.findings.append(Finding(code, severity, self._file, *place, message, hint))
        if len(self.findings) >= self._most:
            raise EnoughFaults
