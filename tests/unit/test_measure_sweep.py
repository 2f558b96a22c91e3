"""Configurations of a sweep, and how it goes on: with a server and a measurement that are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.cli.commands.sweep import _plans, _preferred, _whole
from brim.config.textformat import parse, write
from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.measure import sweep_run as sweep_module
from brim.measure.asked import read_asked
from brim.measure.known_time import KnownTime, write_known_time
from brim.measure.launcher import Launcher, Origin
from brim.measure.measure import Target
from brim.measure.plan import Distribution, Mode, Plan
from brim.measure.point import Point, append_point, read_points
from brim.measure.sweep import Settings, configured, grid, read_config
from brim.measure.sweep_run import CONFIGURATIONS_FILE, FAILURES_FILE, Failure, Swept, SweptPoint, point_key, sweep
from brim.server.endpoint import Endpoint

LAUNCHER = Launcher(("perf_analyzer",), "0.0.0", Origin.PATH)
CLOSED = Plan(Mode.CONCURRENCY, (1, 8))
POISSON = Plan(Mode.RATE, (100,))
CONSTANT = replace(POISSON, distribution=Distribution.CONSTANT)
POINT = {
    "key": "",
    "model": "known",
    "protocol": "grpc",
    "throughput": 1.0,
    "p50_us": 1,
    "p99_us": 2,
    "latency_us": {},
    "split_us": {},
    "mean_batch": 1.0,
    "fill": 0.01,
    "duty": 0.5,
    "queue_us": 1,
    "compute_us": {},
    "executions_by_size": {},
    "execution_us_by_size": {},
    "inferences": 1,
    "executions": 1,
    "failed": 0,
    "instances": 1,
    "stable": True,
    "settled": True,
    "generator_bound": False,
    "reason": "",
    "note": "",
    "generator_cores": None,
    "machine_busy": None,
    "outside_ratio": None,
    "callers_in_server": None,
    "sent_rate": None,
    "delayed_ratio": None,
    "provenance": {
        "command": [],
        "perf_analyzer": "",
        "origin": "",
        "server": "",
        "brim": "",
        "usable_cores": 2,
        "load_average": 0.0,
        "started_at": "",
        "raw": "",
    },
}


class World:
    """Servers and measurements that are only noted; some fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.served: list[ModelConfig] = []
        self.running = 0
        self.measured: list[str] = []
        self.refused_values: set[float] = set()
        self.refused_instances: set[int] = set()

    @contextmanager
    def serve(self, repository: Path) -> Iterator[Endpoint]:
        (model,) = repository.iterdir()
        assert (model / "1" / "model.py").is_file()
        config = parse((model / "config.pbtxt").read_bytes(), "").message
        assert config is not None
        if config.instance_group[0].count in self.refused_instances:
            raise ServerFailed("too many instances", hint="fewer")
        self.served.append(config)
        assert self.running == 0, "one server at a time"
        self.running = 1
        try:
            yield Endpoint("127.0.0.1:1", "127.0.0.1:2")
        finally:
            self.running = 0

    def ask_target(self, endpoint: Endpoint, model: str) -> Target:
        config = self.served[-1]
        digest = f"{config.instance_group[0].count}-{config.dynamic_batching.max_queue_delay_microseconds}"
        return Target(endpoint, model, 1, "triton", digest)

    def measure(self, endpoint: Endpoint, model: str, plan: Plan, **options: Any) -> list[Point]:
        assert options["resume"] is True
        digest = self.ask_target(endpoint, model).config_digest
        points = []
        for value in plan.values:
            key = point_key(model, plan, value, digest)
            known = {point.key: point for point in read_points(self.folder)}
            if key not in known:
                if value in self.refused_values:
                    raise CouldNotTell(f"no figure at {value:g}", hint="try again")
                load = {"concurrency": round(value)} if plan.mode is Mode.CONCURRENCY else {"rate": value}
                known[key] = Point.model_validate({**POINT, "key": key, "mode": plan.mode, **load})
                append_point(self.folder, known[key])
                self.measured.append(key)
            points.append(known[key])
        return points


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "run")
    made.folder.mkdir()
    monkeypatch.setattr(sweep_module, "measure", made.measure)
    monkeypatch.setattr(sweep_module, "ask_target", made.ask_target)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_known_time(tmp_path / "repository", "known", KnownTime(10, 1, preferred=(50,), delay_us=7))


def go(world: World, model: Path, settings: list[Settings], plans: list[Plan]) -> Swept:
    return sweep(model, settings, plans, serve=world.serve, launcher=LAUNCHER, folder=world.folder)


def test_every_load_on_every_configuration(world: World, model: Path) -> None:
    told: list[SweptPoint] = []
    settings = grid([1, 2], [], [0, 2_000])
    swept = sweep(
        model,
        settings,
        [CLOSED, POISSON, CONSTANT],
        serve=world.serve,
        launcher=LAUNCHER,
        folder=world.folder,
        on_point=told.append,
    )
    assert swept.failures == []
    assert swept.points == told
    assert [(one.settings, one.arrivals, one.point.value) for one in swept.points] == [
        (one, *load) for one in settings for load in (("closed", 1), ("closed", 8), ("poisson", 100), ("constant", 100))
    ]
    assert [
        (config.instance_group[0].count, config.dynamic_batching.max_queue_delay_microseconds)
        for config in world.served
    ] == [
        (1, 0),
        (1, 2_000),
        (2, 0),
        (2, 2_000),
    ]
    assert all(list(config.dynamic_batching.preferred_batch_size) == [50] for config in world.served), "as it stands"
    assert len(set(world.measured)) == 16
    document = json.loads(json.dumps(swept.points[0].as_json()))
    assert document["settings"] == {"instances": 1, "preferred": None, "delay_us": 0}
    assert document["arrivals"] == "closed"


def test_a_finished_sweep_starts_no_server(world: World, model: Path) -> None:
    settings = grid([1, 2])
    first = go(world, model, settings, [CLOSED])
    served, measured = len(world.served), list(world.measured)
    again = go(world, model, settings, [CLOSED])
    assert again == first
    assert (len(world.served), world.measured) == (served, measured)


def test_a_stopped_sweep_goes_on_where_it_was(world: World, model: Path) -> None:
    def stop(swept: SweptPoint) -> None:
        if len(world.measured) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(
            model,
            grid([1, 2]),
            [CLOSED],
            serve=world.serve,
            launcher=LAUNCHER,
            folder=world.folder,
            on_point=stop,
        )
    assert world.running == 0
    swept = go(world, model, grid([1, 2]), [CLOSED])
    assert len(swept.points) == 4
    assert len(world.measured) == len(set(world.measured)) == 4
    assert [config.instance_group[0].count for config in world.served] == [1, 2, 2]


def test_what_is_asked_for_is_recorded_before_the_first_server(world: World, model: Path) -> None:
    def refuse(repository: Path) -> Any:
        assert read_asked(world.folder) is not None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(model, grid([1, 2]), [CLOSED], serve=refuse, launcher=LAUNCHER, folder=world.folder)
    asked = read_asked(world.folder)
    assert asked is not None and asked.points == [(one, "closed", load) for one in grid([1, 2]) for load in (1, 8)]
    with pytest.raises(InputError, match="the folder is of another sweep: it asked for closed 1, 8"):
        go(world, model, grid([1, 2]), [POISSON])
    path = model / "config.pbtxt"
    path.write_text(path.read_text(encoding="utf-8").replace("7", "8"), encoding="utf-8")
    with pytest.raises(InputError, match="the model's configuration has changed since"):
        go(world, model, grid([1, 2]), [CLOSED])
    assert world.served == []


def test_what_fails_is_noted_and_the_rest_goes_on(world: World, model: Path) -> None:
    world.refused_values = {1.0}
    world.refused_instances = {2}
    told: list[Failure] = []
    swept = sweep(
        model,
        grid([1, 2, 3]),
        [CLOSED],
        serve=world.serve,
        launcher=LAUNCHER,
        folder=world.folder,
        on_failure=told.append,
    )
    assert swept.failures == told
    assert [(one.settings.instances, one.load, one.error.message) for one in told] == [
        (1, "closed 1", "no figure at 1"),
        (2, "", "too many instances"),
        (3, "closed 1", "no figure at 1"),
    ]
    assert [one.point.value for one in swept.points] == [8, 8]
    assert told[0].as_json()["code"] == "could_not_tell"
    kept = (world.folder / FAILURES_FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in kept] == [one.as_json() for one in told]
    world.refused_values, world.refused_instances = set(), set()
    assert len(go(world, model, grid([1, 2, 3]), [CLOSED]).points) == 6
    assert len(world.measured) == len(set(world.measured)) == 6


def test_settings_that_do_not_fit_are_refused_before_anything_starts(world: World, model: Path) -> None:
    with pytest.raises(InputError) as caught:
        go(world, model, [Settings(1), Settings(0, (0, 101), -1)], [CLOSED])
    for words in ("instances 0", "preferred 0", "preferred 101", "delay_us -1"):
        assert words in caught.value.message
    assert world.served == []
    config = read_config(model / "config.pbtxt")
    config.ClearField("dynamic_batching")
    with pytest.raises(InputError, match="which the model does not have"):
        configured(config, Settings(delay_us=0))
    assert configured(config, Settings(instances=3)).instance_group[0].count == 3


def test_a_configuration_is_changed_in_a_copy_only(model: Path) -> None:
    config = read_config(model / "config.pbtxt")
    before = write(config)
    made = configured(config, Settings(2, (), 0))
    assert write(config) == before
    assert list(made.dynamic_batching.preferred_batch_size) == []
    assert made.HasField("dynamic_batching")
    config.ClearField("instance_group")
    assert configured(config, Settings(instances=2)).instance_group[0].count == 2


def test_a_model_without_configuration_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.pbtxt: No such file"):
        read_config(tmp_path / "config.pbtxt")
    (tmp_path / "config.pbtxt").write_text("nonsense {", encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.pbtxt:1"):
        read_config(tmp_path / "config.pbtxt")


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"x": {}}', '{"x": {"config_digest": 3}}'])
def test_a_folder_with_something_else_is_refused(text: str, world: World, model: Path) -> None:
    (world.folder / CONFIGURATIONS_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="not the configurations of a sweep"):
        go(world, model, grid([1]), [CLOSED])


def test_grids() -> None:
    assert grid() == [Settings()]
    assert str(Settings()) == "as it stands"
    assert str(Settings(2, (32, 64), 0)) == "instances 2, preferred [32, 64], delay_us 0"
    assert grid([1], [(), (100,)]) == [Settings(1, ()), Settings(1, (100,))]
    with pytest.raises(InputError, match="at most 200"):
        grid(range(1, 202))


def test_options_become_plans() -> None:
    base = Plan(Mode.CONCURRENCY, (1,))
    plans = _plans(base, "1,10,10", "50", "60.5")
    assert [(plan.mode, plan.values, plan.distribution) for plan in plans] == [
        (Mode.CONCURRENCY, (1, 10), Distribution.POISSON),
        (Mode.RATE, (50,), Distribution.POISSON),
        (Mode.RATE, (60.5,), Distribution.CONSTANT),
    ]
    assert _preferred("none,100,32+64,100", "--preferred") == [(), (100,), (32, 64)]
    assert _preferred(None, "--preferred") == []
    assert _whole("1, 2,2", "--instances") == [1, 2]
    for text in ("", "x", "-1", "1.5", "1,,2", "9" * 5_000, "²"):
        with pytest.raises(InputError, match="a whole number from 0"):
            _whole(text, "--instances")
    with pytest.raises(InputError, match="--preferred"):
        _preferred("32+x", "--preferred")
