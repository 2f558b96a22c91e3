"""Where to look: addresses that were given, or those of the ``brim serve`` that runs, by the notes that servers leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from brim.errors import InputError
from brim.fleet.orders import RUNS_FOLDER, read_status
from brim.server import leftovers
from brim.server.endpoint import HOST_AND_PORT, endpoint_from_url

MOST_SERVERS = 64


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server: the name that it is shown by, and ``host:port`` of its HTTP side and of its metrics page, None without one."""

    name: str
    http: str
    metrics: str | None


@dataclass(frozen=True, slots=True)
class Places:
    """What is looked at. ``gateway`` is ``host:port`` of Envoy's own pages, or of its page for Prometheus."""

    servers: tuple[ServerPlace, ...]
    gateway: str | None = None


def given_places(servers: Sequence[str], metrics: Sequence[str] = (), gateway: str | None = None) -> Places:
    """Of addresses that somebody gave. What is missing is taken from the notes, where one of these servers has left one.

    Args:
        servers: HTTP addresses, ``host:port`` or ``http://host:port``.
        metrics: ``host:port`` of their metrics pages in the same order; none: as noted, else the HTTP port plus two.
        gateway: ``host:port`` of the gateway's pages; None: as noted, where all of the servers have the same one.

    Raises:
        InputError: with every fault at once.
    """
    faults = []
    if metrics and len(metrics) != len(servers):
        faults.append(f"--metrics {len(metrics)} times and {len(servers)} servers: give one for each, or none")
    pages: dict[str, Sequence[str]] = {"--metrics": metrics, "--gateway-admin": [] if gateway is None else [gateway]}
    for option, addresses in pages.items():
        faults += [f"{option} {one}: expected host:port" for one in addresses if not HOST_AND_PORT.fullmatch(one)]
    endpoints = []
    for server in servers[:MOST_SERVERS]:
        try:
            endpoints.append(endpoint_from_url(server))
        except InputError as error:
            faults.append(error.message)
    if len(servers) > MOST_SERVERS:
        faults.append(f"{len(servers)} servers: at most {MOST_SERVERS} are looked at")
    doubled = sorted({one.http for one in endpoints if [other.http for other in endpoints].count(one.http) > 1})
    faults += [f"{address}: given twice" for address in doubled]
    if faults:
        raise InputError("; ".join(faults), hint="`brim top --help` shows what it takes")
    noted = noted_places()
    by_address = {server.http: (server, places.gateway) for places in noted.values() for server in places.servers}
    known = [by_address.get(one.http) for one in endpoints]
    metrics_pages: Sequence[str | None] = metrics or [
        found[0].metrics if found else one.metrics for found, one in zip(known, endpoints, strict=True)
    ]
    gateways = {found[1] for found in known if found is not None}
    if gateway is None and len(gateways) == 1 and None not in known:
        (gateway,) = gateways
    return Places(
        tuple(ServerPlace(one.http, one.http, page) for one, page in zip(endpoints, metrics_pages, strict=True)),
        gateway,
    )


def running_places(repository: Path, cache: Path, pid: int | None = None) -> Places:
    """Of the ``brim serve`` or ``brim up`` that serves this repository.

    Args:
        repository: the model repository.
        cache: the project's cache, where a fleet tells its replicas' names.
        pid: of the process, where several run.

    Raises:
        InputError: none runs, or several do and none is named.
    """
    noted = noted_places(repository)
    chosen = {owner: places for owner, places in noted.items() if pid in (None, owner)}
    if not chosen:
        which = "" if pid is None else f" with the process id {pid}"
        raise InputError(
            f"no server of this checkout runs here{which}",
            hint="`brim serve` starts one; for one that others run: --server HOST:PORT",
        )
    if len(chosen) > 1:
        raise InputError(
            f"{len(chosen)} servers of this checkout run here: {', '.join(map(str, sorted(chosen)))}",
            hint="name one: --pid",
        )
    ((owner, places),) = chosen.items()
    return Places(_named(places.servers, cache / RUNS_FOLDER / str(owner)), places.gateway)


def noted_places(repository: Path | None = None) -> dict[int, Places]:
    """Process that serves -> where its servers and its gateway answer, by the notes and the command lines that they name.

    Args:
        repository: of those that serve this model repository only.
    """
    servers: dict[int, list[ServerPlace]] = {}
    gateways: dict[int, str] = {}
    for note in leftovers.living():
        try:
            command = psutil.Process(note.server_pid).cmdline()
        except psutil.Error:
            continue
        options = _options(command)
        if "--http-port" in options:
            if repository is None or Path(options.get("--model-repository", "")) == repository:
                servers.setdefault(note.owner_pid, []).append(_server(options))
        elif "-c" in command:
            admin = _admin_of(Path(command[command.index("-c") + 1]))
            if admin is not None:
                gateways[note.owner_pid] = admin
    return {
        owner: Places(tuple(sorted(found, key=lambda one: one.http)), gateways.get(owner))
        for owner, found in servers.items()
    }


def _options(command: Sequence[str]) -> dict[str, str]:
    return {name: value for name, found, value in (part.partition("=") for part in command) if found}


def _server(options: Mapping[str, str]) -> ServerPlace:
    def address(protocol: str) -> str:
        return f"{options.get(f'--{protocol}-address', '127.0.0.1')}:{options[f'--{protocol}-port']}"

    return ServerPlace(address("http"), address("http"), address("metrics") if "--metrics-port" in options else None)


def _admin_of(configuration: Path) -> str | None:
    try:
        document: Any = json.loads(configuration.read_text(encoding="utf-8"))
        socket = document["admin"]["address"]["socket_address"]
        return f"{socket['address']}:{socket['port_value']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _named(servers: Sequence[ServerPlace], fleet: Path) -> tuple[ServerPlace, ...]:
    """By the names that a fleet gives its replicas."""
    try:
        names = {str(one["http"]): str(one["name"]) for one in read_status(fleet).get("replicas", ())}
    except (InputError, KeyError, TypeError):
        return tuple(servers)
    return tuple(ServerPlace(names.get(one.http, one.http), one.http, one.metrics) for one in servers)
