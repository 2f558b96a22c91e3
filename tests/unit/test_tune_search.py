"""The search: as good as trying everything, sound candidates only, and ties that go to what is simpler."""

from __future__ import annotations

import pytest

from brim.batcher.queue import QueuePolicy
from brim.batcher.settings import Settings
from brim.tune.demand import demand_of
from brim.tune.grid import STALL, delays_us, make_grid, sizes, stalls
from brim.tune.predict import Prediction, Predictor
from brim.tune.search import CLEARLY_BELOW, TIE, Candidate, Look, capacity, ranked, search
from brim.tune.setting import DEFAULT, Setting
from tests.unit.tuning_bench import SMALL, served, service

CLOSELY = Look(5.0, 1.01, 10)
HIGH = 1e5


@pytest.mark.parametrize(
    "machine",
    [
        served(2_000, 50),
        served(20_000, 100, prepare_us=4_000),
        served(500, 400, jitter=0.2),
        served(8_000, 100, serialised=False),
    ],
    ids=["light", "fixed cost", "row cost", "side by side"],
)
def test_as_good_as_trying_everything(machine: object) -> None:
    assert hasattr(machine, "lone_us")
    predictor = Predictor(machine, demand_of(service()), Settings(100), seed=1)  # type: ignore[arg-type]
    found = search(predictor, SMALL.settings, ceiling_per_s=HIGH)[0]
    everything = [capacity(predictor, one, CLOSELY, ceiling_per_s=HIGH) for one in SMALL.settings]
    assert max(everything) > 0
    again = capacity(predictor, found.setting, CLOSELY, ceiling_per_s=HIGH)
    assert again >= max(everything) * (1 - TIE - 0.01)


def test_the_same_seed_gives_the_same_order() -> None:
    orders = [
        [
            one.setting
            for one in search(
                Predictor(served(5_000, 80, jitter=0.1), demand_of(service()), Settings(100), seed=3),
                SMALL.settings,
                ceiling_per_s=HIGH,
            )
        ]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]


def test_far_fewer_simulations_than_every_rate_of_every_setting() -> None:
    predictor = Predictor(served(5_000, 80), demand_of(service()), Settings(100), seed=0)
    search(predictor, SMALL.settings, ceiling_per_s=HIGH)
    assert predictor.simulations < 20 * len(SMALL.settings)


def candidate(setting: Setting, capacity_per_s: float, latency_us: int, *, meets: bool = True) -> Candidate:
    seen = Prediction(1.0, 1.0, latency_us, latency_us, latency_us, 1.0)
    return Candidate(setting, capacity_per_s, seen, meets)


def test_ties_go_to_the_latency_then_to_the_simplest() -> None:
    simple, several, waiting = Setting(), Setting(instances=2), Setting(delay_us=5_000)
    equal = [candidate(several, 1_000, 500), candidate(waiting, 1_010, 520), candidate(simple, 990, 505)]
    assert [one.setting for one in ranked(equal)] == [simple, waiting, several]
    faster = [candidate(simple, 990, 900), candidate(several, 1_000, 500)]
    assert ranked(faster)[0].setting == several
    more = [candidate(simple, 900, 100), candidate(several, 1_000, 500)]
    assert ranked(more)[0].setting == several


def test_what_misses_the_objective_comes_last_by_its_latency() -> None:
    good = candidate(Setting(), 10, 50)
    bad = candidate(Setting(instances=2), 1_000, 200, meets=False)
    worse = candidate(Setting(instances=3), 2_000, 300, meets=False)
    assert ranked([worse, bad, good]) == [good, bad, worse]


def test_nothing_is_tried_beyond_the_ceiling() -> None:
    predictor = Predictor(served(2_000, 10), demand_of(service()), Settings(100), seed=0)
    found = search(predictor, SMALL.settings, ceiling_per_s=700)
    assert max(one.capacity_per_s for one in found) <= 700
    assert found[0].setting == DEFAULT, "all stand the ceiling, so the simplest is as good as any"


def test_an_objective_below_a_lone_batch_has_no_capacity() -> None:
    predictor = Predictor(served(20_000, 100), demand_of(service(slo={"latency_ms": 10})), Settings(100), seed=0)
    found = search(predictor, SMALL.settings, ceiling_per_s=HIGH)
    assert {one.capacity_per_s for one in found} == {0.0}
    assert not any(one.meets for one in found)
    assert found[0].setting.delay_us == 0


def test_the_grid_has_thousands_and_nothing_that_the_linter_flags() -> None:
    of = service()
    grid = make_grid(of, Settings(100), lone_us=5_000, full_us=15_000)
    assert grid.generated > 2_000
    assert len(grid.settings) == len(set(grid.settings)) > 1_000
    assert max(len(one.preferred) for one in grid.settings) == 1, "BAT009 and BAT010 speak against several sizes"
    assert set(grid.refused) == {"BAT009", "BAT010"}
    assert {one.instances for one in grid.settings} == {1, 2, 3}
    assert DEFAULT in grid.settings


def test_one_instance_with_a_bounded_queue_is_never_tried() -> None:
    of = service(batching={"default_queue_policy": {"max_queue_size": 400}})
    base = Settings(100, default_policy=QueuePolicy(max_queue_size=400))
    grid = make_grid(of, base, lone_us=5_000, full_us=15_000)
    assert grid.refused[STALL] > 0
    assert {one.instances for one in grid.settings} == {2, 3}
    assert stalls(base, DEFAULT), "without its bound it would be another service"


def test_ladders_keep_their_bounds() -> None:
    for most in (1, 2, 3, 64, 100):
        assert all(1 < size < most for size in sizes(most))
    for lone_us, full_us, slo_us in (
        (500, 900, 50_000),
        (20_000, 60_000, 30_000),
        (50_000, 60_000, 10_000),
        (10**6, 10**7, 10**8),
    ):
        delays = delays_us(lone_us, full_us, slo_us, 20)
        assert delays == sorted(set(delays))
        assert delays[0] == 0
        assert len(delays) >= 2
        assert delays[1] >= 90
        assert delays[-1] <= 1_000_000


def test_the_first_look_drops_only_what_is_clearly_worse() -> None:
    assert CLEARLY_BELOW < 1 - 2 * TIE
