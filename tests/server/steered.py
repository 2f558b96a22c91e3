"""Models that a test steers while they serve: Y = 2 * X, unless an order for this very stub process says otherwise."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from tests.server.doubler import make_project

PATIENCE_S = 60
STEERED = """
import os
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

ORDERS = Path({orders!r})


class TritonPythonModel:
    def initialize(self, args):
        self.model = args["model_name"]
        for _ in range(6000):
            if (ORDERS / self.model).read_text() != "hold":
                break
            time.sleep(0.01)

    def execute(self, requests):
        order, _, pid = (ORDERS / self.model).read_text().partition(" ")
        if pid in ("", str(os.getpid())):
            if order == "exit":
                os._exit(1)
            if order == "fail":
                raise ValueError("ordered to fail")
            if order == "hang":
                time.sleep(3600)
        time.sleep({batch_s})
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 2)]))
        return answers
"""


@dataclass(frozen=True)
class Steered:
    """A project with the models ``doubler`` and ``other``, which take orders from a folder outside of the repository."""

    project: Project
    orders: Path

    def order(self, model: str, text: str) -> None:
        """``exit``, ``fail`` or ``hang``, for one stub (`fail PID`) or for every one; ``hold`` keeps it loading; empty: none."""
        beside = self.orders / f"{model}.tmp"
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.orders / model)


def make_steered(root: Path, *, batch_s: float) -> Steered:
    """``batch_s``: how long each batch takes."""
    orders = root / "orders"
    orders.mkdir(parents=True)
    code = STEERED.format(orders=str(orders), batch_s=batch_s)
    steered = Steered(make_project(root, model=code), orders)
    repository = steered.project.model_repository
    shutil.copytree(repository / "doubler", repository / "other")
    config = repository / "other" / "config.pbtxt"
    config.write_text(config.read_text(encoding="utf-8").replace('"doubler"', '"other"'), encoding="utf-8")
    for model in ("doubler", "other"):
        steered.order(model, "")
    return steered


@dataclass
class Traffic:
    """What callers of one input each were told, and when (monotonic seconds)."""

    right: list[float] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.right) + len(self.errors) + len(self.wrong)


async def call(session: aiohttp.ClientSession, endpoint: Endpoint, model: str, number: int, traffic: Traffic) -> None:
    """One caller's one request, to its end."""
    data = [number, number + 0.25, number + 0.5, number + 0.75]
    body = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": data}]}
    try:
        async with session.post(f"http://{endpoint.http}/v2/models/{model}/infer", json=body) as answer:
            told = await answer.json(content_type=None)
            now = time.monotonic()
            if answer.status != 200:
                traffic.errors.append((now, str(told)))
            elif told["outputs"][0]["data"] == [2 * value for value in data]:
                traffic.right.append(now)
            else:
                traffic.wrong.append(str(told))
    except (aiohttp.ClientError, OSError) as error:
        traffic.errors.append((time.monotonic(), type(error).__name__))


def session(timeout_s: float = PATIENCE_S) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=timeout_s)
    )


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll, bounded."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def readiness(endpoint: Endpoint, path: str, seen: list[int], stop: asyncio.Event) -> None:
    """Ask a readiness page again and again; each change of its status is kept, 0 for no connection."""
    async with session() as asking:
        while not stop.is_set():
            status = 0
            with suppress(aiohttp.ClientError, OSError):
                async with asking.get(f"http://{endpoint.http}{path}") as answer:
                    status = answer.status
            if seen[-1:] != [status]:
                seen.append(status)
            await asyncio.sleep(0.01)


def stub_of(server: EmbeddedServer, model: str) -> int:
    """Process id of a model's newest stub: after a load a former one may still be there for a while."""
    of_model = [psutil.Process(pid) for pid, named in server.stubs().items() if named == model]
    return max(of_model, key=psutil.Process.create_time).pid
