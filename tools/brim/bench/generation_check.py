"""The simulator of token models next to the engine: errors, continuous against static batching, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from brim.bench.comparison import QUIET_CORES
from brim.bench.conditions import Conditions
from brim.bench.verdict import ExitCode, Verdict, exit_code
from brim.engine.simulated import Simulated

TARGETS = {"ttft_p50": 0.15, "ttft_p99": 0.25, "tpot_p50": 0.15, "tpot_p99": 0.25}
"""Most that the relative error of each may be, at every point."""
LEAST_POINTS = 12
LEAST_RATIO = 2.0
"""Tokens a second of continuous over static batching, on the engine, when every request waits from the beginning."""
SATURATED = "saturated"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one point, predicted or measured, in microseconds."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float

    def errors(self, measured: Figures) -> dict[str, float]:
        """``|self - measured| / measured`` of each."""
        return {name: abs(getattr(self, name) / getattr(measured, name) - 1) for name in TARGETS}


def figures_of(found: Simulated) -> Figures:
    """Of a traffic, simulated or driven, of which every text was completed."""
    shown = found.as_json()
    return Figures(**{name: float(shown[f"{name}_us"]) for name in TARGETS})


@dataclass(frozen=True, slots=True)
class Checked:
    """A point that was measured.

    Attributes:
        key: of everything that decides what it is; the same key needs no second measurement.
        name: in words.
        calls: that were sent.
        rate_per_s: of the open loop; None for a closed one.
        predicted: for the very calls and times that were sent, with step times from before and after the measurement.
        measured: on the engine.
    """

    key: str
    name: str
    calls: int
    rate_per_s: float | None
    predicted: Figures
    measured: Figures

    @property
    def errors(self) -> dict[str, float]:
        """Relative errors of the prediction."""
        return self.predicted.errors(self.measured)

    @property
    def is_off(self) -> bool:
        """Whether one of them is above its target."""
        return any(error > TARGETS[name] for name, error in self.errors.items())

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        figures = {name: Figures(**document[name]) for name in ("predicted", "measured")}
        return cls(**{**document, **figures})


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one traffic under one way of batching."""

    tokens_per_s: float
    ttft_p50_us: float
    ttft_p99_us: float
    e2e_p50_us: float

    @classmethod
    def of(cls, found: Simulated) -> Self:
        """Tokens beyond a text's own length do not count."""
        shown = found.as_json()
        return cls(**{name: float(shown[name]) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Ways:
    """The same calls, batched before every step and in whole requests, on the engine and simulated.

    Attributes:
        key: as of ``Checked``.
        name: ``saturated`` when every request waits from the beginning; else the open loop's rate in words.
        calls: that were sent.
        measured, simulated: ``continuous`` and ``static``.
    """

    key: str
    name: str
    calls: int
    measured: Mapping[str, Pace]
    simulated: Mapping[str, Pace]

    @property
    def ratios(self) -> dict[str, dict[str, float]]:
        """Continuous over static: of the measured and of the simulated paces."""
        return {
            how: {
                name: getattr(of["continuous"], name) / getattr(of["static"], name)
                for name in Pace.__dataclass_fields__
            }
            for how, of in (("measured", self.measured), ("simulated", self.simulated))
        }

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        paces = {
            how: {way: Pace(**document[how][way]) for way in ("continuous", "static")}
            for how in ("measured", "simulated")
        }
        return cls(**{**document, **paces})


@dataclass(frozen=True, slots=True)
class GenerationCheck:
    """The whole answer.

    Attributes:
        points: in the order of the grid, those for which there was no time left out.
        planned: points of the grid.
        ways: continuous against static batching.
        conditions: of the machine.
        effort: how the points were measured.
        command: that asked for it.
        shared: whether others on the machine reach the figures: not where processor time was measured.
    """

    points: Sequence[Checked]
    planned: int
    ways: Sequence[Ways]
    conditions: Conditions
    effort: Mapping[str, Any]
    command: str
    shared: bool = True

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Whether every point is within its targets, and whether batching before every step is as much faster as wanted."""
        points = self._verdict(not any(point.is_off for point in self.points), len(self.points) >= self.planned)
        saturated = [way.ratios["measured"]["tokens_per_s"] for way in self.ways if way.name == SATURATED]
        faster = self._verdict(min(saturated, default=0.0) >= LEAST_RATIO, bool(saturated))
        return {"points": points, "static": faster}

    def _verdict(self, met: bool, complete: bool) -> Verdict:
        noisy = self.shared and self.conditions.other_cores > QUIET_CORES
        if met:
            return Verdict.MET if complete else Verdict.UNCLEAR
        return Verdict.UNCLEAR if noisy or not complete else Verdict.MISSED

    @property
    def exit_code(self) -> ExitCode:
        """The answer as an exit code."""
        return exit_code(self.verdicts.values())

    def as_json(self) -> dict[str, Any]:
        """For the file and the envelope; ratios, not percent."""
        return {
            "benchmark": "generation-simulation",
            "command": self.command,
            "conditions": {**self.conditions.as_json(), **self.effort},
            "targets": {**TARGETS, "tokens_per_s_ratio": LEAST_RATIO},
            "points": [{**point.as_json(), "errors": point.errors} for point in self.points],
            "planned": self.planned,
            "worst": {name: max((point.errors[name] for point in self.points), default=None) for name in TARGETS},
            "static": [{**way.as_json(), "ratios": way.ratios} for way in self.ways],
            "verdicts": {name: verdict.value for name, verdict in self.verdicts.items()},
        }


def remarks(check: GenerationCheck) -> Iterator[str]:
    """What is to be said beside the tables."""
    if len(check.points) < check.planned:
        yield f"{check.planned - len(check.points)} of {check.planned} points were not measured: the time was over"
    for point in check.points:
        if point.is_off:
            off = ", ".join(f"{name} {error:.0%}" for name, error in point.errors.items() if error > TARGETS[name])
            yield f"{point.name}: off by {off}"
    yield (
        f"the target of {LEAST_RATIO:g} times the tokens a second is for the requests that all wait from the beginning; at a rate "
        "that one way stands and the other does not, the ratio of waiting times says more"
    )
