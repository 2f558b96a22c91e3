"""A model in several precisions on ONNX Runtime's CPU provider: rows a second against FP32, beside accuracy and refusals.

Every round times all precisions one after the other at each batch, and who comes first turns, so that a ratio compares
moments that lie close together. A ratio whose interval has 1 inside is unclear, and so is every ratio of a machine that
others used meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from brim.bench.comparison import QUIET_CORES
from brim.bench.conditions import Conditions, Watch
from brim.bench.verdict import ExitCode, Spread, Target, Verdict, judge, spread_of
from brim.limits import BATCH_LIMIT
from brim.runtime.contract import Array
from brim.runtime.session import Device, OnnxSession

NAME = "precision"
BATCHES = (1, 8, 32, BATCH_LIMIT)
BASE = "fp32"
SPEED = {Verdict.MET: "faster", Verdict.MISSED: "slower", Verdict.UNCLEAR: "unclear"}
"""What a ratio to FP32 says. The whole interval has to lie on one side of 1."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph to time.

    Attributes:
        precision: its name.
        graph: the file; None when it could not be made.
        refusals: why it may not be served; it is timed all the same, so that one sees what that costs.
        accuracy: figure -> value.
    """

    precision: str
    graph: Path | None
    refusals: tuple[str, ...]
    accuracy: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: of every precision at every batch.
        least_s: a batch is run again and again for at least so long.
    """

    rounds: int = 9
    least_s: float = 0.05


DEFAULT_EFFORT = Effort()
Feeds = Mapping[int, Mapping[str, Array]]
"""Rows to time with, by batch."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One precision at one batch: rows a second by round, and their ratio to FP32 in the same round."""

    batch: int
    rows_per_s: tuple[float, ...]
    ratio: Spread
    verdict: str

    def as_json(self) -> dict[str, object]:
        """For the envelope."""
        return {
            "batch": self.batch,
            "rows_per_s": list(self.rows_per_s),
            "ratio": asdict(self.ratio),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate and how fast it is; ``speeds`` is empty for one that could not be made, and for FP32 all ratios are 1."""

    candidate: Candidate
    graph_bytes: int
    speeds: tuple[Speed, ...]

    def as_json(self) -> dict[str, object]:
        """For the envelope."""
        return {
            "precision": self.candidate.precision,
            "refusals": list(self.candidate.refusals),
            "accuracy": dict(self.candidate.accuracy),
            "graph_bytes": self.graph_bytes,
            "speeds": [speed.as_json() for speed in self.speeds],
        }


@dataclass(frozen=True, slots=True)
class PrecisionCheck:
    """What the benchmark found.

    Attributes:
        service: whose model it is.
        chosen: the precision that the service serves.
        threads: of ONNX Runtime.
        sizes: of the variable axes of the timed rows.
        timed: FP32 first.
        conditions: of the run.
        command: that found it.
    """

    service: str
    chosen: str
    threads: int
    sizes: Mapping[str, int]
    timed: tuple[Timed, ...]
    conditions: Conditions
    command: str

    @property
    def exit_code(self) -> ExitCode:
        """No when the gates refuse what the service serves; could not tell when a ratio is unclear."""
        if any(one.candidate.refusals for one in self.timed if one.candidate.precision == self.chosen):
            return ExitCode.NO
        words = {speed.verdict for one in self.timed for speed in one.speeds if one.candidate.precision != BASE}
        return ExitCode.COULD_NOT_TELL if SPEED[Verdict.UNCLEAR] in words else ExitCode.YES

    def as_json(self) -> dict[str, object]:
        """``bench.json``."""
        return {
            "benchmark": NAME,
            "service": self.service,
            "chosen": self.chosen,
            "threads": self.threads,
            "sizes": dict(self.sizes),
            "precisions": [one.as_json() for one in self.timed],
            "conditions": self.conditions.as_json(),
            "command": self.command,
        }


def time_precisions(
    candidates: Sequence[Candidate],
    feeds: Feeds,
    *,
    threads: int,
    effort: Effort = DEFAULT_EFFORT,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[Timed, ...], Conditions]:
    """Time every candidate that has a graph.

    Args:
        candidates: FP32 first, with a graph.
        feeds: the same rows for all of them.
        threads: of ONNX Runtime.
        effort: how long to look.
        on_progress: told what is happening.

    Raises:
        ModelFileError: ONNX Runtime does not load a graph.
    """
    watch = Watch()
    sessions = {
        one.precision: OnnxSession(one.graph, Device(None, threads), remedy="run the benchmark again")
        for one in candidates
        if one.graph is not None
    }
    seen: dict[tuple[str, int], list[float]] = {(name, batch): [] for name in sessions for batch in feeds}
    names = list(sessions)
    for session in sessions.values():
        for feed in feeds.values():
            _run(session, feed)
    for number in range(effort.rounds):
        turn = number % len(names)
        for batch, feed in feeds.items():
            for name in names[turn:] + names[:turn]:
                seen[name, batch].append(batch * _per_s(sessions[name], feed, effort.least_s))
        on_progress(f"round {number + 1} of {effort.rounds}")
    conditions = watch.stop()
    timed = []
    for one in candidates:
        speeds = [
            _speed(batch, seen[one.precision, batch], seen[BASE, batch], conditions)
            for batch in feeds
            if one.graph is not None
        ]
        timed.append(Timed(one, one.graph.stat().st_size if one.graph else 0, tuple(speeds)))
    return tuple(timed), conditions


def _speed(batch: int, rates: Sequence[float], base: Sequence[float], conditions: Conditions) -> Speed:
    ratios = [ours / theirs for ours, theirs in zip(rates, base, strict=True)]
    spread = spread_of(ratios)
    quiet = conditions.other_cores <= QUIET_CORES
    verdict = judge(Target("rows a second / fp32", least=1.0), spread) if quiet else Verdict.UNCLEAR
    return Speed(batch, tuple(rates), spread, SPEED[verdict])


def _per_s(session: OnnxSession, feed: Mapping[str, Array], least_s: float) -> float:
    """Runs a second, over at least one run and ``least_s``."""
    began_s, runs = time.perf_counter(), 0
    while True:
        _run(session, feed)
        runs += 1
        elapsed_s = time.perf_counter() - began_s
        if elapsed_s >= least_s:
            return runs / elapsed_s


def _run(session: OnnxSession, feed: Mapping[str, Array]) -> None:
    session.run(list(session.outputs), feed)
