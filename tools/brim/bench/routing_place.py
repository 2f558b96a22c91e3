"""Real replicas of a language model, its copies one for each routing policy: what ``brim bench routing --real`` asks.

Every server holds a copy of the model for each policy, with an engine and a KV cache of its own, and one copy is asked at a time.
So no policy finds what another one has left in a cache, and all of them run on the same servers and processors.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from brim.bench.routing import BESIDE, PICKED, REPLICAS
from brim.config.files import write_configs
from brim.config.generate import Profile
from brim.config.generation import ENGINE_ARGUMENTS_NAME, generation_of
from brim.errors import CouldNotTell
from brim.fleet.attended import attended
from brim.fleet.fleet import Fleet
from brim.fleet.picker import PickerProcess, choose_place
from brim.gateway.admission import admissions
from brim.gateway.clusters import OTHERS
from brim.gateway.envoy import Gateway
from brim.gateway.picking import picking
from brim.gateway.replicas import Balance, Replicas, file_of
from brim.measure.text.server_side import Reading, read_page
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import LOOPBACK
from brim.server.options import ServerOptions
from brim.service.samples import sample_rows
from brim.service.schema import Service

POLICIES = (PICKED, *BESIDE)
READY_WITHIN_S, POLL_S, ANSWER_S = 60.0, 0.1, 5.0
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Case:
    """What is served.

    Attributes:
        replicas: servers.
        kv_blocks: of each copy's KV cache: not enough for all beginnings on one replica.
        max_sequences: texts at once, of each copy.
        context_tokens: longest prompt and text.
        threads: of each engine; the machine is shared by all of them.
    """

    replicas: int = REPLICAS
    kv_blocks: int = 256
    max_sequences: int = 8
    context_tokens: int = 1_024
    threads: int = 1


def copy_of(service: Service, policy: str, case: Case) -> Service:
    """The service under the policy's name, with a small cache, one class of callers, and nobody refused for a wait."""
    generation = generation_of(service).model_copy(
        update={
            "kv_blocks": case.kv_blocks,
            "max_sequences": case.max_sequences,
            "context_tokens": case.context_tokens,
            "prefix_cache": True,
        }
    )
    return service.model_copy(
        update={
            "name": policy,
            "generation": generation,
            "callers": (),
            "slo": service.slo.model_copy(update={"ttft_ms": None}),
            "runtime": service.runtime.model_copy(update={"threads": case.threads}),
        }
    )


class Place:
    """All of it, for the length of a ``with`` block."""

    def __init__(
        self, project: Project, service: Service, case: Case, *, log_folder: Path, on_progress: Callable[[str], None]
    ) -> None:
        """Of an exported service; nothing is started yet."""
        self.case, self.copies = case, {policy: copy_of(service, policy, case) for policy in POLICIES}
        self._project, self._exported = project, project.model_repository / service.name / VERSION
        self._log_folder, self._say = log_folder, on_progress

    def __enter__(self) -> Self:
        """Start all of it, and wait until every copy answers through its gateway.

        Raises:
            ServerFailed: a server or a gateway does not start.
            CouldNotTell: it starts, and does not become ready.
        """
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="brim-routing-")))
            self._log_folder.mkdir(parents=True, exist_ok=True)
            self._repository = self._write(folder / "models")
            where = choose_place(LOOPBACK)
            self.fleet = stack.enter_context(
                Fleet(
                    self._server,
                    self.case.replicas,
                    models=list(POLICIES),
                    folder=folder / "run",
                    picking=picking(where.address, [PICKED], [PICKED]),
                    on_progress=self._say,
                )
            )
            known = self.fleet.for_gateway
            by_load = stack.enter_context(self._gateway(known, "least_request"))
            in_turn = stack.enter_context(
                self._gateway(Replicas(known.folder, Balance.ROUND_ROBIN), "round_robin"),
            )
            self.gateways = {policy: in_turn if policy == "round_robin" else by_load for policy in POLICIES}
            self.fleet.gateway = by_load
            names, log = file_of(known.folder, OTHERS), self._log_folder / "picker.log"
            stack.enter_context(PickerProcess(where, names, by_load.admin, {}, log, self._say))
            stack.enter_context(attended(self.fleet))
            for policy, gateway in self.gateways.items():
                _wait(partial(_answers, f"http://{gateway.endpoint.http}/v2/models/{policy}/ready", ""), policy)
            told = f"brim_picker_replicas {self.case.replicas}\n"
            _wait(partial(_answers, f"http://{where.metrics}/metrics", told), "the picker")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of it."""
        self._stack.close()

    def pages(self, policy: str) -> list[Reading]:
        """What the engines of the policy's copies have counted, a replica each.

        Raises:
            CouldNotTell: a page does not come.
        """
        readings = []
        for replica in self.fleet.replicas:
            page = replica.server.endpoint.metrics
            reading = None if page is None else read_page(page, policy)
            if reading is None:
                raise CouldNotTell(f"the metrics page of {replica.name} does not come", hint="see its log")
            readings.append(reading)
        return readings

    def _write(self, repository: Path) -> Path:
        for policy, copy in self.copies.items():
            write_configs(repository, copy, [Profile.DEFAULT])
            version = repository / policy / VERSION
            version.mkdir(parents=True, exist_ok=True)
            for exported in self._exported.iterdir():
                # What the copy's own service file says stands in its configuration.
                if exported.name != ENGINE_ARGUMENTS_NAME and not exported.name.startswith("__"):
                    (version / exported.name).symlink_to(exported.resolve())
        return repository

    def _server(self, name: str) -> EmbeddedServer:
        return EmbeddedServer(
            self._repository,
            list(POLICIES),
            cache=self._project.cache_folder(),
            log_file=self._log_folder / f"{name}.log",
            canaries={policy: next(iter(sample_rows(copy)), None) for policy, copy in self.copies.items()},
            options=ServerOptions(exit_timeout_s=5),
            on_progress=self._say,
        )

    def _gateway(self, replicas: Replicas, name: str) -> Gateway:
        return Gateway(
            self.fleet.first.server.endpoint,
            log_file=self._log_folder / f"{name}.gateway.log",
            admitted=admissions(list(self.copies.values())),
            replicas=replicas,
        )


def _wait(is_so: Callable[[], bool], who: str) -> None:
    give_up_s = time.monotonic() + READY_WITHIN_S
    while not is_so():
        if time.monotonic() > give_up_s:
            raise CouldNotTell(f"{who} is not ready within {READY_WITHIN_S:g} s", hint="see the logs of the run")
        time.sleep(POLL_S)


def _answers(url: str, text: str) -> bool:
    """Whether an answer comes that is no error, and has the text in it."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return text in answer.read().decode()
    except (OSError, ValueError):
        return False
