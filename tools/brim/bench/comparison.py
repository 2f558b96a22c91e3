"""The outcome of a benchmark: ratios held against their targets, the figures behind them, and the conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from brim.bench.conditions import Conditions
from brim.bench.verdict import ExitCode, Spread, Target, Verdict, exit_code, judge, spread_of

QUIET_CORES = 0.25
"""With more cores in the hands of others than this, on average, a miss is theirs as likely as ours."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One ratio of all rounds, and whether it meets its target."""

    target: Target
    values: tuple[float, ...]
    spread: Spread
    verdict: Verdict

    def as_json(self) -> dict[str, object]:
        """For the envelope; limits that are not set are left out."""
        limits = {name: getattr(self.target, name) for name in ("least", "most")}
        return {
            "ratio": self.target.ratio,
            **{name: limit for name, limit in limits.items() if abs(limit) != float("inf")},
            **asdict(self.spread),
            "verdict": self.verdict.value,
            "values": list(self.values),
        }


def judged(target: Target, values: Sequence[float], conditions: Conditions) -> Judged:
    """The verdict on a ratio. A miss on a machine that others used meanwhile is none."""
    spread = spread_of(values)
    verdict = judge(target, spread)
    if verdict is Verdict.MISSED and conditions.other_cores > QUIET_CORES:
        verdict = Verdict.UNCLEAR
    return Judged(target, tuple(values), spread, verdict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a benchmark found.

    Attributes:
        name: of the benchmark.
        ratios: each with its verdict.
        figures: what was measured, by name, one value a round; the unit stands in the name.
        conditions: of the run.
        details: further findings that have a shape of their own.
    """

    name: str
    ratios: tuple[Judged, ...]
    figures: Mapping[str, Sequence[float]]
    conditions: Conditions
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """The answer as an exit code."""
        return exit_code(ratio.verdict for ratio in self.ratios)

    def as_json(self) -> dict[str, object]:
        """For the envelope."""
        return {
            "benchmark": self.name,
            "ratios": [ratio.as_json() for ratio in self.ratios],
            "figures": {name: list(values) for name, values in self.figures.items()},
            "conditions": self.conditions.as_json(),
            **self.details,
        }
