"""Predicted next to measured: errors, what of them is noise, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from brim.bench.conditions import Conditions
from brim.bench.verdict import ExitCode, Verdict, exit_code

TARGETS = {"p50": 0.10, "p99": 0.20, "mean_batch": 0.10}
"""Most that the median of the relative errors may be."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one point, predicted or measured."""

    p50_us: float
    p99_us: float
    mean_batch: float

    def get(self, name: str) -> float:
        """One of them, by its name in ``TARGETS``."""
        return {"p50": self.p50_us, "p99": self.p99_us, "mean_batch": self.mean_batch}[name]

    def errors(self, measured: Figures) -> dict[str, float]:
        """``|self - measured| / measured`` of each."""
        return {name: abs(self.get(name) / measured.get(name) - 1) for name in TARGETS}


@dataclass(frozen=True, slots=True)
class Checked:
    """A point of the grid.

    Attributes:
        key: of everything that decides what it is; the same key needs no second measurement.
        curve: name of the batch time.
        setting: of the batcher, in words.
        load: requests a second offered.
        load_ratio: the same over the predicted capacity.
        predicted: by the simulator, for the very arrivals that were sent.
        measured: on the real server.
        requests: sent.
        arrivals_seed: for ``brim.measure.arrivals.offsets``.
        limits: in what ways the generator set the measured figures; empty when it did not.
        again: measured once more with the same arrivals, where that was done.
    """

    key: str
    curve: str
    setting: str
    load: float
    load_ratio: float
    predicted: Figures
    measured: Figures
    requests: int
    arrivals_seed: int
    limits: tuple[str, ...] = ()
    again: Figures | None = None

    @property
    def errors(self) -> dict[str, float]:
        """Relative errors of the prediction."""
        return self.predicted.errors(self.measured)

    @property
    def scatter(self) -> dict[str, float] | None:
        """Relative difference of the two measurements; None with one."""
        return None if self.again is None else self.again.errors(self.measured)

    @property
    def severity(self) -> float:
        """The largest of the errors, each over its target."""
        return max(error / TARGETS[name] for name, error in self.errors.items())

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        fields = dict(document)
        again = fields.pop("again")
        return cls(
            **{**fields, "limits": tuple(fields["limits"])}
            | {name: Figures(**fields[name]) for name in ("predicted", "measured")},
            again=None if again is None else Figures(**again),
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """The errors of all points in one figure.

    Attributes:
        figure: ``p50``, ``p99`` or ``mean_batch``.
        median: of the points that could be measured; None without one.
        worst: the largest.
        target: most that the median may be.
        noise: median difference between two measurements of one point; None where none was repeated.
        verdict: see ``judge``.
    """

    figure: str
    median: float | None
    worst: float | None
    target: float
    noise: float | None
    verdict: Verdict


def judge(figure: str, points: Sequence[Checked]) -> Judged:
    """Whether the median error meets its target.

    A point whose generator was the limit could have any error: the target is met (missed) only if it is, whatever those
    points would have given. Where two measurements of one point differ by more than the target, as a median, a missed
    target may be noise. Noise does not make a median of errors small, so a target that is met is met.
    """
    target = TARGETS[figure]
    told = [point for point in points if not point.limits]
    errors = [point.errors[figure] for point in told]
    unknown = len(points) - len(told)
    scatter = [point.scatter[figure] for point in told if point.scatter is not None]
    noise = statistics.median(scatter) if scatter else None
    if errors and statistics.median([*errors, *[float("inf")] * unknown]) <= target:
        verdict = Verdict.MET
    elif errors and statistics.median([*errors, *[0.0] * unknown]) > target and not (noise and noise > target):
        verdict = Verdict.MISSED
    else:
        verdict = Verdict.UNCLEAR
    return Judged(
        figure,
        statistics.median(errors) if errors else None,
        max(errors) if errors else None,
        target,
        noise,
        verdict,
    )


@dataclass(frozen=True, slots=True)
class SimulationCheck:
    """The whole answer.

    Attributes:
        points: in the order of the grid.
        calibrations: of each curve, by its name.
        conditions: of the machine.
        effort: how the points were measured.
        command: that asked for it.
    """

    points: tuple[Checked, ...]
    calibrations: Mapping[str, Mapping[str, Any]]
    conditions: Conditions
    effort: Mapping[str, Any]
    command: str

    @property
    def judged(self) -> list[Judged]:
        """Each figure."""
        return [judge(figure, self.points) for figure in TARGETS]

    @property
    def exit_code(self) -> ExitCode:
        """The answer as an exit code."""
        return exit_code(one.verdict for one in self.judged)

    def as_json(self) -> dict[str, Any]:
        """For ``simulation-check.json`` and the envelope; ratios, not percent."""
        judged = self.judged
        return {
            "benchmark": "simulation",
            "command": self.command,
            "conditions": {
                **self.conditions.as_json(),
                "server": "tritonserver, python backend, model of known batch time, one lock for all instances",
                "arrivals": "Poisson, open loop over HTTP, latency from the schedule; the simulator replays the same arrivals",
                **self.effort,
            },
            "points": [_reported(point) for point in self.points],
            "median_error": {one.figure: one.median for one in judged},
            "judged": [asdict(one) for one in judged],
            "generator_bound": sum(bool(point.limits) for point in self.points),
            "calibrations": {name: dict(found) for name, found in self.calibrations.items()},
        }


def _reported(point: Checked) -> dict[str, Any]:
    """As a report reads it: what the generator set is no figure of the server, and stands apart."""
    document = point.as_json() | {"errors": point.errors, "scatter": point.scatter}
    if point.limits:
        document["measured_at_the_limit"] = document["measured"]
        document["measured"] = dict.fromkeys(document["measured"])
    return document


def worst(points: Sequence[Checked], count: int) -> list[Checked]:
    """The points with the largest errors over their targets, those left out whose generator was the limit."""
    told = [point for point in points if not point.limits]
    return sorted(told, key=lambda point: point.severity, reverse=True)[:count]


def remarks(points: Sequence[Checked]) -> Iterator[str]:
    """What is to be said of single points: a generator at its limit, and the worst errors beside their noise."""
    for point in points:
        name = f"{point.curve}; {point.setting}; {point.load:.0f}/s"
        if point.limits:
            yield f"{name}: not counted: the generator was the limit: {'; '.join(point.limits)}"
        elif point.again is not None:
            scatter = point.again.errors(point.measured)
            parts = [
                f"{figure} {error:.0%} off, {scatter[figure]:.0%} between two measurements"
                for figure, error in point.errors.items()
            ]
            yield f"{name}: {'; '.join(parts)}"
