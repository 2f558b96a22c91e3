"""What ``brim top`` and ``brim report --live`` look at, and what was promised to callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from brim.cli.output import say
from brim.errors import InputError, ServiceFileError
from brim.live.look import Looker
from brim.live.places import Places, given_places, running_places
from brim.live.seen import Objectives, Recording
from brim.paths import find_project
from brim.server.endpoint import HOST_AND_PORT
from brim.service.load import find_services
from brim.service.schema import Service
from brim.units import ms_to_us

LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.5, 60.0
ONCE_INTERVAL_S = 3.0
"""Longer than the second in which our gateway adds up its histograms."""
MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT", help="Of a server's metrics page, one for each in the same order; else as noted."
    ),
]
GatewayOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Of the gateway's own pages, or its `gateway_metrics`.")
]
PidOption = Annotated[int | None, typer.Option(help="Of the `brim serve`, where several run.")]


def places(
    servers: Sequence[str], metrics: Sequence[str], gateway: str | None, pid: int | None
) -> Callable[[], Places]:
    """Where to look, asked before each look.

    Raises:
        InputError: what was given makes no sense.
    """
    if servers:
        if pid is not None:
            raise InputError("--pid with an address: it names the server to look at, too", hint="leave one of them out")
        known = given_places(servers, metrics, gateway)
        return lambda: known
    if metrics:
        raise InputError("--metrics without an address of a server", hint="give the servers as well")
    if gateway is not None and not HOST_AND_PORT.fullmatch(gateway):
        raise InputError(f"--gateway-admin {gateway}: expected host:port", hint="such as 127.0.0.1:9901")
    project = find_project()

    def running() -> Places:
        found = running_places(project.model_repository.resolve(), project.cache, pid)
        return found if gateway is None else Places(found.servers, gateway)

    return running


def promised() -> dict[str, Objectives]:
    """What the services of this checkout promise; nothing outside of one."""
    try:
        services = find_services(find_project().services, [])
    except ServiceFileError as error:
        say(f"warning: {error.message}: no share in the SLO is shown")
        return {}
    except InputError:
        return {}
    return {service.name: objectives_of(service) for service in services}


def objectives_of(service: Service) -> Objectives:
    """A service's SLO."""
    slo = service.slo
    return Objectives(
        slo.percentile,
        ms_to_us(slo.latency_ms),
        None if slo.ttft_ms is None else ms_to_us(slo.ttft_ms),
        None if slo.tpot_ms is None else ms_to_us(slo.tpot_ms),
    )


def recorded(look: Callable[[], Places], looks: int, interval_s: float) -> Recording:
    """So many looks, so far apart.

    Raises:
        InputError: there is nowhere to look at.
    """
    with Looker(look) as looker:
        found = [looker.look()]
        for _ in range(looks - 1):
            time.sleep(interval_s)
            found.append(looker.look())
    return Recording(promised(), tuple(found))
