"""Tuning against a machine that it does not know: what is measured decides, within a budget of five settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from brim.batcher.queue import QueuePolicy
from brim.batcher.settings import Settings
from brim.measure.plan import usable_cores
from brim.tune import tuning as tuning_module
from brim.tune.answer import document, limits, way_out, why
from brim.tune.demand import demand_of
from brim.tune.grid import flagged, stalls
from brim.tune.run import Purpose, Run, figures
from brim.tune.setting import DEFAULT, Setting, setting_of
from brim.tune.tuning import TOO_NOISY, Tuning, tune
from brim.tune.verify import MOST_SETTINGS, Arrivals, Effort
from tests.unit.tuning_bench import SMALL, FakeBench, served, service

BASE = Settings(100)
RUN_US = 500_000


def quickly(*arguments: Any, **options: Any) -> Tuning:
    return tune(*arguments, **{"grid": SMALL, **options})


def effort(**changes: object) -> Effort:
    return replace(Effort(RUN_US, ceiling_per_s=20_000), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wrong_idea() -> tuple[Tuning, FakeBench, list[Run]]:
    """Batches take half as long again as the designed run said."""
    of = service()
    bench = FakeBench(of, served(9_000, 150, jitter=0.1, prepare_us=2_000))
    runs: list[Run] = []
    found = quickly(of, BASE, served(6_000, 100), bench, effort(), seed=1, on_run=runs.append)
    return found, bench, runs


def test_five_settings_at_most_and_the_default_among_them(wrong_idea: tuple[Tuning, FakeBench, list[Run]]) -> None:
    found, bench, runs = wrong_idea
    assert DEFAULT in bench.settings
    assert 2 <= len(bench.settings) <= MOST_SETTINGS
    assert {one.setting for one in found.measurements} == bench.settings
    assert sum(len(one.runs) for one in found.measurements) == len(runs) == len(bench.loads)
    assert found.choice.point is not None
    assert found.choice.point.of in bench.settings


def test_a_wrong_idea_is_corrected(wrong_idea: tuple[Tuning, FakeBench, list[Run]]) -> None:
    found, bench, _ = wrong_idea
    assert found.refits >= 1
    for rows in (10, 50):
        assert found.served.time_us[rows - 1] == pytest.approx(bench.truth.time_us[rows - 1], rel=0.1)
    assert found.served.serialised


def test_settings_take_turns(wrong_idea: tuple[Tuning, FakeBench, list[Run]]) -> None:
    opened = wrong_idea[1].opened
    first = opened[: opened.index(opened[len(set(opened[:4]))])] if len(opened) > 4 else opened
    count = len(dict.fromkeys(opened[:4]))
    assert opened[count : 2 * count] == opened[:count][::-1]
    assert first


def test_the_choice_has_the_most_measured_goodput(wrong_idea: tuple[Tuning, FakeBench, list[Run]]) -> None:
    found = wrong_idea[0]
    most = max(one.measured.goodput_per_s for one in found.measurements)
    assert found.best.measured.goodput_per_s >= most * (1 - tuning_module.MOST_TIE)
    assert found.slo_met
    assert not flagged(found.service, [found.best.setting])[found.best.setting]


def test_the_same_seed_gives_the_same_tuning() -> None:
    of = service()
    documents = []
    for _ in range(2):
        bench = FakeBench(of, served(6_000, 100, jitter=0.1))
        documents.append(document(quickly(of, BASE, served(6_000, 100), bench, effort(settings=2), seed=5)))
    assert documents[0] == documents[1]


def test_every_setting_gets_the_same_arrivals(wrong_idea: tuple[Tuning, FakeBench, list[Run]]) -> None:
    sent: dict[tuple[str, int, float], bytes] = {}
    for load in wrong_idea[1].loads:
        key = load.purpose.value, load.repeat, load.rate_per_s
        assert sent.setdefault(key, load.sent_us.tobytes()) == load.sent_us.tobytes()
    assert len(sent) < len(wrong_idea[1].loads)


def test_neighbouring_rates_have_one_drawing() -> None:
    """So that a higher rate is never the easier one by chance."""
    bursty = demand_of(service(traffic={"rate_per_s": 50, "peak_per_s": 100, "arrival": "bursty"}))
    arrivals = Arrivals(bursty, effort(), 7)
    slower, faster = (arrivals.load(Purpose.CLIMB, 0, rate) for rate in (400.0, 424.0))
    assert len(slower.sent_us) == len(faster.sent_us)
    assert np.abs(faster.sent_us * 1.06 - slower.sent_us).max() <= 2
    assert (arrivals.load(Purpose.CLIMB, 1, 400.0).sent_us != slower.sent_us).any()


def test_the_current_setting_is_measured_too() -> None:
    of = service(batching={"max_queue_delay_ms": 3}, instances=[{"count": 2}])
    bench = FakeBench(of, served(6_000, 100))
    found = quickly(of, BASE, served(6_000, 100), bench, effort(repeats=1, settings=2))
    assert bench.settings == {DEFAULT, setting_of(of)}
    assert sum(one["is_current"] for one in document(found)["measurements"]) == 1


def test_instances_that_compute_side_by_side_are_noticed() -> None:
    of = service(traffic={"rate_per_s": 100})
    bench = FakeBench(of, served(10_000, 300, serialised=False))
    found = quickly(of, BASE, served(10_000, 300), bench, effort())
    assert not found.served.serialised
    assert found.best.setting.instances > 1
    assert found.best.measured.goodput_per_s > 1.3 * found.default.measured.goodput_per_s


def test_an_objective_below_a_lone_batch_is_a_no_with_a_way_out() -> None:
    of = service(slo={"latency_ms": 5})
    machine = served(10_000, 100)
    found = quickly(of, BASE, machine, FakeBench(of, machine), effort(repeats=1))
    data = document(found)
    assert (data["choice"], data["slo_met"]) == (None, False)
    assert data["closest"] == DEFAULT.as_json()
    assert "No setting meets this SLO" in data["why"]
    assert "10.4 ms" in data["way_out"]
    assert all(run.rate_per_s <= 600 for one in found.measurements for run in one.runs)


def test_traffic_above_capacity_says_how_many_replicas_and_which_objective() -> None:
    machine = served(10_000, 100)
    beyond = service(traffic={"rate_per_s": 300, "peak_per_s": 12_000})
    found = quickly(beyond, BASE, machine, FakeBench(beyond, machine), effort(repeats=1, settings=2))
    assert not found.slo_met
    assert found.choice.point is not None
    assert "3 replicas" in way_out(found)
    assert "no SLO would do" in way_out(found), "12,000 a second are more than full batches give"
    tight = service(traffic={"rate_per_s": 300, "peak_per_s": 3_500}, slo={"latency_ms": 30})
    found = quickly(tight, BASE, machine, FakeBench(tight, machine), effort(repeats=1, settings=2))
    assert not found.slo_met
    assert "an SLO of" in way_out(found)
    assert "replicas" in way_out(found)


def test_repeats_that_differ_are_measured_once_more_and_then_named() -> None:
    of = service()
    machine = served(6_000, 100)
    bench = FakeBench(of, machine, slower=(1.0, 3.0, 6.0))
    found = quickly(of, BASE, machine, bench, effort(settings=1))
    assert len(bench.opened) > 2
    assert found.default.measured.spread > TOO_NOISY
    assert "differs" in found.noise[0]
    assert found.noise[0] in document(found)["notes"]


def test_when_time_runs_out_each_setting_has_been_measured_once() -> None:
    of = service()
    bench = FakeBench(of, served(9_000, 150))
    found = quickly(of, BASE, served(6_000, 100), bench, effort(), out_of_time=lambda: True)
    assert found.cut_short
    assert len(bench.opened) == len(bench.settings) >= 2
    assert found.choice.point is not None
    assert any("time ran out" in note for note in document(found)["notes"])


def test_a_service_with_a_bounded_queue_keeps_it_and_never_gets_one_instance() -> None:
    of = service(batching={"default_queue_policy": {"max_queue_size": 400}}, instances=[{"count": 2}])
    base = Settings(100, default_policy=QueuePolicy(max_queue_size=400), instances=2)
    machine = served(6_000, 100)
    bench = FakeBench(of, machine, base=base)
    # A bounded queue is simulated the long way. Of each pair one has a single instance.
    few = tuple(one for one in SMALL.settings if one.delay_us in (0, 10_000) and one.preferred in ((), (50,)))
    assert sum(stalls(base, one) for one in few) == len(few) / 2
    grid = replace(SMALL, settings=few, generated=len(few))
    found = quickly(of, base, machine, bench, effort(repeats=1, settings=3, run_us=300_000), grid=grid)
    assert DEFAULT in bench.settings
    assert found.best.setting != DEFAULT
    assert not any(stalls(base, one) for one in bench.settings - {DEFAULT})


def test_the_sentence_tells_what_a_lone_caller_pays() -> None:
    of = service(batching={"max_queue_delay_ms": 20})
    machine = served(6_000, 100)
    found = quickly(of, BASE, machine, FakeBench(of, machine), effort(repeats=1, settings=2))
    waiting = next(one for one in found.measurements if one.setting == setting_of(of))
    chosen = replace(found.choice, point=None, closest=replace(found.choice.closest, of=waiting.setting))
    chosen = replace(chosen, point=chosen.closest)
    said = why(replace(found, choice=chosen))
    assert "A lone caller waits 20 ms" in said
    assert "lone caller waits" not in why(found)


def test_loads_are_stated_one_by_one(wrong_idea: tuple[Tuning, FakeBench, list[Run]]) -> None:
    found = wrong_idea[0]
    seen = document(found)["behaviour"]
    assert [seen[name]["share"] for name in ("low", "moderate", "high")] == [0.1, 0.5, 0.9]
    assert seen["low"]["mean_batch"] <= seen["moderate"]["mean_batch"] <= seen["high"]["mean_batch"]
    assert seen["lone"]["latency_us"] >= found.served.lone_us
    bounds = document(found)["choice"]
    assert bounds["in_flight"] % 100 == 0
    assert bounds["timeout_us"] >= found.demand.slo_us


def test_what_limits_is_told_from_duty_and_fill() -> None:
    machine = served(6_000, 100)
    found = quickly(service(), BASE, machine, FakeBench(service(), machine), effort(repeats=1, settings=1))
    one = found.default

    def by(duty: float | None, batch: float | None, *, generator: bool = False) -> str:
        seen = replace(
            one.measured, duty_at_capacity=duty, mean_batch_at_capacity=batch, limited_by_generator=generator
        )
        return str(limits(replace(one, measured=seen), 100)["by"])

    assert by(0.99, 97.0) == "model"
    assert by(0.99, 40.0) == "slo"
    assert by(0.5, 40.0) == "requests"
    assert by(0.5, 2.0, generator=True) == "generator"
    assert by(None, None) == "unknown"
    assert document(found)["limits"]["fill"] == one.measured.mean_batch_at_capacity / 100  # type: ignore[operator]


def test_one_repeat_beside_busy_programs_is_no_verdict() -> None:
    """Time ran out before the second one, and what was measured may be the others' doing."""
    of = service()
    machine = served(6_000, 100)
    found = quickly(of, BASE, machine, FakeBench(of, machine), effort(), out_of_time=lambda: True)
    assert found.cut_short and not found.noise

    def beside(cores: float, tuning: Tuning) -> Tuning:
        return replace(
            tuning,
            measurements=tuple(
                replace(one, runs=tuple(replace(run, bystander_cores=cores) for run in one.runs))
                for one in tuning.measurements
            ),
        )

    assert not beside(0.1 * usable_cores(), found).noise
    assert "before time ran out" in beside(0.9 * usable_cores(), found).noise[0]
    whole = quickly(of, BASE, machine, FakeBench(of, machine), effort(settings=1))
    assert not beside(0.9 * usable_cores(), whole).noise, "two repeats that agree say enough"


def test_latencies_that_differ_no_more_than_repeats_do_are_no_reason_to_change(
    wrong_idea: tuple[Tuning, FakeBench, list[Run]],
) -> None:
    one = wrong_idea[0].default

    def tie(*spreads: float) -> float:
        return tuning_module._latency_tie(
            [replace(one, measured=replace(one.measured, latency_spread=spread)) for spread in spreads]
        )

    assert tie(0.0, 0.1, 0.9) == tuning_module.LATENCY_TIE
    assert tie(0.4, 0.5, 0.6) == 0.5
    assert tie(9.0) == tuning_module.MOST_LATENCY_TIE
    halves = [replace(run, repeat=number, latency_us=(1 + number) * 10_000) for number, run in enumerate(one.runs[:2])]
    halves = [replace(run, purpose=Purpose.EXPECTED) for run in halves]
    assert figures(halves, share=0.99, ceiling_per_s=1e6).latency_spread == pytest.approx(2 / 3)


def test_without_a_delay_nobody_waits_for_company() -> None:
    """Whatever the batch takes with other threads: that is no waiting."""
    of = service()
    machine = served(6_000, 100)
    found = quickly(of, BASE, machine, FakeBench(of, machine), effort(repeats=1, settings=1))
    assert document(found)["behaviour"]["lone"]["waits_us"] == 0


def test_an_objective_of_many_late_ones_asks_for_less() -> None:
    assert demand_of(service(slo={"latency_ms": 100, "percentile": 90})).share == 0.9
    assert demand_of(service(slo={"latency_ms": 100, "percentile": 99.9})).share == 0.99


def test_different_kinds_are_measured() -> None:
    found = [
        Setting(delay_us=10_000),
        Setting(delay_us=12_000),
        Setting((90,), 11_000),
        Setting((25,), 11_000),
        Setting(delay_us=30_000),
        Setting(delay_us=10_000, instances=2),
    ]
    machine = served(6_000, 100)
    of = service()
    top = quickly(of, BASE, machine, FakeBench(of, machine), effort(repeats=1, settings=1)).top[0]
    kinds = tuning_module._of_different_kind([DEFAULT], [replace(top, setting=one) for one in found], 9)
    assert kinds == [DEFAULT, found[0], found[3], found[4], found[5]]
