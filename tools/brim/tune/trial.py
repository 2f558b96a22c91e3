"""Ways to run a batch, compared side by side: one server for each, asked in turns, so that a slow drift falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import numpy as np

from brim.errors import InputError
from brim.measure import batch_stats
from brim.measure.callers import Row, ask_all
from brim.measure.measure import Target, ask_target, read_snapshot
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.tune.setting import Setting

ROUNDS, LEAST_ROUNDS = 5, 2
BUDGET_US = 2_500_000
"""Time for one way to run a batch, in all rounds."""
LONGEST_S = 30.0
"""After so long no further round begins, but for the second one."""
MOST_EXECUTIONS = 25
ANSWER_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 10.0
HOPELESS = 1.5
"""A way whose larger batches take so much longer than the best one's in the first round, for each instance that could share
the work, is not asked again."""

Open = Callable[[Setting], AbstractContextManager[Endpoint]]
"""A server with a setting, for as long as the block lasts."""


@dataclass(slots=True)
class Timing:
    """What one way to run a batch took.

    Attributes:
        by_size_us: rows -> mean time of an execution, round by round. A way that was dropped in the first round has that
            one alone, and may lack the larger sizes.
        gains: how much instances gain from one another (``RuntimeTimes.side_by_side``), round by round; empty for one instance.
    """

    by_size_us: dict[int, list[float]] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)

    def time_us(self, rows: int) -> float:
        """Median over the rounds."""
        return statistics.median(self.by_size_us[rows])

    @property
    def side_by_side(self) -> float | None:
        """Median over the rounds; None for one instance."""
        return statistics.median(self.gains) if self.gains else None

    def over(self, other: Timing, rows: int) -> list[float]:
        """Time over the other's, round by round."""
        return [own / its for own, its in zip(self.by_size_us[rows], other.by_size_us[rows], strict=False)]

    def beyond(self, other: Timing, rows: int) -> float:
        """Median of the time beyond the other's, in microseconds."""
        pairs = zip(self.by_size_us[rows], other.by_size_us[rows], strict=False)
        return statistics.median(own - its for own, its in pairs)


def trial_sizes(max_rows: int) -> list[int]:
    """Batch sizes at which ways are compared."""
    return sorted({1, max(1, max_rows // 8), max(1, max_rows // 3), max_rows})


def extra_us(timing: Timing, reference: Timing, max_rows: int) -> tuple[float, ...]:
    """What a batch of 1, 2, ... rows takes beyond the reference, on straight lines between what was measured."""
    sizes = sorted(timing.by_size_us)
    beyond = [timing.beyond(reference, size) for size in sizes]
    return tuple(np.interp(np.arange(1, max_rows + 1), sizes, beyond).tolist())


def compare(
    open_server: Open,
    model: str,
    rows: Sequence[Row],
    settings: Sequence[Setting],
    *,
    max_rows: int,
    time_us: Callable[[int], float],
    rounds: int = ROUNDS,
    budget_us: int = BUDGET_US,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Mapping[Setting, Timing]:
    """Time executions under each setting; all rows of a batch come in one request.

    Args:
        open_server: starts a server; all of them run at once, and one at a time is asked.
        model: name of the model.
        rows: what callers send; they take turns in the batches, the same ones under every setting.
        settings: what is compared; the first one is asked in every round, whatever it takes.
        max_rows: most rows of a batch.
        time_us: about what a batch takes, for the length of the trial.
        rounds: how often each is asked.
        budget_us: about how long each is asked.
        on_progress: told what is happening.

    Raises:
        InputError: the model refuses a row.
        ServerFailed: a server does not start or answer.
    """
    sizes = trial_sizes(max_rows)
    share_us = budget_us / rounds / len(sizes)
    calls = {size: int(min(MOST_EXECUTIONS, max(1, share_us / max(1.0, time_us(size))))) for size in sizes}
    found = {setting: Timing() for setting in settings}
    with ExitStack() as stack:
        targets = {setting: ask_target(stack.enter_context(open_server(setting)), model) for setting in settings}
        for target in targets.values():
            _ask(target, [_batch(rows, 1, index) for index in range(target.instances)], target.instances)
        left = list(settings)
        began = time.monotonic()
        for number in range(rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began > LONGEST_S:
                break
            on_progress(f"comparing {len(left)} ways to run a batch: round {number + 1} of {rounds}")
            for size, count in calls.items():
                for setting in left if number % 2 == 0 else left[::-1]:
                    _time(targets[setting], rows, size, count, found[setting], offset=number)
                if number == 0 and size >= max_rows // 3:
                    left = [settings[0], *_hopeful(left[1:], found, size, least_us=_least_us(left, found, size))]
            for setting in left:
                if setting.instances > 1:
                    _time_together(targets[setting], rows, max_rows, found[setting], offset=number)
    return found


def _least_us(settings: Sequence[Setting], found: Mapping[Setting, Timing], size: int) -> float:
    return min(found[setting].time_us(size) / setting.instances for setting in settings)


def _hopeful(
    settings: Sequence[Setting], found: Mapping[Setting, Timing], size: int, *, least_us: float
) -> list[Setting]:
    return [one for one in settings if found[one].time_us(size) / one.instances <= HOPELESS * least_us]


def _time(target: Target, rows: Sequence[Row], size: int, count: int, timing: Timing, *, offset: int) -> None:
    """Executions of one size, one after the other."""
    before, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    latency_us = _ask(target, [_batch(rows, size, offset + index) for index in range(count)], 1)
    after, _ = batch_stats.settle(lambda: read_snapshot(target), timeout_s=SETTLE_TIMEOUT_S)
    seen = batch_stats.difference(before, after, instances=target.instances).execution_us_by_size
    # A server without statistics by size would leave the callers' own times.
    timing.by_size_us.setdefault(size, []).append(float(seen.get(size, latency_us)))


def _time_together(target: Target, rows: Sequence[Row], size: int, timing: Timing, *, offset: int) -> None:
    """Full batches of all instances at once, beside those of one at a time."""
    instances = target.instances
    full = [_batch(rows, size, offset + index) for index in range(instances)]
    alone_us, together_us = _ask(target, full, 1), _ask(target, full, instances)
    timing.gains.append(min(1.0, max(0.0, (instances * alone_us / together_us - 1) / (instances - 1))))


def _ask(target: Target, requests: Sequence[Row], callers: int) -> float:
    """Mean latency of the answers, in microseconds.

    Raises:
        InputError: one was refused.
    """
    answers = ask_all(target.endpoint.grpc, Protocol.GRPC, target.model, requests, callers, ANSWER_TIMEOUT_S)
    wrong = [answer.error for answer in answers if answer.error is not None]
    if wrong:
        raise InputError(
            f"{target.model} does not answer a batch: {wrong[0].message}", hint="check the service's samples"
        )
    return statistics.fmean(answer.latency_us for answer in answers)


def _batch(rows: Sequence[Row], size: int, offset: int) -> Row:
    """So many rows of the first row's shapes, beginning with another one for every offset."""
    shapes = {name: array.shape for name, array in rows[0].items()}
    alike = [row for row in rows if {name: array.shape for name, array in row.items()} == shapes]
    chosen = [alike[(offset * size + index) % len(alike)] for index in range(size)]
    return {name: np.concatenate([row[name] for row in chosen]) for name in shapes}
