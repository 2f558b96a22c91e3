"""Decisions as lines of JSON, and made again from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from brim.errors import InputError
from brim.router.policy import POLICIES, pick
from brim.router.router import Decision
from brim.router.view import Candidate, Choice, Reason, Replica, Request, Settings

MOST_LINES = 100_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it.

    Attributes:
        decisions: how many were made again.
        differing: numbers of the lines, from 1, whose decision came out otherwise.
    """

    decisions: int
    differing: tuple[int, ...]


class DecisionLog:
    """A file of them. When it is full, it takes the place of the one before, and a new one begins."""

    def __init__(self, path: Path, most_lines: int = MOST_LINES) -> None:
        """Begin a file.

        Raises:
            InputError: it cannot be written.
        """
        self._path, self._most, self._lines = path, most_lines, 0
        self._file = self._open()

    def write(self, decision: Decision, settings: Settings) -> None:
        """One more."""
        if self._lines >= self._most:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file, self._lines = self._open(), 0
        self._file.write(f"{line_of(decision, settings)}\n")
        self._lines += 1

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _open(self) -> TextIO:
        try:
            return self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be written: {error.strerror}", hint="name a file in a folder that exists"
            ) from error


def line_of(decision: Decision, settings: Settings) -> str:
    """One line, with all that ``replay`` needs."""
    record = {
        "number": decision.number,
        "now_us": decision.now_us,
        "policy": decision.policy,
        "settings": _changed(settings, Settings()),
        "request": _changed(decision.request, Request()),
        "candidates": [
            {
                "replica": _changed(one.replica, Replica(one.replica.name)) | {"name": one.replica.name},
                **{key: value for key, value in _changed(one, Candidate(one.replica)).items() if key != "replica"},
            }
            for one in decision.candidates
        ],
        "picked": decision.name,
        "reason": decision.choice.reason,
    }
    return json.dumps(record)


def replay(lines: Iterable[str]) -> Replayed:
    """Make every decision again.

    Raises:
        InputError: a line is no decision.
    """
    count, differing = 0, []
    for place, line in enumerate(lines, start=1):
        try:
            same = _same(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"line {place} is no decision: {type(error).__name__}: {error}",
                hint="expected what `brim picker --decisions FILE` writes",
            ) from error
        count += 1
        if not same:
            differing.append(place)
    return Replayed(count, tuple(differing))


def _same(record: Mapping[str, Any]) -> bool:
    if record["policy"] not in POLICIES:
        raise ValueError(f"policy {record['policy']!r}, expected one of {', '.join(POLICIES)}")
    candidates = [Candidate(**{**one, "replica": Replica(**one["replica"])}) for one in record["candidates"]]
    request = Request(**{**record["request"], "blocks": tuple(record["request"].get("blocks", ()))})
    choice = pick(
        record["policy"],
        candidates,
        request,
        number=record["number"],
        now_us=record["now_us"],
        settings=Settings(**record["settings"]),
    )
    recorded = [one.replica.name for one in candidates].index(record["picked"])
    return choice == Choice(recorded, Reason(record["reason"]))


def _changed(value: Any, usual: Any) -> dict[str, Any]:
    """Fields that are not as usual."""
    plain = asdict(value)
    return {one.name: plain[one.name] for one in fields(value) if getattr(value, one.name) != getattr(usual, one.name)}
