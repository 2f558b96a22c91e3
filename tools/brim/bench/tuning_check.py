"""What the tuner's benchmark found: the sweep, the tuner's choice, both measured again in turns, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from brim.bench.comparison import Comparison, Judged, judged
from brim.bench.conditions import Conditions
from brim.bench.tuning_climb import Climbed, setting_from
from brim.bench.verdict import Target, Verdict, spread_of
from brim.tune.setting import Setting
from brim.tune.tuning import Tuning
from brim.tune.verify import MOST_SETTINGS

LEAST_RATIO = 0.97
"""What the choice must reach of the best of the sweep."""
CLEARLY_BELOW = 0.8
"""A sweep whose worst setting reaches more of the best one shows nothing: any choice would do."""
CHOICE_TARGET = Target("choice / best of the sweep", least=LEAST_RATIO)
WORST_TARGET = Target("worst / best of the sweep, one climb each", most=CLEARLY_BELOW)
COUNT_TARGET = Target("settings the tuner measured", most=MOST_SETTINGS)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What is kept of the tuner's run.

    Attributes:
        choice: its setting; where nothing met the objective, the one that came closest.
        meets: whether the objective was met, by its own measurements.
        measured: each setting that it measured, with the goodput that it measured and the one that it had predicted.
        refits: how often it corrected its simulator.
        simulated: settings that it looked at in the simulator.
        noise: which of its repeats differ too much, in its own words.
        why: its own words.
        took_us: of designed run, search and measurements.
    """

    choice: Setting
    meets: bool
    measured: tuple[tuple[Setting, float, float], ...]
    refits: int
    simulated: int
    noise: tuple[str, ...]
    why: str
    took_us: int = 0

    @classmethod
    def of(cls, tuning: Tuning, took_us: int) -> Tuned:
        """What to keep."""
        return cls(
            choice=tuning.best.setting,
            meets=tuning.slo_met,
            measured=tuple(
                (one.setting, one.measured.goodput_per_s, one.predicted_goodput_per_s) for one in tuning.measurements
            ),
            refits=tuning.refits,
            simulated=tuning.simulated,
            noise=tuple(tuning.noise),
            why=tuning.choice.why,
            took_us=took_us,
        )

    def as_json(self) -> dict[str, Any]:
        """As it stands in files."""
        return {
            **asdict(self),
            "choice": self.choice.as_json(),
            "measured": [
                {"setting": setting.as_json(), "goodput_per_s": goodput, "predicted_per_s": predicted}
                for setting, goodput, predicted in self.measured
            ],
            "noise": list(self.noise),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Tuned:
        """The inverse of ``as_json``."""
        measured = tuple(
            (setting_from(one["setting"]), one["goodput_per_s"], one["predicted_per_s"]) for one in document["measured"]
        )
        known = {"choice": setting_from(document["choice"]), "measured": measured, "noise": tuple(document["noise"])}
        return cls(**{**document, **known})


@dataclass(frozen=True, slots=True)
class Round:
    """The choice and the finalists, measured one after the other with the same arrivals."""

    climbed: tuple[Climbed, ...]

    def of(self, setting: Setting) -> Climbed:
        """What was measured of a setting."""
        return next(one for one in self.climbed if one.setting == setting)


def finalists(sweep: Sequence[Climbed], choice: Setting, count: int) -> list[Setting]:
    """The best settings of the sweep but the choice: what it is measured against once more."""
    others = sorted((one for one in sweep if one.setting != choice), key=lambda one: -one.level_per_s)
    return [one.setting for one in others[:count]]


@dataclass(frozen=True)
class TuningCheck:
    """The whole benchmark.

    Attributes:
        tuned: the tuner's run, which knew nothing of the sweep.
        sweep: every setting of the sweep, one climb each.
        choice_in_sweep: the choice, measured as each setting of the sweep was.
        rounds: of the final comparison.
        conditions: of the run.
        details: parameters, command and the like.
    """

    tuned: Tuned
    sweep: tuple[Climbed, ...]
    choice_in_sweep: Climbed
    rounds: tuple[Round, ...]
    conditions: Conditions
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Climbed:
        """The best of the sweep, as one climb each has it."""
        return max(self.sweep, key=lambda one: (one.goodput_per_s, one.level_per_s))

    @property
    def worst(self) -> Climbed:
        """The worst of the sweep."""
        return min(self.sweep, key=lambda one: (one.goodput_per_s, one.level_per_s))

    @property
    def best_again(self) -> Setting:
        """The best of the sweep by the rounds: the finalist with the highest median. Not the best of each round, which would
        be the luckiest of several."""
        others = [one.setting for one in self.rounds[0].climbed if one.setting != self.tuned.choice]
        return max(others, key=lambda one: statistics.median(turn.of(one).level_per_s for turn in self.rounds))

    @property
    def one_shot_ratio(self) -> float:
        """Choice over best by one climb each: too low by what luck adds to the best of many."""
        return _ratio(self.choice_in_sweep.goodput_per_s, self.best.goodput_per_s)

    @property
    def ratios(self) -> tuple[Judged, ...]:
        """Each with its target and verdict."""
        choice, best = self.tuned.choice, self.best_again
        pairs = [(turn.of(choice), turn.of(best)) for turn in self.rounds]
        again = judged(
            CHOICE_TARGET, [_ratio(one.level_per_s, other.level_per_s) for one, other in pairs], self._conditions
        )
        if again.verdict is Verdict.MISSED and any(one.limited_by_generator for pair in pairs for one in pair):
            again = replace(again, verdict=Verdict.UNCLEAR)
        worst = _ratio(self.worst.goodput_per_s, self.best.goodput_per_s)
        count = len(self.tuned.measured)
        return (
            again,
            _single(WORST_TARGET, worst, Verdict.MET if worst <= CLEARLY_BELOW else Verdict.UNCLEAR),
            _single(COUNT_TARGET, count, Verdict.MET if count <= MOST_SETTINGS else Verdict.MISSED),
        )

    @property
    def _conditions(self) -> Conditions:
        """Rounds of earlier runs had conditions of their own, so what others used during all rounds counts as well."""
        others = [one.bystander_cores for turn in self.rounds for one in turn.climbed]
        return replace(self.conditions, other_cores=max(self.conditions.other_cores, statistics.fmean(others)))

    @property
    def comparison(self) -> Comparison:
        """For the envelope and the exit code."""
        settings = [one.setting for one in self.rounds[0].climbed]
        levels = {str(one): [turn.of(one).level_per_s for turn in self.rounds] for one in settings}
        return Comparison(
            "tuning",
            self.ratios,
            {f"goodput a second: {name}": values for name, values in levels.items()},
            self.conditions,
            {
                "one_shot_ratio": self.one_shot_ratio,
                "choice": self.choice_in_sweep.as_json(),
                "best": self.best.as_json(),
                "best_again": self.best_again.as_json(),
                "worst": self.worst.as_json(),
                "sweep": [one.as_json() for one in self.sweep],
                "tuning": self.tuned.as_json(),
                "rounds": [[one.as_json() for one in turn.climbed] for turn in self.rounds],
                "remarks": self.remarks,
                **self.details,
            },
        )

    @property
    def remarks(self) -> list[str]:
        """What to know beside the ratios, one sentence each."""
        said = [
            f"the tuner measured {len(self.tuned.measured)} settings, looked at {self.tuned.simulated} in the simulator, and "
            f"corrected it {self.tuned.refits} times; it chose: {self.tuned.choice}",
            f"by one climb each the choice reaches {self.one_shot_ratio:.3f} of the best of {len(self.sweep)} "
            f"({self.best.setting}); luck makes the best of many look better than it is",
            f"the best of the sweep, measured again: {self.best_again}",
        ]
        if not self.tuned.meets:
            said.append("by the tuner's own measurements the choice does not meet the objective")
        said += self.tuned.noise
        limited = [one.setting for one in self.sweep if one.limited_by_generator]
        if limited:
            said.append(f"the generator may have been the limit of {len(limited)} settings of the sweep")
        bound = sum(one.limited_by_generator for turn in self.rounds for one in turn.climbed)
        if bound:
            said.append(f"the generator may have been the limit in {bound} of the climbs of the final comparison")
        return said


def _single(target: Target, value: float, verdict: Verdict) -> Judged:
    return Judged(target, (value,), spread_of([value]), verdict)


def _ratio(value: float, of: float) -> float:
    """0 where there is nothing to compare with: that is no success."""
    return value / of if of else 0.0
