"""The tuner's benchmark without a server: the simulator in its place, what is judged, and going on in a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.bench.conditions import Conditions
from brim.bench.tuning import ANSWER_FILE, run_check
from brim.bench.tuning_case import Case, Effort, parameters, sweep_settings
from brim.bench.tuning_check import Round, Tuned, TuningCheck, finalists
from brim.bench.tuning_climb import Climbed, climbed_as_tuned, climbed_finely, key_of, level, setting_from
from brim.bench.tuning_store import MEASUREMENTS_FILE, Store
from brim.bench.verdict import ExitCode, Verdict
from brim.cli.commands import bench_tuning
from brim.cli.commands.bench_tuning import shown
from brim.errors import CouldNotTell, InputError
from brim.tune import tuning
from brim.tune.grid import Grid
from brim.tune.predict import Served
from brim.tune.run import Load, Purpose, Run
from brim.tune.setting import DEFAULT, Setting
from brim.tune.tuning import tune
from brim.tune.verify import MOST_SETTINGS, STEP, Arrivals
from tests.conftest import Brim
from tests.unit.tuning_bench import FakeBench, served

QUIET = Conditions("a processor", 2, 0.0, 0.0, 0.0, {})
BUSY = replace(QUIET, other_cores=1.0)
SMALL = Case(
    settings=tuple(Setting(preferred, delay_us, count) for preferred in ((), (20,)) for delay_us in (0, 100_000) for count in (1, 2))
)  # fmt: skip
BRIEF = Effort(rounds=5, finalists=2, tune_repeats=1, run_us=1_000_000, final_run_us=1_000_000)
GOOD = Setting((), 120_000, 2)
FAIR = Setting((80,), 60_000, 2)
POOR = Setting((20,), 0, 3)


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner searches among the settings of the sweep: thousands are what its own tests are for."""
    monkeypatch.setattr(tuning, "make_grid", lambda *_, **__: Grid(SMALL.settings, len(SMALL.settings), {}))


class FakePlace:
    """A machine like that of the case, and what a designed run would tell of it: all of an execution's fixed time in one."""

    def __init__(self, case: Case) -> None:
        self.fake = FakeBench(case.service, served(20_000, 1_000, prepare_us=20_000))
        self.benches = 0

    def bench(self) -> FakeBench:
        self.benches += 1
        return self.fake

    def served(self, _: object) -> Served:
        return served(40_000, 1_000)


def climbed(setting: Setting, goodput_per_s: float, **changes: Any) -> Climbed:
    made = Climbed(setting, goodput_per_s, goodput_per_s, 10.0, 3, False, 0.0)
    return replace(made, **changes)


def tuned(choice: Setting = GOOD, measured: int = 5) -> Tuned:
    others = tuple((Setting((), 0, 1 + number), 700.0, 690.0) for number in range(measured - 1))
    return Tuned(choice, True, ((choice, 800.0, 690.0), *others), 1, 2_000, (), "the best of 5")


def found(
    choice: Sequence[float],
    best: Sequence[float],
    *,
    worst: float = 300.0,
    conditions: Conditions = QUIET,
    run: Tuned | None = None,
    **changes: Any,
) -> TuningCheck:
    rounds = tuple(
        Round((climbed(GOOD, one, **changes), climbed(FAIR, other), climbed(POOR, worst)))
        for one, other in zip(choice, best, strict=True)
    )
    sweep = (climbed(FAIR, 820.0), climbed(DEFAULT, 690.0), climbed(POOR, worst))
    return TuningCheck(run or tuned(), sweep, climbed(GOOD, 800.0), rounds, conditions)


def test_the_sweep_is_exhaustive_over_at_least_sixty_settings() -> None:
    settings = sweep_settings()
    assert len(set(settings)) == len(settings) >= 60
    assert DEFAULT in settings
    assert {setting.instances for setting in settings} == {1, 2, 3}
    assert {len(setting.preferred) for setting in settings} == {0, 1}
    assert len({key_of(setting) for setting in settings}) == len(settings)


def test_settings_matter_in_the_case_that_ships() -> None:
    """By the machine itself: the default is not the best, and the worst is far below it."""
    case, effort = Case(), Effort().tuning(Case().slo_us)
    arrivals, place = Arrivals(case.demand, effort, 0), FakePlace(case)

    def of(setting: Setting) -> float:
        with place.fake.open(setting) as send:
            return climbed_as_tuned(setting, send, arrivals, case.climb_only, effort, start_per_s=600.0).goodput_per_s

    sweep = {setting: of(setting) for setting in case.settings}
    best = max(sweep.values())
    assert min(sweep.values()) < 0.6 * best
    assert sweep[DEFAULT] < 0.95 * best
    assert sum(value >= 0.97 * best for value in sweep.values()) < len(sweep) / 4


def test_the_climb_is_the_tuners_own_with_its_rates_and_arrivals() -> None:
    place = FakePlace(SMALL)
    effort = BRIEF.tuning(SMALL.slo_us)
    arrivals = Arrivals(SMALL.demand, effort, 7)
    out = tune(SMALL.service, SMALL.base, place.served(None), place.fake, effort, seed=7)
    theirs = [run for run in out.default.runs if run.purpose is Purpose.CLIMB and run.repeat == 0]
    before = len(place.fake.loads)
    with place.fake.open(DEFAULT) as send:
        ours = climbed_as_tuned(
            DEFAULT, send, arrivals, SMALL.climb_only, effort, start_per_s=out.default.predicted.capacity_per_s
        )
    sent = place.fake.loads[before:]
    assert {load.purpose for load in sent} == {Purpose.CLIMB}
    assert [load.rate_per_s for load in sent] == [run.rate_per_s for run in theirs]
    assert [load.duration_us for load in sent] == [run.duration_us for run in theirs]
    in_time = [run for run in theirs if run.in_slo_ratio >= SMALL.demand.share]
    assert ours.goodput_per_s == max(run.goodput_per_s for run in in_time)
    assert ours.runs == len(theirs)


@pytest.mark.parametrize("start_per_s", [40.0, 600.0, 3_900.0])
def test_a_climb_ends_between_neighbouring_rates_wherever_it_begins(start_per_s: float) -> None:
    place, effort = FakePlace(SMALL), BRIEF.tuning(SMALL.slo_us)
    arrivals = Arrivals(SMALL.demand, effort, 0)
    shares: dict[float, float] = {}
    with place.fake.open(GOOD) as send:

        def sent(load: Load) -> Run:
            assert load.rate_per_s not in shares, "no rate is sent twice"
            run = send(load)
            shares[load.rate_per_s] = run.in_slo_ratio
            return run

        one = climbed_as_tuned(GOOD, sent, arrivals, SMALL.climb_only, effort, start_per_s=start_per_s)
    good = max(rate for rate, share in shares.items() if share >= 0.99)
    assert min(rate for rate, share in shares.items() if share < 0.99 and rate > good) == pytest.approx(STEP * good)
    assert one.runs == len(shares)
    assert one.goodput_per_s == pytest.approx(good, rel=0.03)


def test_a_climb_that_reaches_the_ceiling_or_never_passes_ends() -> None:
    low = replace(BRIEF, ceiling_per_s=300.0).tuning(SMALL.slo_us)
    impossible = replace(SMALL, slo_us=30_000)
    for case, effort, passes in ((SMALL, low, True), (impossible, BRIEF.tuning(30_000), False)):
        place = FakePlace(case)
        with place.fake.open(GOOD) as send:
            one = climbed_as_tuned(
                GOOD, send, Arrivals(case.demand, effort, 0), case.climb_only, effort, start_per_s=250.0
            )
        assert (one.goodput_per_s > 0) is passes
        assert len(place.fake.loads) == one.runs <= 18
        assert max(load.rate_per_s for load in place.fake.loads) <= effort.ceiling_per_s


def test_the_finer_climb_lies_between_the_rates_around_it_and_has_its_own_arrivals() -> None:
    place, effort = FakePlace(SMALL), BRIEF.final()
    arrivals = Arrivals(SMALL.demand, effort, 0)
    levels = []
    for repeat in (3, 4):
        before = len(place.fake.loads)
        with place.fake.open(GOOD) as send:
            one = climbed_finely(GOOD, send, arrivals, SMALL.demand, effort, repeat=repeat, start_per_s=700.0)
        rates = sorted(load.rate_per_s for load in place.fake.loads[before:])
        assert {load.repeat for load in place.fake.loads[before:]} == {repeat}
        assert min(rates) * 0.99 <= one.level_per_s <= max(rates) * 0.99
        assert one.level_per_s >= one.goodput_per_s * 0.99 > 0
        levels.append(one.level_per_s)
    assert levels[0] != levels[1]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([(100.0, 1.0), (200.0, 0.98)], 0.99 * math.sqrt(100.0 * 200.0)),
        ([(100.0, 0.99), (200.0, 0.5)], 99.0),
        ([(100.0, 0.995), (400.0, 0.2)], 0.99 * 100.0 * 4 ** (0.005 / 0.795)),
        ([(100.0, 1.0), (50.0, 0.2)], 99.0),
        ([(100.0, 0.9)], 0.0),
        ([], 0.0),
    ],
    ids=["half way", "just enough", "far above", "nothing failed above", "nothing passed", "nothing sent"],
)
def test_the_level_is_where_just_enough_are_in_time(shares: list[tuple[float, float]], expected: float) -> None:
    assert level(shares, 0.99) == pytest.approx(expected)


def test_finalists_are_the_best_of_the_sweep_but_the_choice() -> None:
    sweep = [climbed(DEFAULT, 1.0), climbed(GOOD, 9.0), climbed(FAIR, 3.0), climbed(POOR, 5.0, level_per_s=2.0)]
    assert finalists(sweep, GOOD, 2) == [FAIR, POOR]
    assert finalists(sweep, Setting((7,)), 2) == [GOOD, FAIR]


@pytest.mark.parametrize(
    ("check", "code"),
    [
        (found([800.0] * 5, [810.0] * 5), ExitCode.YES),
        (found([700.0] * 5, [810.0] * 5), ExitCode.NO),
        (found([700.0] * 5, [810.0] * 5, conditions=BUSY), ExitCode.COULD_NOT_TELL),
        (found([700.0] * 5, [810.0] * 5, bystander_cores=2.0), ExitCode.COULD_NOT_TELL),
        (found([700.0] * 5, [810.0] * 5, limited_by_generator=True), ExitCode.COULD_NOT_TELL),
        (found([800.0, 800.0, 800.0, 800.0, 700.0], [810.0] * 5), ExitCode.COULD_NOT_TELL),
        (found([800.0] * 4, [810.0] * 4), ExitCode.COULD_NOT_TELL),
        (found([800.0] * 5, [810.0] * 5, worst=790.0), ExitCode.COULD_NOT_TELL),
        (found([800.0] * 5, [810.0] * 5, run=tuned(measured=MOST_SETTINGS + 1)), ExitCode.NO),
    ],
    ids=[
        "met",
        "missed",
        "missed beside others",
        "missed in rounds beside others",
        "missed by the generator",
        "one round is bad",
        "too few rounds",
        "settings do not matter",
        "too many settings measured",
    ],
)
def test_verdicts(check: TuningCheck, code: ExitCode) -> None:
    assert check.comparison.exit_code is code


def test_the_best_of_the_rounds_is_one_setting_and_not_the_luckiest_of_each_round() -> None:
    lucky = Round((climbed(GOOD, 800.0), climbed(FAIR, 700.0), climbed(POOR, 900.0)))
    usual = Round((climbed(GOOD, 800.0), climbed(FAIR, 810.0), climbed(POOR, 300.0)))
    check = replace(found([1.0], [1.0]), rounds=(lucky, *[usual] * 4))
    assert check.best_again == FAIR
    assert check.ratios[0].values == tuple(pytest.approx(800.0 / other) for other in (700.0, *[810.0] * 4))


def test_nothing_in_time_is_no_success() -> None:
    check = found([0.0] * 5, [0.0] * 5)
    assert check.ratios[0].verdict is Verdict.MISSED


def test_every_setting_is_shown_and_the_choice_is_marked() -> None:
    check = found([800.0] * 5, [810.0] * 5)
    text = shown(check)
    rows = text.splitlines()
    marked = [row for row in rows if "the tuner's choice" in row]
    assert len(marked) == 2, "once in the rounds, once among the sweep"
    assert all(" 120 " in row for row in marked)
    assert sum("measured by the tuner" in row for row in rows) == 1
    assert any("0.976" in row for row in rows), "the ratio of one climb each"
    assert any(">= 0.97" in row and "met" in row for row in rows)


def test_what_is_kept_of_the_tuner_and_of_a_climb_comes_back_as_it_was() -> None:
    run = replace(tuned(), noise=("noisy",))
    assert Tuned.from_json(json.loads(json.dumps(run.as_json()))) == run
    one = climbed(POOR, 3.0, mean_batch=None, took_us=5)
    assert Climbed.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert setting_from(GOOD.as_json()) == GOOD


def test_tuned_swept_and_compared_and_going_on_measures_nothing_again(tmp_path: Path) -> None:
    place = FakePlace(SMALL)
    said: list[str] = []

    def run(effort: Effort) -> TuningCheck:
        store = Store(tmp_path, parameters(SMALL, effort, 0))
        return run_check(SMALL, effort, place, store, seed=0, command="a command", on_progress=said.append)

    first = run(BRIEF)
    assert len(first.sweep) == len(SMALL.settings)
    assert len(first.tuned.measured) <= MOST_SETTINGS
    assert first.tuned.choice in [setting for setting, *_ in first.tuned.measured]
    assert len(first.rounds) == 5
    assert all(len(turn.climbed) == 3 for turn in first.rounds)
    assert {one.setting for one in first.rounds[0].climbed} >= {first.tuned.choice}
    # The machine has no noise, so what was chosen is right, and so is the benchmark that says it.
    assert first.one_shot_ratio >= 0.97
    assert first.ratios[0].spread.median >= 0.97
    assert any("min left" in words for words in said)
    document = json.loads(json.dumps(first.comparison.as_json()))
    assert document["benchmark"] == "tuning" and len(document["sweep"]) == len(SMALL.settings)

    opened = len(place.fake.opened)
    again = run(BRIEF)
    assert len(place.fake.opened) == opened and place.benches == 1
    assert (again.tuned, again.sweep, again.rounds) == (first.tuned, first.sweep, first.rounds)

    more = run(replace(BRIEF, rounds=6))
    assert len(place.fake.opened) == opened + 3
    assert more.rounds[:5] == first.rounds and len(more.rounds) == 6


def test_the_order_of_the_settings_turns_every_round(tmp_path: Path) -> None:
    place = FakePlace(SMALL)
    check = run_check(SMALL, BRIEF, place, Store(tmp_path, {}), seed=0)
    order = [one.setting for one in check.rounds[0].climbed]
    last = place.fake.opened[-15:]
    assert [last[3 * number : 3 * number + 3] for number in range(5)] == [
        order if number % 2 == 0 else order[::-1] for number in range(5)
    ]


def test_what_was_measured_before_an_interruption_is_not_measured_again(tmp_path: Path) -> None:
    place = FakePlace(SMALL)

    def stop_after_three(words: str) -> None:
        if words.startswith("3 of "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_check(SMALL, BRIEF, place, Store(tmp_path, {"seed": 0}), seed=0, on_progress=stop_after_three)
    tuner_and_three = list(place.fake.opened)
    with (tmp_path / MEASUREMENTS_FILE).open("a") as file:
        file.write('{"kind": "setting", "key": "cut sh')
    later = FakePlace(SMALL)
    check = run_check(SMALL, BRIEF, later, Store(tmp_path, {"seed": 0}), seed=0)
    assert not set(later.fake.opened[: len(SMALL.settings) - 3]) & set(tuner_and_three[-3:])
    assert check.details["lines_of_earlier_runs"] == 5
    assert len(Store(tmp_path, {"seed": 0}).known) == 2 + len(check.sweep) + 15 + (
        check.tuned.choice not in SMALL.settings
    )


def test_a_folder_of_other_parameters_or_of_something_else_is_refused(tmp_path: Path) -> None:
    made = parameters(SMALL, BRIEF, 0)
    Store(tmp_path, made)
    with pytest.raises(InputError, match="other parameters: seed"):
        Store(tmp_path, parameters(SMALL, BRIEF, 1))
    with pytest.raises(InputError, match="other parameters: effort, slo_us"):
        Store(tmp_path, parameters(replace(SMALL, slo_us=1_000), replace(BRIEF, finalists=1), 0))
    Store(tmp_path, parameters(SMALL, replace(BRIEF, rounds=9), 0))
    (tmp_path / MEASUREMENTS_FILE).write_text('{"kind": "setting", "key": "x", "found": {}}\n')
    with pytest.raises(InputError, match="does not say"):
        Store(tmp_path, made)
    (tmp_path / MEASUREMENTS_FILE).write_text('{"sort": "setting"}\n')
    with pytest.raises(InputError, match=":1: no measurement"):
        Store(tmp_path, made)


def test_a_sweep_in_which_nothing_was_in_time_says_so(tmp_path: Path) -> None:
    impossible = replace(SMALL, slo_us=30_000)
    with pytest.raises(CouldNotTell, match="no setting of the sweep"):
        run_check(impossible, BRIEF, FakePlace(impossible), Store(tmp_path, {}), seed=0)
    assert not (tmp_path / ANSWER_FILE).exists()


@pytest.mark.parametrize(
    ("choice_per_s", "code"), [(800.0, ExitCode.YES), (700.0, ExitCode.NO), (790.0, ExitCode.COULD_NOT_TELL)]
)
def test_the_command(
    brim: Brim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, choice_per_s: float, code: ExitCode
) -> None:
    asked: list[tuple[Any, ...]] = []

    def checked(case: Case, effort: Effort, **others: Any) -> TuningCheck:
        asked.append((case, effort, others))
        others["on_progress"]("a word of progress")
        return found(
            [choice_per_s] + [800.0] * 4 if code is ExitCode.COULD_NOT_TELL else [choice_per_s] * 5, [820.0] * 5
        )

    monkeypatch.setattr(bench_tuning, "check_tuning", checked)
    arguments = ("tuning", "--rounds", "7", "--seed", "3", "--out", str(tmp_path))
    ended, out, err = brim("bench", *arguments, "--json")
    answer = json.loads(out)
    assert ended == code and answer["ok"] is (code is ExitCode.YES)
    assert "a word of progress" in err
    assert answer["data"]["folder"] == str(tmp_path)
    assert answer["data"]["ratios"][0]["ratio"] == "choice / best of the sweep"
    ended, out, _ = brim("bench", *arguments)
    assert ended == code and "the tuner's choice" in out
    case, effort, others = asked[0]
    assert case.settings == sweep_settings()
    assert effort.rounds == 7 and effort.tuning(case.slo_us).settings == MOST_SETTINGS
    assert others["seed"] == 3 and others["folder"] == tmp_path
    assert others["command"] == "brim bench tuning --rounds 7 --seed 3"


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [(("text_embedding",), "a service"), (("--points", "3"), "--points"), (("--seconds", "3"), "--seconds")],
)
def test_an_option_of_another_benchmark_is_refused(brim: Brim, arguments: tuple[str, ...], lost: str) -> None:
    code, _, err = brim("bench", "tuning", *arguments)
    assert code == 2 and f"`brim bench tuning` takes no {lost}" in err
