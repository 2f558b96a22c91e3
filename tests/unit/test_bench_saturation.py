"""Served over offline: what limits is named, the callers are judged, and the loop without a server does the same work."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from brim.batcher.arrivals import ClosedLoop
from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate
from brim.bench import saturation
from brim.bench.comparison import Comparison
from brim.bench.conditions import Watch
from brim.bench.saturation import BEST_SETTING, CALLERS, DEFAULT_SETTING, judged_fairly, services_of
from brim.bench.saturation_limits import EDGE, Compared, DeviceUse, device_use, limit
from brim.bench.saturation_offline import Done, GraphLoop, KnownTimeLoop, OfflineProcesses, rate_per_s
from brim.bench.saturation_served import Segment, shared_batch
from brim.bench.verdict import ExitCode, Verdict
from brim.cli.commands import bench as command
from brim.errors import CouldNotTell, InputError, UnknownService
from brim.measure.known_time import Execution, KnownTime, read_executions, write_known_time
from brim.paths import Project
from brim.units import US_PER_S
from tests.conftest import Brim

SEGMENT = Segment(
    rate_per_s=4_000,
    answered=8_000,
    mean_batch=90,
    shared_batch=98,
    duty=0.9,
    server_us=100,
    generator_us=40,
    generator_cores=0.2,
    machine_busy=0.5,
    generator_bound=False,
)
TWO_INPUTS = """name: pair
model: {onnx: pair.onnx}
inputs:
  - {name: A, dtype: FP32, shape: [4]}
  - {name: B, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
slo: {latency_ms: 100}
"""


def compared(segments: Sequence[Segment], **others: Any) -> Compared:
    return Compared("m", "a setting", 1, segments, [5_000.0] * len(segments), **others)


def execution(locked_us: int, free_us: int, began_us: int = 0) -> Execution:
    return Execution("one", 100, began_us * 1_000, locked_us * 1_000, free_us * 1_000)


def test_a_device_is_held_while_an_execution_runs_on_it_and_the_edges_do_not_count() -> None:
    # 20 ms each, 5 ms between them; a long pause at either end.
    inner = [execution(25_000 * n, 25_000 * n + 20_000, began_us=25_000 * n - 6_000) for n in range(1, 21)]
    before = [execution(-(10**6) * n, -(10**6) * n + 20_000) for n in range(1, EDGE + 1)]
    after = [execution(10**6 * n, 10**6 * n + 20_000) for n in range(1, EDGE + 1)]
    use = device_use([*after, *inner, *before])
    assert use == DeviceUse(held=pytest.approx(0.8), gap_us=pytest.approx(5_000), waited=1.0)
    late = [replace(one, began_ns=one.locked_ns - 1) for one in inner]
    use = device_use([*before, *late, *after])
    assert use is not None and use.waited == 0.0
    assert device_use(inner[:2]) == device_use(inner[:3]) == DeviceUse(pytest.approx(0.8), pytest.approx(5_000), 1.0)
    assert device_use(inner[:1]) is device_use([]) is None


def test_processes_side_by_side_are_counted_from_the_first_start_to_the_last_end() -> None:
    assert rate_per_s([Done(300, 0, 900_000_000), Done(100, 100_000_000, 1_000_000_000)]) == pytest.approx(400)


def test_a_batch_counts_for_each_row_that_shares_it() -> None:
    assert shared_batch({100: 3}) == 100
    assert shared_batch({1: 1, 99: 1}) == pytest.approx(98.02)
    assert shared_batch({10: 10, 100: 1}) == pytest.approx(55)


def test_ratios_are_of_the_same_round_and_figures_are_of_all_rounds() -> None:
    found = Compared("m", "a setting", 1, [SEGMENT, replace(SEGMENT, rate_per_s=3_000)], [5_000.0, 6_000.0])
    assert found.ratios == [pytest.approx(0.8), pytest.approx(0.5)]
    assert found.figures["m_served_per_s"] == [4_000, 3_000]
    assert found.figures["m_machine_busy"] == [0.5, 0.5]
    assert not any(name.startswith("m_device") for name in found.figures)
    partly = Compared("m", "w", 1, [SEGMENT, replace(SEGMENT, machine_busy=None)], [5_000.0, 6_000.0])
    assert "m_machine_busy" not in partly.figures
    assert "served 0.650 of offline (0.500 to 0.800" in str(found)


BOUND = replace(SEGMENT, generator_bound=True)
IDLE = replace(SEGMENT, duty=0.5)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (compared([BOUND, BOUND, SEGMENT]), "the callers, not the server, in 2 of 3 rounds"),
        (compared([BOUND, SEGMENT]), "its instance, taken for 90% of the time; offline the same rows take 89% of that"),
        (replace(compared([SEGMENT]), instances=2), "its 2 instances, taken for 90%"),
        (compared([replace(IDLE, machine_busy=0.99)]), "the machine's processors, 99% busy"),
        (compared([IDLE]), "the instances wait for work, taken for 50%"),
        (compared([replace(IDLE, machine_busy=None, generator_us=None)]), "the instances wait for work"),
        (compared([SEGMENT], device=[DeviceUse(0.95, 900, 1.0)]), "the device, taken for 95.0% of the time; 900 us"),
        (
            compared([SEGMENT], device=[DeviceUse(0.7, 8_000, 0.0)], device_offline=[DeviceUse(0.99, 200, 1.0)]),
            "the time between executions: the device is taken for 70.0% of the time; 8000 us from one execution to the "
            "next, in 0% of which an instance waits with its batch (without a server 200 us)",
        ),
    ],
)
def test_what_limits(found: Compared, words: str) -> None:
    assert limit(found).startswith(words)
    assert "the server spends 100 us" in limit(found)


@pytest.mark.parametrize(
    ("served_per_s", "generator_bound", "verdict"),
    [
        (4_900, False, Verdict.MET),
        (4_900, True, Verdict.MET),
        (4_000, False, Verdict.MISSED),
        (4_000, True, Verdict.UNCLEAR),
    ],
)
def test_a_miss_of_the_callers_is_none(served_per_s: float, generator_bound: bool, verdict: Verdict) -> None:
    conditions = replace(Watch().stop(), other_cores=0.0)
    rounds = [replace(SEGMENT, rate_per_s=served_per_s)] * 4
    last = replace(rounds[0], generator_bound=generator_bound)
    assert judged_fairly(compared([*rounds, last]), conditions).verdict is verdict


def test_the_setting_is_the_best_that_the_simulator_knows() -> None:
    # Time for each request as in docs/simulator.md.
    machine = Machine(AffineBatchTime(10_000, 100), serialised=True, prepare_row_us=65, request_us=20)

    def predicted(setting: Settings) -> float:
        found = simulate(setting, machine, ClosedLoop(CALLERS, 10_000)).as_json()["throughput"]
        assert isinstance(found, float)
        return found

    def settings(known: KnownTime) -> Settings:
        return Settings(100, preferred=tuple(known.preferred), delay_us=known.delay_us, instances=known.instances)

    ours = predicted(settings(BEST_SETTING))
    assert ours > 1.2 * predicted(settings(DEFAULT_SETTING))
    others = [
        Settings(100, preferred=preferred, delay_us=delay_us, instances=instances)
        for preferred, delay_us in (((), 0), ((50,), 10_000), ((100,), 5_000), ((100,), 50_000))
        for instances in (1, 2, 3)
    ]
    assert ours >= 0.999 * max(map(predicted, others))


def test_which_services(checkout: Path, tmp_path: Path) -> None:
    services = Project(checkout).services
    assert [service.name for service in services_of(services, None)] == ["text_embedding", "image_classifier"]
    assert services_of(services, "known-time") == []
    assert [service.name for service in services_of(services, "image_classifier")] == ["image_classifier"]
    with pytest.raises(UnknownService):
        services_of(services, "image_clasifier")
    (tmp_path / "pair.yaml").write_text(TWO_INPUTS)
    with pytest.raises(InputError, match="pair has 2 inputs"):
        services_of(tmp_path, "pair")


def test_two_processes_share_the_device_of_the_known_model(tmp_path: Path) -> None:
    folder = write_known_time(tmp_path, "known", KnownTime(tau0_us=3_000, alpha_us=10, record=True))
    with OfflineProcesses(KnownTimeLoop(folder), 2) as processes:
        once = processes.rate_per_s(0)
        assert [one.rows for one in read_executions(folder)] == [100, 100]
        repeated = processes.rate_per_s(1, least_us=100_000)
    executions = sorted(read_executions(folder), key=lambda one: one.locked_ns)
    assert len(executions) >= 4, "a pass of each process in each round"
    for earlier, later in pairwise(executions):
        assert later.locked_ns >= earlier.free_ns
    most_per_s = 100 * US_PER_S / 4_000
    assert 0 < once <= most_per_s and 0 < repeated <= most_per_s


def test_a_model_that_does_not_load_is_said(tmp_path: Path) -> None:
    loop = GraphLoop(tmp_path / "model.onnx", 1, [], remedy="export it")
    with pytest.raises(CouldNotTell, match=r"model\.onnx is missing \(hint: export it\)"), OfflineProcesses(loop, 1):
        pass


def test_a_process_that_ended_is_said(tmp_path: Path) -> None:
    folder = write_known_time(tmp_path, "known", KnownTime(tau0_us=1_000, alpha_us=0))
    with OfflineProcesses(KnownTimeLoop(folder), 1) as processes:
        ((process, _),) = processes._started
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        with pytest.raises(CouldNotTell, match="it ended"):
            processes.rate_per_s(0)


@pytest.mark.parametrize(
    ("name", "services", "known_time"),
    [
        ((), ["text_embedding", "image_classifier"], True),
        (("known-time",), [], True),
        (("image_classifier",), ["image_classifier"], False),
    ],
)
def test_the_command(
    brim: Brim,
    exported: Project,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: tuple[str, ...],
    services: list[str],
    known_time: bool,
) -> None:
    asked: list[Any] = []

    def found(project: Project, given: Any, **others: Any) -> Comparison:
        asked.append((given, others))
        conditions = replace(Watch().stop(), other_cores=0.0)
        slow = compared([SEGMENT] * 5)
        ratios = (judged_fairly(slow, conditions),) if others["known_time"] else ()
        return Comparison("saturation", ratios, slow.figures, conditions, {"findings": [str(slow)]})

    monkeypatch.setattr(command, "find_launcher", lambda *_, **__: None)
    monkeypatch.setattr(saturation, "saturation", found)
    monkeypatch.setenv("BRIM_ROOT", str(exported.root))
    arguments = ("bench", "saturation", *name, "--rounds", "5", "--seed", "3", "--out", str(tmp_path))
    code, out, _ = brim(*arguments, "--json")
    answer = json.loads(out)
    assert code == (ExitCode.NO if known_time else ExitCode.YES) and answer["ok"] is (code == 0)
    assert answer["data"]["findings"][0].startswith("a setting: served 0.800 of offline")
    code, out, _ = brim(*arguments)
    assert "Limit: its instance" in out
    given, others = asked[0]
    assert [service.name for service in given] == services and others["known_time"] is known_time
    assert others["effort"].rounds == 5 and others["seed"] == 3 and others["folder"] == tmp_path
