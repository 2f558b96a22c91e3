"""Threads and cutting: what is worth a trial, what a trial decides, and what the search makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim.batcher.settings import Settings
from brim.config.files import write_configs
from brim.errors import InputError, ServerFailed
from brim.runtime.padding import PaddingCost
from brim.runtime.template import MODEL_PY
from brim.service.schema import Service
from brim.tune import trial, weigh
from brim.tune.grid import THREADS, make_grid
from brim.tune.predict import Predictor, RuntimeTimes, Served
from brim.tune.refit import refit
from brim.tune.run import Load, Purpose, Run
from brim.tune.setting import DEFAULT, UNCUT, Setting, padding_block, rounded, with_setting
from brim.tune.threads import AS_IT_IS, Runtimes, Threads
from brim.tune.trial import ROUNDS, Timing, compare, extra_us, trial_sizes
from brim.tune.tuning import Tuning, tune
from brim.tune.verify import Arrivals, Effort
from tests.unit.tuning_bench import SMALL, FakeBench, served, service

ROWS = [{"X": [[0.0]]}]
FITTED = PaddingCost(2_000.4, 123.456, 0.0, 512)
VARIABLE: dict[str, Any] = {"traffic": {"rate_per_s": 300, "peak_per_s": 600, "size": "variable"}}


def timing(factor: float, *, rounds: int = ROUNDS, wobble: float = 0.0, gains: Sequence[float] = ()) -> Timing:
    """Batches of ``factor`` times (1 ms + 10 us a row); every other round ``wobble`` more."""
    return Timing(
        {
            size: [factor * (1_000 + 10 * size) * (1 + wobble * (number % 2)) for number in range(rounds)]
            for size in trial_sizes(100)
        },
        list(gains),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that the adapter runs."""
    of = service()
    write_configs(tmp_path, of)
    version = tmp_path / of.name / "1"
    version.mkdir(exist_ok=True)
    (version / "model.py").write_text(MODEL_PY, encoding="utf-8")
    (version / "model.onnx").write_bytes(b"x" * 1_000)
    return tmp_path / of.name


def weighed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: Mapping[tuple[int | None, PaddingCost | None], Timing],
    *,
    of: Service | None = None,
    cores: int = 2,
    fitted: Callable[[], PaddingCost] = lambda: FITTED,
) -> weigh.Weighed:
    """What is made of trials that give these times; a trial of anything else fails the test."""

    def fake(_: object, model: str, rows: object, settings: Sequence[Setting], **__: object) -> dict[Setting, Timing]:
        return {setting: times[setting.threads, setting.padding] for setting in settings}

    monkeypatch.setattr(weigh, "compare", fake)

    @contextmanager
    def never(_: Setting) -> Iterator[Any]:
        raise AssertionError("no server is needed here")
        yield

    return weigh.weigh(
        of or service(),
        served(1_000, 10),
        never,
        folder,
        ROWS,
        cores=cores,
        fitted=fitted,  # type: ignore[arg-type]
    )


def test_counts_of_threads_are_few_and_within_the_cores() -> None:
    assert Threads(0, 2).counts(DEFAULT) == [1, 2]
    assert Threads(0, 16).counts(DEFAULT) == [1, 8, 16]
    assert Threads(3, 16).counts(DEFAULT) == [1, 3, 8, 16]
    assert Threads(0, 1).counts(DEFAULT) == [1]
    for cores in range(1, 65):
        counts = Threads(0, cores).counts(Setting(instances=3))
        assert len(counts) <= 4
        assert all(1 <= count <= cores for count in counts)


def test_a_service_without_a_count_shares_the_cores_among_its_instances() -> None:
    threads = Threads(0, 4)
    assert [threads.of(Setting(instances=count)) for count in (1, 2, 3, 8)] == [4, 2, 1, 1]
    assert threads.of(Setting(instances=2, threads=3)) == 3
    assert Threads(4, 2).of(DEFAULT) == 4


def test_no_candidate_has_more_threads_than_cores_or_a_count_that_nobody_measured() -> None:
    threads = Threads(0, 4)
    runtimes = Runtimes(threads, (1, 2, 4))
    grid = make_grid(service(), Settings(100), lone_us=5_000, full_us=15_000, runtimes=runtimes)
    seen = {(one.instances, threads.of(one)) for one in grid.settings}
    assert seen == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 1)}
    assert grid.refused[THREADS] > 0
    assert len({(one.preferred, one.delay_us, one.instances, threads.of(one)) for one in grid.settings}) == len(
        grid.settings
    ), "no setting stands there twice under two names"
    only_two = Runtimes(threads, (2,))
    assert {(one.instances, threads.of(one)) for one in _settings(only_two)} == {(1, 2), (2, 2)}
    assert {one.threads for one in _settings(AS_IT_IS)} == {None}


def _settings(runtimes: Runtimes) -> Sequence[Setting]:
    of = service(max_batch_size=4)
    return make_grid(of, Settings(4), lone_us=5_000, full_us=15_000, runtimes=runtimes).settings


def test_threads_are_weighed_beside_what_the_service_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = weighed(folder, monkeypatch, {(1, None): timing(1.5, gains=[0.8, 0.9, 1.0]), (2, None): timing(1.0)})
    assert found.runtimes == Runtimes(Threads(0, 2), (1, 2))
    one, both = Setting(threads=1), Setting()
    assert found.served.times_us(both) == found.served.time_us, "two threads are what it has with one instance"
    assert found.served.times_us(one)[99] == pytest.approx(1.5 * 2_000)
    assert found.served.times_us(Setting(instances=2)) == found.served.times_us(one), "two instances have one each"
    assert found.served.parallel(Setting(instances=2)) == pytest.approx(1.9)
    assert found.about["threads"]["changed"] is False
    assert "instances beside one another gain 90%" in found.about["threads"]["why"]
    assert "traffic.size is fixed" in found.about["padding"]["why"]


@pytest.mark.parametrize(
    ("fitted", "changed"),
    [
        (timing(0.8), True),
        (timing(0.97), False),
        (timing(0.93, wobble=0.1), False),
        (timing(1.3), False),
    ],
    ids=["a fifth less", "within the bound", "not in every round", "worse"],
)
def test_a_cutting_is_changed_only_for_a_gain_beyond_noise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fitted: Timing, changed: bool
) -> None:
    cost = rounded(FITTED)
    times = {
        (None, None): timing(1.0),
        (None, cost): fitted,
        (None, UNCUT): timing(9.0, rounds=1),
        **{(count, padding): timing(1.0) for count in (1, 2) for padding in (None, cost)},
    }
    found = weighed(folder, monkeypatch, times, of=service(**VARIABLE))
    assert found.about["padding"]["changed"] is changed
    assert found.runtimes.padding == (cost if changed else None)
    assert [one["name"] for one in found.about["padding"]["weighed"]] == ["own", "fitted", "none"]
    assert "9.00 of its time" in found.about["padding"]["why"]
    if changed:
        assert found.served.times_us(Setting(padding=cost))[99] == pytest.approx(0.8 * 2_000)
        assert found.served.times_us(DEFAULT) == found.served.time_us, "what is measured for comparison is as it was"
        assert {one.padding for one in _settings(found.runtimes)} == {cost}


def test_what_cannot_be_weighed_is_left_with_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads_only = {(1, None): timing(1.0), (2, None): timing(1.0)}

    def refuse() -> PaddingCost:
        raise InputError("only token ids can be padded", hint="-")

    found = weighed(folder, monkeypatch, threads_only, of=service(**VARIABLE), fitted=refuse)
    assert "only token ids" in found.about["padding"]["why"]
    assert found.runtimes.padding is None

    one_core = weighed(folder, monkeypatch, {}, cores=1)
    assert "one core" in one_core.about["threads"]["why"]
    assert one_core.runtimes.threads is None

    (folder / "1" / "model.py").write_text("# mine", encoding="utf-8")
    own = weighed(folder, monkeypatch, {})
    assert "model.py of its own" in own.about["threads"]["why"]
    assert own.served == served(1_000, 10)


def test_a_model_on_a_gpu_has_no_threads_to_weigh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weigh.ort, "get_available_providers", lambda: [weigh.CUDA_PROVIDER])
    found = weighed(folder, monkeypatch, {})
    assert "GPU" in found.about["threads"]["why"]
    cpu = service(instances=[{"count": 1, "kind": "CPU"}])
    times = {(1, None): timing(1.0), (2, None): timing(1.0)}
    assert weighed(folder, monkeypatch, times, of=cpu).runtimes.measured == (1, 2)


def test_a_trial_that_the_memory_has_no_room_for_is_not_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weigh.psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    found = weighed(folder, monkeypatch, {})
    assert "copies of the model need" in found.about["threads"]["why"]
    assert found.runtimes.threads is None


def test_a_way_that_is_hopeless_is_asked_once_and_the_first_one_always(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Setting, int]] = []
    factor = {Setting(): 3.0, Setting(threads=1): 1.0, Setting(threads=2): 9.0}

    def fake(target: Any, rows: object, size: int, count: int, found: Timing, *, offset: int) -> None:
        asked.append((target.setting, size))
        found.by_size_us.setdefault(size, []).append(factor[target.setting] * size)

    @contextmanager
    def open_server(setting: Setting) -> Iterator[Any]:
        yield SimpleNamespace(setting=setting, instances=1)

    monkeypatch.setattr(trial, "_time", fake)
    monkeypatch.setattr(trial, "ask_target", lambda endpoint, model: endpoint)
    monkeypatch.setattr(trial, "_ask", lambda *_: 1.0)
    monkeypatch.setattr(trial, "_batch", lambda *_: {})
    found = compare(open_server, "m", ROWS, list(factor), max_rows=100, time_us=float)  # type: ignore[arg-type]
    sizes = trial_sizes(100)
    assert [len(found[Setting()].by_size_us[size]) for size in sizes] == [ROUNDS] * 4
    assert [len(found[Setting(threads=1)].by_size_us[size]) for size in sizes] == [ROUNDS] * 4
    hopeless = found[Setting(threads=2)].by_size_us
    assert {size: len(times) for size, times in hopeless.items()} == {1: 1, 12: 1, 33: 1}, "full batches are spared"
    turns = [setting for setting, size in asked if size == 1]
    assert turns[:3] == list(factor)
    assert turns[3:5] == [Setting(threads=1), Setting()], "every other round goes backwards"


def test_what_others_take_beyond_lies_on_lines_between_the_sizes() -> None:
    extra = extra_us(timing(1.5), timing(1.0), 100)
    assert len(extra) == 100
    assert extra[0] == pytest.approx(0.5 * 1_010)
    assert extra[99] == pytest.approx(0.5 * 2_000)
    assert list(extra) == sorted(extra)


def machine(**changes: Any) -> Served:
    """Two threads halve a batch's time; with one thread each, two instances share the cores without loss."""
    made = served(10_000, 300, **changes)
    slower = tuple(made.time_us)
    return replace(
        made,
        threads=Threads(1, 2),
        runtimes=(
            RuntimeTimes(1, None, (0.0,) * 100, 1.0),
            RuntimeTimes(2, None, tuple(-time_us / 2 for time_us in slower)),
        ),
    )


def test_instances_that_get_in_one_anothers_way_are_slower_but_for_a_lone_batch() -> None:
    made = replace(machine(), runtimes=(RuntimeTimes(1, None, (0.0,) * 100, 0.8),))
    several = Setting(instances=2)
    assert not made.machine(several).serialised
    assert made.machine(several).batch_time.time_us(1) == pytest.approx(10_300 * 2 / 1.8, abs=1)
    assert made.machine(several, alone=True).batch_time.time_us(1) == 10_300
    little = replace(made, runtimes=(RuntimeTimes(1, None, (0.0,) * 100, 0.3),))
    assert little.machine(several).serialised
    assert little.machine(several).batch_time.time_us(1) == 10_300


def quickly(of: Service, truth: Served, idea: Served, runtimes: Runtimes) -> tuple[Tuning, FakeBench]:
    bench = FakeBench(of, truth)
    settings = [replace(one, threads=threads) for one in SMALL.settings for threads in runtimes.threads_for(1)]
    grid = replace(SMALL, settings=tuple(one for one in settings if runtimes.allow(one)))
    effort = Effort(500_000, repeats=1, ceiling_per_s=20_000)
    return tune(of, Settings(100), idea, bench, effort, grid=grid, runtimes=runtimes), bench


def test_threads_that_pay_are_chosen_by_what_was_measured_and_written() -> None:
    of = service(runtime={"threads": 1}, traffic={"rate_per_s": 100})
    truth = machine()
    truth = replace(truth, runtimes=(replace(truth.runtimes[0], side_by_side=0.0), truth.runtimes[1]))
    found, bench = quickly(of, truth, machine(), Runtimes(Threads(1, 2), (1, 2)))
    assert len(bench.settings) <= 5
    assert found.best.setting.threads == 2
    assert with_setting(of, found.best.setting).runtime.threads == 2
    assert found.best.measured.goodput_per_s > 1.2 * found.default.measured.goodput_per_s


def test_the_batch_time_is_fitted_through_runs_of_other_threads() -> None:
    of = service(runtime={"threads": 1}, traffic={"rate_per_s": 100})
    idea, truth = machine(), replace(machine(), time_us=tuple(1_000 + time_us for time_us in machine().time_us))
    bench = FakeBench(of, truth)
    arrivals = Arrivals(bench.demand, Effort(500_000, ceiling_per_s=20_000), 0)
    runs: list[Run] = []
    loads: list[Load] = []
    for setting in (Setting(threads=2), DEFAULT):
        with bench.open(setting) as send:
            for rate_per_s in (50.0, 400.0):
                loads.append(arrivals.load(Purpose.EXPECTED, 0, rate_per_s))
                runs.append(send(loads[-1]))
    by_run = dict(zip(map(id, runs), loads, strict=True))
    again = refit(
        idea,
        runs,
        lambda run: by_run[id(run)],
        lambda served: Predictor(served, bench.demand, Settings(100), seed=0),
    )
    assert again.time_us[9] == pytest.approx(truth.time_us[9], rel=0.03)


def test_a_cost_stands_in_a_file_as_it_was_measured() -> None:
    cost = rounded(FITTED)
    assert padding_block(cost) == {"fixed_us": 2_000, "per_token_us": 123.5, "max_tokens": 512}
    assert rounded(cost) == cost
    assert rounded(UNCUT) == UNCUT


def test_a_refused_trial_of_threads_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ServerFailed("no second server starts here", hint="-")

    monkeypatch.setattr(weigh._Work, "compare", fail)
    found = weigh.weigh(
        service(),
        served(1_000, 10),
        lambda _: None,
        folder,
        ROWS,
        cores=2,
        fitted=lambda: FITTED,  # type: ignore[arg-type,return-value]
    )
    assert "no second server" in found.about["threads"]["why"]
