"""What a setting stands: the tuner's own climb, and a finer one for settings that lie close to one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brim.tune.demand import Demand
from brim.tune.run import Load, Purpose, Run, figures
from brim.tune.rungs import climb, rate_of, rung_of
from brim.tune.setting import Setting
from brim.tune.verify import STEP, Arrivals, Effort, Send, measure_setting

FINE_STEP = 1.03
"""Rates of the finer climb are so far apart; between them the share in time is interpolated."""
FINE_TRIES = 6
CLIMBS = 3
"""Climbs of the tuner's length at most, before what they have shown counts."""
WIDE = 4.0
"""The finer climb stays within this factor of where it begins."""


@dataclass(frozen=True, slots=True)
class Climbed:
    """What one climb says of a setting.

    Attributes:
        setting: which.
        goodput_per_s: the highest goodput of the rates in which enough requests were in time, as the tuner counts it; 0
            where there was none.
        level_per_s: goodput at the rate at which just enough are in time, interpolated (``level``).
        mean_batch: rows an execution at the best rate; None without one.
        runs: how many.
        limited_by_generator: the generator, and not the server, may have ended the climb.
        bystander_cores: that other programs used, on average.
        took_us: of the whole measurement.
    """

    setting: Setting
    goodput_per_s: float
    level_per_s: float
    mean_batch: float | None
    runs: int
    limited_by_generator: bool
    bystander_cores: float
    took_us: int = 0

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            "setting": self.setting.as_json(),
            "goodput_per_s": self.goodput_per_s,
            "level_per_s": self.level_per_s,
            "mean_batch": self.mean_batch,
            "runs": self.runs,
            "limited_by_generator": self.limited_by_generator,
            "bystander_cores": self.bystander_cores,
            "took_us": self.took_us,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Climbed:
        """The inverse of ``as_json``."""
        return cls(**{**document, "setting": setting_from(document["setting"])})


def setting_from(document: dict[str, Any]) -> Setting:
    """The inverse of ``Setting.as_json``."""
    return Setting(tuple(document["preferred"]), document["max_queue_delay_us"], document["instances"])


def key_of(setting: Setting) -> str:
    """Names a setting in files."""
    return f"{'-'.join(map(str, setting.preferred)) or 'none'}/{setting.delay_us}/{setting.instances}"


def climbed_as_tuned(
    setting: Setting, send: Send, arrivals: Arrivals, climb_only: Demand, effort: Effort, *, start_per_s: float
) -> Climbed:
    """The tuner's first measurement of a setting, with the same rates and the same arrivals; where its few tries leave open
    which of two neighbouring rates is the last one in time, it goes on.

    Args:
        setting: which.
        send: a server under this setting.
        arrivals: the tuner's.
        climb_only: its demand without a rate that could be sent.
        effort: the tuner's.
        start_per_s: the capacity that is expected; the climb begins there.
    """
    known: dict[float, Run] = {}

    def sent(load: Load) -> Run:
        if load.rate_per_s not in known:
            known[load.rate_per_s] = send(load)
        return known[load.rate_per_s]

    begin_per_s: float | None = min(start_per_s, effort.ceiling_per_s)
    for _ in range(CLIMBS):
        if begin_per_s is None:
            break
        measure_setting(sent, arrivals, climb_only, effort, repeat=0, is_first=True, start_per_s=begin_per_s)
        begin_per_s = _unresolved(list(known.values()), climb_only.share, effort.ceiling_per_s)
    return _climbed(setting, list(known.values()), climb_only.share, effort)


def _unresolved(runs: Sequence[Run], share: float, ceiling_per_s: float) -> float | None:
    """Where to go on: there is a rate between the highest that passes and the next that does not, or above or below all.
    None when there is nothing left to try."""
    rungs = {rung_of(run.rate_per_s, STEP): run.in_slo_ratio >= share for run in runs}
    good = max((rung for rung, passed in rungs.items() if passed), default=None)
    bad = min((rung for rung, passed in rungs.items() if not passed and (good is None or rung > good)), default=None)
    if good is None:
        return rate_of(min(rungs) - 1, STEP)
    following = good + 1 if bad is None else (good + bad) // 2
    return rate_of(following, STEP) if following > good and rate_of(following, STEP) <= ceiling_per_s else None


def climbed_finely(
    setting: Setting,
    send: Send,
    arrivals: Arrivals,
    demand: Demand,
    effort: Effort,
    *,
    repeat: int,
    start_per_s: float,
) -> Climbed:
    """The same with rates ``FINE_STEP`` apart and arrivals of this repeat; ``level_per_s`` is what it is for."""
    runs: list[Run] = []

    def passes(rung: int) -> bool:
        runs.append(send(arrivals.load(Purpose.CLIMB, repeat, rate_of(rung, FINE_STEP))))
        return runs[-1].in_slo_ratio >= demand.share

    highest = rung_of(min(start_per_s * WIDE, effort.ceiling_per_s), FINE_STEP)
    start = min(rung_of(start_per_s, FINE_STEP), highest)
    climb(passes, start, lowest=rung_of(start_per_s / WIDE, FINE_STEP), highest=highest, tries=FINE_TRIES)
    return _climbed(setting, runs, demand.share, effort)


def _climbed(setting: Setting, runs: Sequence[Run], share: float, effort: Effort) -> Climbed:
    found = figures(runs, share=share, ceiling_per_s=effort.ceiling_per_s)
    at_best = [run.mean_batch for run in runs if run.rate_per_s == found.capacity_per_s]
    others = [run.bystander_cores or 0.0 for run in runs]
    return Climbed(
        setting=setting,
        goodput_per_s=found.goodput_per_s,
        level_per_s=level([(run.rate_per_s, run.in_slo_ratio) for run in runs], share),
        mean_batch=at_best[0] if at_best else None,
        runs=len(runs),
        limited_by_generator=found.limited_by_generator,
        bystander_cores=sum(others) / len(others),
    )


def level(shares_in_time: Sequence[tuple[float, float]], share: float) -> float:
    """Goodput at the rate at which just ``share`` of the requests are in time: between the highest rate that passes and
    the next one that does not, the share in time is taken to fall evenly over the logarithm of the rate.

    Args:
        shares_in_time: rate a second and share in time of every run.
        share: that is asked for.

    Returns:
        Answers in time a second; 0 when no rate passes, and that of the highest one when none above it fails.
    """
    good = max((pair for pair in shares_in_time if pair[1] >= share), default=None)
    if good is None:
        return 0.0
    bad = min((pair for pair in shares_in_time if pair[1] < share and pair[0] > good[0]), default=None)
    if bad is None:
        return share * good[0]
    part = (good[1] - share) / (good[1] - bad[1])
    return share * good[0] * math.exp(part * math.log(bad[0] / good[0]))
