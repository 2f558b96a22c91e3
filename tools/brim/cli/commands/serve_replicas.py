"""``--replicas N``: several servers behind the gateway, for ``brim serve`` and ``brim up``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from brim.cli.output import say
from brim.fleet.fleet import Fleet
from brim.fleet.orders import MOST_REPLICAS, new_run
from brim.fleet.picker import PickerPlace, PickerProcess, choose_place
from brim.gateway.clusters import OTHERS
from brim.gateway.envoy import Gateway
from brim.gateway.picking import picking
from brim.gateway.replicas import Balance, Picking, file_of
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import LOOPBACK
from brim.server.healing import Bounds
from brim.server.options import ServerOptions
from brim.service.samples import Row
from brim.service.schema import Service

TICK_S = 0.1
ReplicaCount = Annotated[
    int, typer.Option(min=1, max=MOST_REPLICAS, help="Servers behind the gateway; `brim replicas` looks after them.")
]
BalanceOption = Annotated[Balance, typer.Option(help="Which replica gets a request.")]


class Picks(StrEnum):
    """Whose requests a picker is asked about; the others are balanced by the gateway alone."""

    NONE = "none"
    TEXTS = "texts"
    """Of language models: by queue, KV cache and the prompts that each replica holds."""
    ALL = "all"


PicksOption = Annotated[Picks, typer.Option("--picker", help="Which models' requests `brim picker` places.")]


@dataclass(frozen=True, slots=True)
class PickerPlan:
    """A picker that is to be, which the gateway has to know before.

    Attributes:
        place: where it will answer.
        picking: what the gateway does about it.
        classes: class of callers -> its priority.
    """

    place: PickerPlace
    picking: Picking
    classes: Mapping[str, int]


def picker_of(
    plan: PickerPlan | None, fleet: Fleet, front: Gateway, log_file: Path
) -> AbstractContextManager[PickerProcess | None]:
    """The picker that was planned, not started; None where there is none."""
    if plan is None:
        return nullcontext()
    file = file_of(fleet.for_gateway.folder, OTHERS)
    return PickerProcess(plan.place, file, front.admin, plan.classes, log_file, say)


def plan_picker(picks: Picks, services: Sequence[Service]) -> PickerPlan | None:
    """None where there is nothing to pick for."""
    texts = [service.name for service in services if service.generation is not None]
    models = {Picks.NONE: [], Picks.TEXTS: texts, Picks.ALL: [service.name for service in services]}[picks]
    if not models:
        return None
    # Where an engine keeps no prefixes, its prompts need not be looked at: the queues and the KV cache decide.
    kept = [one.name for one in services if one.generation is not None and one.generation.prefix_cache]
    place = choose_place(LOOPBACK)
    classes = {caller.name: caller.priority for service in services for caller in service.callers}
    return PickerPlan(place, picking(place.address, models, kept), classes)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each replica is started with.

    Attributes:
        repository: Triton model repository.
        models: to load.
        cache: of the embedded server.
        canaries: model name -> the row that shows that it works.
        options: of the first replica; the others have ports of their own.
        log_folder: for a file of each.
    """

    repository: Path
    models: Sequence[str]
    cache: Path
    canaries: Mapping[str, Row | None]
    options: ServerOptions
    log_folder: Path

    def server(self, name: str) -> EmbeddedServer:
        """The server of a replica, not started."""
        options = self.options
        if name != "r1":
            options = replace(options, http_port=None, grpc_port=None, metrics_port=None)
        if options.trace_file is not None:
            options = replace(options, trace_file=options.trace_file.with_name(f"{name}.json"))
        return EmbeddedServer(
            self.repository,
            list(self.models),
            cache=self.cache,
            log_file=self.log_folder / f"{name}.log",
            canaries=self.canaries,
            options=options,
            on_progress=lambda text: say(f"{name}: {text}"),
        )


@contextmanager
def fleet_of(
    wanted: Wanted,
    count: int,
    *,
    services: Sequence[Service],
    bounds: Bounds,
    balance: Balance,
    plan: PickerPlan | None = None,
) -> Iterator[Fleet]:
    """Replicas that run, without a gateway yet.

    Args:
        wanted: what each is started with.
        count: how many.
        services: that are served.
        bounds: of each one's supervision.
        balance: how requests are spread.
        plan: of what picks a replica in front of that.

    Raises:
        BrimError: the first one does not start.
    """
    folder = new_run(wanted.cache)
    with Fleet(
        wanted.server,
        count,
        models=[service.name for service in services],
        paced=[service.name for service in services if service.generation is None],
        folder=folder,
        bounds=bounds,
        balance=balance,
        picking=None if plan is None else plan.picking,
        on_progress=say,
    ) as fleet:
        yield fleet


def look_after(fleet: Fleet, front: Gateway, picker: PickerProcess | None = None) -> NoReturn:
    """Keep replicas, gateway and picker going; an exception (a signal's, say) is the way out.

    Raises:
        ServerFailed: every replica was given up, or the gateway ended too often.
    """
    while True:
        done = front.keep_running()
        if done:
            say(done)
        if picker is not None:
            picker.keep_running()
        fleet.tick()
        time.sleep(TICK_S)


def described(fleet: Fleet) -> list[dict[str, object]]:
    """``replicas`` of the ready line."""
    return [fleet.describe(replica) for replica in fleet.replicas]
