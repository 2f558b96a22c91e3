"""tau(b) on the device alone. The GPU is a stand-in here: what ONNX Runtime is asked, and in which order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from brim.batcher.batch_time import read_batch_time
from brim.bench.device import DEFAULT_EFFORT, LEAST_WINDOW_US, MOST_RUNS, Effort, chosen_sizes, device, ones, typical_us
from brim.cli.commands import bench_device
from brim.errors import InputError, MissingTool
from brim.paths import Project
from brim.runtime.session import CUDA_PROVIDER, Device, GraphTensor, OnnxSession
from brim.service.load import find_service
from tests.conftest import Brim

SHORT = Effort(sizes=5, rounds=3, budget_s=0)


def ticking(step_us: int) -> Callable[[], int]:
    """A clock that goes on by so much whenever somebody looks."""
    looks = itertools.count()
    return lambda: next(looks) * step_us * 1_000


def test_sizes_go_from_one_row_to_the_largest_batch() -> None:
    assert chosen_sizes(100, None) == list(range(1, 101))
    assert chosen_sizes(100, 5) == [1, 26, 50, 75, 100]
    assert chosen_sizes(4, 30) == [1, 2, 3, 4]
    with pytest.raises(InputError, match="2 batch sizes; at least 3"):
        chosen_sizes(100, 2)


def test_a_short_run_is_repeated_and_one_that_was_held_up_moves_nothing() -> None:
    done: list[int] = []
    assert typical_us(lambda: done.append(1), ticking(100)) == 100
    assert len(done) == LEAST_WINDOW_US / 100
    done.clear()
    assert typical_us(lambda: done.append(1), ticking(LEAST_WINDOW_US)) == LEAST_WINDOW_US
    assert len(done) == 1
    done.clear()
    typical_us(lambda: done.append(1), ticking(0))
    assert len(done) == MOST_RUNS
    looks = iter([0, 1, 2, 1_000, 1_001, LEAST_WINDOW_US + 1_001])
    assert typical_us(lambda: None, lambda: next(looks) * 1_000) == 1


@pytest.mark.parametrize(("index_range", "value"), [(None, 1), ((0, 9), 1), ((0, 0), 0), ((5, 9), 5), ((-9, -2), -2)])
def test_rows_are_ones_that_the_graph_can_stand(index_range: tuple[int, int] | None, value: int) -> None:
    made = ones(GraphTensor("x", np.dtype(np.int64), (None, None, 2)), 3, 7, index_range)
    assert made.shape == (3, 7, 2) and made.dtype == np.int64
    assert set(made.ravel().tolist()) == {value}


def test_every_size_is_measured_in_every_round_but_the_first(exported: Project) -> None:
    service = find_service(exported.services, "image_classifier")
    found = device(exported, service, on_gpu=False, effort=SHORT, clock_ns=ticking(LEAST_WINDOW_US + 1_000))
    for curve in (found.on_device.fit, found.from_host.fit):
        assert [(point.rows, point.runs) for point in curve.points] == [(rows, 3) for rows in (1, 26, 50, 75, 100)]
        assert {point.measured_us for point in curve.points} == {LEAST_WINDOW_US + 1_000}
    assert found.comparison.details["provider"] == "CPUExecutionProvider"
    assert len(found.comparison.figures["device: 100 rows, us"]) == 3


def test_the_budget_ends_the_rounds_once_there_are_enough(exported: Project) -> None:
    service = find_service(exported.services, "image_classifier")
    effort = Effort(sizes=3, rounds=9, budget_s=1)
    found = device(exported, service, on_gpu=False, effort=effort, clock_ns=ticking(1_000_000))
    assert found.on_device.provenance["rounds"] == 3
    with pytest.raises(InputError, match="2 rounds; at least 3"):
        device(exported, service, on_gpu=False, effort=Effort(rounds=2))


def test_without_a_gpu_it_is_said_and_not_measured_elsewhere(brim: Brim, exported: Project, tmp_path: Path) -> None:
    if CUDA_PROVIDER in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has a GPU")
    done = brim("bench", "device", "--out", tmp_path)
    assert done.code == MissingTool.exit_code
    assert CUDA_PROVIDER in done.err and "--cpu measures the CPU" in done.err


def test_the_answer_is_a_file_that_the_simulator_reads(
    brim: Brim, exported: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_device, "device", partial(device, clock_ns=ticking(LEAST_WINDOW_US)))
    asked = ("--cpu", "--points", 3, "--rounds", 3, "--seconds", 1, "--out", tmp_path)
    done = brim("bench", "device", "image_classifier", *asked, "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)["data"]
    assert data["model"] == "image_classifier" and data["device"]["form"] == "affine"
    assert read_batch_time(tmp_path / "batch_time.json").time_us(100) == LEAST_WINDOW_US
    assert (tmp_path / "batch_time.svg").read_text().startswith("<?xml")
    said = brim("bench", "device", "image_classifier", *asked)
    assert "tensors on the device: affine" in said.out and "tensors on the host" in said.out
    assert brim("report", tmp_path).code == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("device", "text_generation", "--cpu"), "engine batches by steps"),
        (("padding", "--cpu"), "takes no --cpu"),
        (("device", "--processor-time"), "takes no --processor-time"),
        (("device", "--cpu", "--points", "2"), "at least 3"),
    ],
)
def test_what_cannot_be_asked(brim: Brim, exported: Project, tmp_path: Path, asked: tuple[str, ...], said: str) -> None:
    done = brim("bench", *asked, "--out", tmp_path)
    assert done.code == 2 and said in done.err


class Recorder:
    """The part of an ``InferenceSession`` on a GPU that a bound run uses: what was asked, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def get_providers(self) -> list[str]:
        return [CUDA_PROVIDER, "CPUExecutionProvider"]

    def io_binding(self) -> Recorder:
        return self

    def bind_ortvalue_input(self, name: str, value: object) -> None:
        self.asked.append(("input", name, value))

    def bind_output(self, name: str, *place: object) -> None:
        self.asked.append(("output", name, *place))

    def synchronize_inputs(self) -> None:
        self.asked.append(("wait for inputs",))

    def run_with_iobinding(self, binding: object) -> None:
        self.asked.append(("run",))

    def synchronize_outputs(self) -> None:
        self.asked.append(("wait for outputs",))


def test_a_timed_run_waits_for_the_gpu_and_copies_nothing(exported: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = exported.model_repository / "image_classifier" / "1" / "model.onnx"
    session = OnnxSession(path, Device(None, 1), remedy="")
    recorder = Recorder()
    monkeypatch.setattr(session, "_session", recorder)
    monkeypatch.setattr(session, "_gpu", 2)
    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_numpy", lambda array, *place: (array.shape, *place))
    run = session.on_device(["out"], {"in": np.zeros((4, 1))})
    assert recorder.asked == [
        ("input", "in", ((4, 1), "cuda", 2)),
        ("output", "out", "cuda", 2),
        ("wait for inputs",),
    ]
    recorder.asked.clear()
    run()
    assert recorder.asked == [("run",), ("wait for outputs",)]


def test_a_bound_run_gives_what_any_run_gives(exported: Project) -> None:
    """On the CPU, where the tensors can be looked at."""
    path = exported.model_repository / "image_classifier" / "1" / "model.onnx"
    session = OnnxSession(path, Device(None, 1), remedy="")
    (given,), (wanted,) = session.inputs, session.outputs
    feeds = {given: np.ones((3, 1, 8, 8), np.float32)}
    bound = session.on_device([wanted], feeds)
    bound()
    (binding,) = (cell.cell_contents for cell in bound.__closure__ or () if hasattr(cell.cell_contents, "get_outputs"))
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), session.run([wanted], feeds)[wanted])
    assert DEFAULT_EFFORT.sizes is None
