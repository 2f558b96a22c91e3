"""``brim gateway``: Envoy's configuration of the gateway, for an Envoy that something else starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import canaries
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.errors import InputError
from brim.gateway.admission import admissions
from brim.gateway.envoy import validate
from brim.gateway.envoy_config import envoy_config
from brim.gateway.health import canary_of
from brim.gateway.limits import request_limits
from brim.gateway.xds import Listen, Upstream
from brim.paths import find_project
from brim.server.endpoint import HOST_AND_PORT
from brim.service.load import find_services

Port = Annotated[int, typer.Option(min=1, max=65535)]


def gateway(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Services; all when none.")] = None,
    http: Annotated[str, typer.Option(help="host:port of Triton's HTTP side, as Envoy sees it.")] = "127.0.0.1:8000",
    grpc: Annotated[str, typer.Option(help="host:port of its gRPC side.")] = "127.0.0.1:8001",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Port = 8080,
    metrics_port: Port = 9090,
    admin_port: Port = 9901,
    threads: Annotated[
        int, typer.Option(min=1, max=64, help="Envoy's --concurrency; bounds of classes are divided by it.")
    ] = 1,
    profile: Annotated[
        Profile, typer.Option(help="What the server runs: vLLM is not told the classes of callers and their deadlines.")
    ] = Profile.DEFAULT,
    out: Annotated[Path | None, typer.Option(help="Write it there; printed when absent.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Print the gateway's configuration: the one that `brim serve` runs, for Envoy's image."""
    faults = [
        f"{flag} {value}: expected host:port"
        for flag, value in (("--http", http), ("--grpc", grpc))
        if not HOST_AND_PORT.fullmatch(value)
    ]
    if faults:
        raise InputError(
            "\n".join(faults), hint="the address at which Envoy reaches tritonserver, such as tritonserver:8000"
        )
    services = find_services(find_project().services, names or [])
    admitted = admissions(services, profile)
    rows = {name: row for name, row in canaries(services).items() if row is not None}
    document = envoy_config(
        Upstream(http, grpc),
        Listen(host, port, admin_port, host, metrics_port),
        request_limits(services),
        admitted,
        canaries={name: canary_of(row, admitted[name]) for name, row in rows.items()},
        threads=threads,
    )
    trouble = validate(document)
    if trouble:
        raise InputError(f"Envoy does not take this configuration: {trouble}", hint="look at the addresses and ports")
    text = json.dumps(document, indent=1) + "\n"
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        say(f"wrote {out}: envoy --config-path {out} --concurrency {threads}")
    if as_json:
        put_answer("gateway", {"file": None if out is None else str(out), "configuration": document})
    elif out is None:
        put(text)
    return 0
