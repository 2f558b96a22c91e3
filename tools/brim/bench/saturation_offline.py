"""A model in a loop without a server: as many processes as the server has instances, full batches, nothing between them."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brim.bench.bare import read_config
from brim.bench.padding import offline_encoder
from brim.errors import CouldNotTell
from brim.limits import BATCH_LIMIT
from brim.measure.known_time import INPUT, WIDTH
from brim.paths import Project
from brim.runtime.session import Device, OnnxSession
from brim.service.samples import Row
from brim.service.schema import Service
from brim.units import US_PER_S

START_TIMEOUT_S = 60.0
PASS_TIMEOUT_S = 120.0
"""What a pass may take beyond the time that was asked for."""
END_TIMEOUT_S = 5.0
NS_PER_S = 1_000_000_000
VERSION = "1"

Pass: TypeAlias = Callable[[int], int]
"""Full batches of one round, by its number; how many rows they had."""
Loop: TypeAlias = Callable[[], Pass]
"""Loads the model, in the process that runs it."""


@dataclass(frozen=True, slots=True)
class KnownTimeLoop:
    """The model of known batch time as ``write_known_time`` left it in ``folder``: its code, its lock, its notes."""

    folder: Path

    def __call__(self) -> Pass:
        """The model's own ``execute``, over one full batch of requests with a row each.

        The stand-in stays in the process's modules: this is for a process of its own.
        """
        sys.modules["triton_python_backend_utils"] = _stand_in()
        model = runpy.run_path(str(self.folder / VERSION / "model.py"))["TritonPythonModel"]()
        parameters = read_config(self.folder / "config.pbtxt").parameters
        config = {"parameters": {name: {"string_value": given.string_value} for name, given in parameters.items()}}
        model.initialize(
            {
                "model_config": json.dumps(config),
                "model_repository": str(self.folder),
                "model_version": VERSION,
                "model_instance_name": f"{self.folder.name}, alone",
            }
        )
        requests = [{INPUT: _Tensor(INPUT, np.ones((1, WIDTH), np.float32))} for _ in range(BATCH_LIMIT)]
        return lambda _: len(model.execute(requests))


@dataclass(frozen=True, slots=True)
class _Tensor:
    """The python backend's, as far as the model uses it."""

    name: str
    array: np.ndarray[Any, Any]

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The values."""
        return self.array


def _stand_in() -> ModuleType:
    """The part of ``triton_python_backend_utils`` that the model of known batch time uses."""
    module = ModuleType("triton_python_backend_utils")
    vars(module).update(
        Tensor=_Tensor,
        InferenceResponse=tuple,
        get_input_tensor_by_name=lambda request, name: request[name],
    )
    return module


@dataclass(frozen=True, slots=True)
class EncoderLoop:
    """A sentence encoder, each hundred sorted and cut as the server cuts it; ``texts`` are those of every round."""

    project: Project
    service: Service
    texts: Sequence[Sequence[str]]

    def __call__(self) -> Pass:
        """All sentences of the round."""
        encoder = offline_encoder(self.project, self.service)
        return lambda number: len(encoder.sorted_and_cut(self.texts[number]))


@dataclass(frozen=True, slots=True)
class GraphLoop:
    """A graph with one input and one output.

    Attributes:
        graph: the ``.onnx`` file.
        threads: of ONNX Runtime.
        rows: rows of the service, taken in turn until the batch is full.
        remedy: the hint when the file is missing or broken.
    """

    graph: Path
    threads: int
    rows: Sequence[Row]
    remedy: str

    def __call__(self) -> Pass:
        """One full batch."""
        session = OnnxSession(self.graph, Device(None, self.threads), remedy=self.remedy)
        (taken,), outputs = session.inputs, list(session.outputs)
        values = [next(iter(self.rows[number % len(self.rows)].values())) for number in range(BATCH_LIMIT)]
        feeds = {taken: np.concatenate(values)}
        return lambda _: len(session.run(outputs, feeds)[outputs[0]])


class Done(NamedTuple):
    """What one process did; monotonic times of the machine."""

    rows: int
    began_ns: int
    ended_ns: int


class OfflineProcesses:
    """Processes that hold the loaded model and wait for the word; ended with the block.

    Each is ``python -m brim.bench.saturation_worker``, which is sent the loop first.
    """

    def __init__(self, loop: Loop, processes: int) -> None:
        """Nothing starts before the ``with`` block."""
        self._loop = loop
        self._count = processes
        self._started: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def __enter__(self) -> OfflineProcesses:
        """Start them, and wait until each has loaded the model.

        Raises:
            CouldNotTell: one of them did not.
        """
        try:
            for _ in range(self._count):
                self._started.append(_start())
            self._tell(self._loop)
            for number in range(self._count):
                self._answer(number, START_TIMEOUT_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self._end()

    def rate_per_s(self, number: int, least_us: int = 0) -> float:
        """Rows a second of all processes together, from the first start to the last end.

        Args:
            number: of the round.
            least_us: passes are repeated until so much time is over; one pass when 0.

        Raises:
            CouldNotTell: a process ended, or took too long.
        """
        self._tell((number, least_us))
        timeout_s = least_us / US_PER_S + PASS_TIMEOUT_S
        return rate_per_s([self._answer(number, timeout_s) for number in range(self._count)])

    def _tell(self, what: object) -> None:
        """One that has ended is noticed when its answer is read."""
        for _, connection in self._started:
            with suppress(OSError):
                connection.send(what)

    def _answer(self, number: int, timeout_s: float) -> Done:
        process, connection = self._started[number]
        said: str | Done = f"no answer within {timeout_s:g} s"
        try:
            if connection.poll(timeout_s):
                said = connection.recv()
        except (EOFError, OSError):
            said = "it ended"
        if isinstance(said, str):
            raise CouldNotTell(
                f"a loop without a server (pid {process.pid}): {said}",
                hint="its own words are above; was the machine out of memory?",
            )
        return said

    def _end(self) -> None:
        for process, connection in self._started:
            process.kill()
            connection.close()
        for process, _ in self._started:
            process.wait(END_TIMEOUT_S)
        self._started.clear()


def rate_per_s(done: Sequence[Done]) -> float:
    """Rows a second of processes that ran side by side."""
    elapsed_ns = max(one.ended_ns for one in done) - min(one.began_ns for one in done)
    return sum(one.rows for one in done) * NS_PER_S / elapsed_ns


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "brim.bench.saturation_worker", str(os.getpid()), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return process, ours
