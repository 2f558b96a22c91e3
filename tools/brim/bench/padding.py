"""Mixed-length text at saturation: the served encoder against loops without a server over the same sentences.

Served are more callers than two batches hold, so that a full batch always waits. Beside it, in one process with the same
graph, tokenizer and threads: each hundred sorted and cut as the server cuts it (what the serving costs), one by one (what
batching is worth), and padded to the longest of each hundred (what ignoring the lengths costs).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from brim.bench.comparison import Comparison, judged
from brim.bench.conditions import Watch
from brim.bench.offline import Embeddings, Loop, OfflineEncoder
from brim.bench.sentences import lengths, sentences
from brim.bench.server_cost import cpu_us
from brim.bench.token_count import TokenCount, read_tokens
from brim.bench.verdict import Target
from brim.errors import CouldNotTell
from brim.measure.callers import ask_all
from brim.paths import Project
from brim.runtime.padding import CPU_COST, PaddingCost
from brim.runtime.session import cores
from brim.server.embedded import EmbeddedServer
from brim.service.schema import Service
from brim.units import US_PER_MS

NAME = "padding"
SERVED, CUT, ALONE, NAIVE = "served", "sorted_and_cut", "one_by_one", "naive"
TARGETS = (
    Target("served / sorted and cut offline", least=0.9),
    Target("served / one by one offline", least=1.15),
    Target("served / padded to the longest offline", least=4.0),
)
WASTE = Target("padded / real tokens, served", most=1.15)
CALLERS = 220
ANSWER_TIMEOUT_S = 120.0
DIFFERENCE = 1e-3
"""Most that an embedding served may differ from the same offline, in any of its numbers: both did the same work."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: of all four ways.
        sentences: of a round, the same for all four.
        callers: of the closed loop.
    """

    rounds: int = 8
    sentences: int = 300
    callers: int = CALLERS


DEFAULT_EFFORT = Effort()


def offline_encoder(project: Project, service: Service) -> OfflineEncoder:
    """The encoder of a service with the threads and the cutting that its default profile on a CPU has."""
    instances = sum(group.count for group in service.instances)
    padding = service.runtime.padding
    return OfflineEncoder(
        project.model_repository / service.name / "1",
        threads=service.runtime.threads or max(1, cores() // instances),
        cost=PaddingCost(**padding.model_dump()) if padding else CPU_COST,
        longest_tokens=service.runtime.longest_tokens or 512,
        remedy=f"run `brim export {service.name}`",
    )


def padding(
    project: Project,
    service: Service,
    *,
    log_file: Path,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare four ways to embed the same sentences, in an order that turns every round.

    Args:
        project: where the model repository lies.
        service: an exported sentence encoder that takes one text.
        log_file: of the server.
        seed: for lengths and words.
        effort: how long to look.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ServerFailed: the server did not start, or died.
        CouldNotTell: a request failed, or served and offline embeddings differ.
    """
    watch = Watch()
    encoder = offline_encoder(project, service)
    rates: dict[str, list[float]] = {name: [] for name in (SERVED, CUT, ALONE, NAIVE)}
    processor_ms: dict[str, list[float]] = {name: [] for name in rates}
    waste: list[float] = []
    means: list[float] = []
    with EmbeddedServer(
        project.model_repository, [service.name], cache=project.cache, log_file=log_file, on_progress=on_progress
    ) as server:
        served = _Served(server, service, effort.callers)
        ways: dict[str, Loop] = {
            SERVED: served,
            CUT: encoder.sorted_and_cut,
            ALONE: encoder.one_by_one,
            NAIVE: encoder.naive,
        }
        for number in range(effort.rounds):
            wanted = lengths(effort.sentences, seed + number)
            means.append(float(np.mean(wanted)))
            found = _round(ways, sentences(encoder.tokenizer, wanted, seed + number), number, server.pid)
            for name, done in found.items():
                rates[name].append(done.rate)
                processor_ms[name].append(done.processor_ms)
            waste.append(served.tokens.padded / served.tokens.real)
            _require_same(found[SERVED].embeddings, found[CUT].embeddings)
            words = ", ".join(f"{name} {done.rate:.1f}/s" for name, done in found.items())
            on_progress(f"round {number + 1} of {effort.rounds}: {words}, padded / real {waste[-1]:.3f}")
        watch.note()
    conditions = watch.stop()
    ratios = [
        judged(target, [ours / theirs for ours, theirs in zip(rates[SERVED], rates[other], strict=True)], conditions)
        for target, other in zip(TARGETS, (CUT, ALONE, NAIVE), strict=True)
    ]
    figures = {f"{name}_per_s": values for name, values in rates.items()}
    figures |= {f"{name}_processor_ms": values for name, values in processor_ms.items()}
    figures |= {"padded_per_real": waste, "mean_tokens": means}
    details = {"answered": served.answered, "callers": effort.callers, "sentences": effort.sentences}
    return Comparison(NAME, (judged(WASTE, waste, conditions), *ratios), figures, conditions, details)


@dataclass(frozen=True, slots=True)
class _Done:
    """Sentences a second, processor time a sentence of all that took part, and what came out."""

    rate: float
    processor_ms: float
    embeddings: Embeddings


def _round(ways: dict[str, Loop], texts: Sequence[str], number: int, server: int) -> dict[str, _Done]:
    """Each way once over the texts; who comes first changes with the number of the round."""
    names = list(ways)
    turn = number % len(names)
    found = {}
    for name in names[turn:] + names[:turn]:
        began_s, spent_us = time.perf_counter(), cpu_us(server) + cpu_us(os.getpid(), children=False)
        embeddings = ways[name](texts)
        elapsed_s = time.perf_counter() - began_s
        spent_us = cpu_us(server) + cpu_us(os.getpid(), children=False) - spent_us
        found[name] = _Done(len(texts) / elapsed_s, spent_us / US_PER_MS / len(texts), embeddings)
    return {name: found[name] for name in names}


def _require_same(served: npt.NDArray[np.float32], offline: npt.NDArray[np.float32]) -> None:
    worst = float(np.abs(served - offline).max())
    if not worst <= DIFFERENCE:
        raise CouldNotTell(
            f"an embedding served differs by {worst:g} from the same sentence offline, {DIFFERENCE:g} is allowed",
            hint="export the model again with `brim export --force`, so that both run the same graph",
        )


class _Served:
    """Sentences through the server, one a request, each caller waiting for its own answer."""

    def __init__(self, server: EmbeddedServer, service: Service, callers: int) -> None:
        self._server = server
        self._service = service
        self._callers = callers
        self.answered = 0
        self.tokens = TokenCount(0, 0)
        """Of the last call."""

    def __call__(self, texts: Sequence[str]) -> Embeddings:
        (taken,), (given,) = self._service.inputs, self._service.outputs
        rows = [{taken.name: np.array([[text.encode()]], dtype=np.object_)} for text in texts]
        before = self._count()
        answers = ask_all(self._server.endpoint.grpc, "grpc", self._service.name, rows, self._callers, ANSWER_TIMEOUT_S)
        self.tokens = self._count().since(before)
        failed = next((answer.error for answer in answers if answer.error), None)
        if failed or not self.tokens.real:
            raise CouldNotTell(
                f"a request failed: {failed.message}" if failed else "the server counted no token",
                hint=f"the server's log is {self._server.log_file}",
            )
        self.answered += len(answers)
        return np.concatenate([answer.outputs[given.name] for answer in answers if answer.outputs])

    def _count(self) -> TokenCount:
        address = self._server.endpoint.metrics
        assert address is not None
        return read_tokens(address, self._service.name)
