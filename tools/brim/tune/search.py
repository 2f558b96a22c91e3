"""The search in the simulator, from coarse to fine: a short look at all kinds of candidates, a longer one at the better
ones and what lies near them, the longest at the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brim.tune.predict import Prediction, Predictor
from brim.tune.rungs import climb, rate_of, rung_of
from brim.tune.setting import DEFAULT, Setting

TIE = 0.03
"""Capacities that differ by less count as equal: no measurement on a server tells them apart."""
LATENCY_TIE = 0.1
"""The same for latencies at the expected rate."""
LEAST_RATE_PER_S = 0.01
TRIES = 24
COARSE, NEAR = 4, 1.5
"""A search that is repeated has every fourth delay in its first look, and those within this factor of the better ones in
its second. The first search has every setting in its first look."""
CLEARLY_BELOW = 0.85
"""In the first look a setting is dropped when it cannot stand this part of the best capacity so far."""


@dataclass(frozen=True, slots=True)
class Look:
    """One pass over the candidates.

    Attributes:
        effort: length of its simulations over that of the first pass.
        step: how finely it tells capacities apart.
        keep: how many settings the next pass gets.
    """

    effort: float
    step: float
    keep: int


LOOKS = (Look(1.0, 1.08, 40), Look(2.0, 1.03, 20), Look(5.0, 1.01, 20))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting and what the simulator says of it.

    Attributes:
        setting: which.
        capacity_per_s: highest rate with enough goodput; 0 when there is none.
        expected: what callers see at the expected rate.
        meets: whether the objective is met there.
    """

    setting: Setting
    capacity_per_s: float
    expected: Prediction
    meets: bool


def search(
    predictor: Predictor,
    settings: Sequence[Setting],
    *,
    ceiling_per_s: float,
    looks: Sequence[Look] = LOOKS,
    complete: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Candidate]:
    """The candidates of the last pass, best first.

    Args:
        predictor: the simulator.
        settings: what to try; the default setting always gets through to the end.
        ceiling_per_s: no rate above is tried: what cannot be sent cannot be verified.
        looks: the passes.
        complete: whether the first pass has every setting, and not only some of the delays.
        on_progress: told of each pass.
    """
    left = list(dict.fromkeys([DEFAULT, *(settings if complete else _coarse(settings))]))
    found: list[Candidate] = []
    for number, look in enumerate(looks, start=1):
        on_progress(f"simulating {len(left)} of {len(settings)} settings, pass {number} of {len(looks)}")
        starts = {one.setting: one.capacity_per_s for one in found}
        found = ranked(_look(predictor, left, starts, look, ceiling_per_s))
        kept = [*(one.setting for one in found[: look.keep]), *_best_of_each_count(found)]
        left = list(dict.fromkeys([DEFAULT, *kept, *(_near(kept, settings) if number == 1 and not complete else ())]))
    return found


_Kind = tuple[tuple[int, ...], int, int | None]


def _kind(setting: Setting) -> _Kind:
    """Settings of one kind differ by their delay only."""
    return setting.preferred, setting.instances, setting.threads


def _coarse(settings: Sequence[Setting]) -> list[Setting]:
    """Every ``COARSE``-th delay of each kind."""
    kinds: dict[_Kind, list[Setting]] = {}
    for setting in sorted(settings, key=lambda one: one.delay_us):
        kinds.setdefault(_kind(setting), []).append(setting)
    return [setting for kind in kinds.values() for setting in kind[::COARSE]]


def _near(kept: Sequence[Setting], settings: Sequence[Setting]) -> list[Setting]:
    """Settings that differ from one of ``kept`` by a somewhat shorter or longer delay only."""
    delays: dict[_Kind, list[int]] = {}
    for one in kept:
        delays.setdefault(_kind(one), []).append(one.delay_us)
    return [
        setting
        for setting in settings
        if any(delay_us / NEAR <= setting.delay_us <= delay_us * NEAR for delay_us in delays.get(_kind(setting), ()))
    ]


def _best_of_each_count(found: Sequence[Candidate]) -> list[Setting]:
    """How several instances and their threads share the machine is what the simulator knows least of, so each number of
    them stays in."""
    best: dict[tuple[int, int | None], Setting] = {}
    for candidate in found:
        best.setdefault((candidate.setting.instances, candidate.setting.threads), candidate.setting)
    return list(best.values())


def _look(
    predictor: Predictor, settings: Sequence[Setting], starts: dict[Setting, float], look: Look, ceiling_per_s: float
) -> list[Candidate]:
    best_per_s = 0.0
    found = []
    for setting in settings:
        known = starts.get(setting)
        capacity_per_s = capacity(
            predictor,
            setting,
            look,
            ceiling_per_s=ceiling_per_s,
            start_per_s=known or best_per_s or None,
            least_per_s=0.0 if known or setting == DEFAULT else best_per_s * CLEARLY_BELOW,
        )
        best_per_s = max(best_per_s, capacity_per_s)
        if capacity_per_s >= best_per_s * CLEARLY_BELOW or setting == DEFAULT:
            found.append(judged(predictor, setting, capacity_per_s, effort=look.effort))
    return found


def judged(predictor: Predictor, setting: Setting, capacity_per_s: float, *, effort: float) -> Candidate:
    """A candidate of that capacity, with what callers see of it at the expected rate."""
    demand = predictor.demand
    expected = predictor.at(setting, demand.rate_per_s, effort=effort)
    return Candidate(setting, capacity_per_s, expected, expected.latency_us <= demand.slo_us)


def capacity(
    predictor: Predictor,
    setting: Setting,
    look: Look,
    *,
    ceiling_per_s: float,
    start_per_s: float | None = None,
    least_per_s: float = 0.0,
) -> float:
    """The highest rate at which enough requests are answered in time; 0 when there is none.

    Args:
        predictor: the simulator.
        setting: which.
        look: how closely.
        ceiling_per_s: no rate above is tried.
        start_per_s: where to begin; half of what full batches give when absent.
        least_per_s: a setting that cannot stand this rate has capacity 0, whatever it stands below.
    """
    served, share, step = predictor.served, predictor.demand.share, look.step
    if served.lone_request_us(setting) > predictor.demand.slo_us:
        return 0.0
    full_per_s = served.max_rows * served.parallel(setting) * 1e6 / served.full_batch_us(setting)
    # With preparation beside computing, a batch takes less than its full time of the device.
    highest = rung_of(min(ceiling_per_s, 2 * full_per_s), step)
    lowest = rung_of(max(LEAST_RATE_PER_S, min(least_per_s, ceiling_per_s)), step)

    def passes(rung: int) -> bool:
        return predictor.at(setting, rate_of(rung, step), effort=look.effort).in_slo_ratio >= share

    if least_per_s and not passes(lowest):
        return 0.0
    start = rung_of(start_per_s or min(ceiling_per_s, full_per_s / 2), step)
    rung = climb(passes, start, lowest=min(lowest, highest), highest=highest, tries=TRIES)
    return 0.0 if rung is None else min(rate_of(rung, step), ceiling_per_s)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Best first: those that meet the objective at the expected rate, by capacity; of equal capacities (``TIE``) the one with
    the lower latency there, of equal latencies the simplest. Those that meet it nowhere come by their latency."""
    left = sorted(candidates, key=lambda one: one.setting.complexity)
    order: list[Candidate] = []
    while left:
        fit = [one for one in left if one.meets and one.capacity_per_s > 0]
        if not fit:
            return order + sorted(left, key=lambda one: (one.expected.latency_us, one.setting.complexity))
        most = max(one.capacity_per_s for one in fit)
        tied = [one for one in fit if one.capacity_per_s >= most * (1 - TIE)]
        least_us = min(one.expected.latency_us for one in tied)
        best = next(one for one in tied if one.expected.latency_us <= least_us * (1 + LATENCY_TIE))
        order.append(best)
        left.remove(best)
    return order
