"""``brim gateway``: Envoy's configuration of the gateway, for an Envoy that something else starts."""

from __future__ import annotations

import json
import tempfile
from enum import StrEnum
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
from brim.gateway.picking import BodyMode, picking
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import Replicas
from brim.gateway.xds import Document, Listen, Upstream
from brim.paths import find_project
from brim.server.endpoint import HOST_AND_PORT
from brim.server.tracing import asked_of, hides_contexts
from brim.service.load import find_services


class PickerKind(StrEnum):
    """Who names the replica of a request."""

    NONE = "none"
    BRIM = "brim"
    UPSTREAM = "upstream"
    """The endpoint picker of the Gateway API Inference Extension."""


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
    replicas: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Many replicas in place of one server, as files that Envoy watches there say: EDS."
        ),
    ] = None,
    picker: Annotated[PickerKind, typer.Option(help="Who names the replica of a request; needs --replicas.")] = (
        PickerKind.NONE
    ),
    picker_at: Annotated[str, typer.Option(help="host:port of the picker.")] = "picker:9002",
    out: Annotated[Path | None, typer.Option(help="Write it there; printed when absent.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Print the gateway's configuration: the one that `brim serve` runs, for Envoy's image."""
    faults = [
        f"{flag} {value}: expected host:port"
        for flag, value in (("--http", http), ("--grpc", grpc), ("--picker-at", picker_at))
        if not HOST_AND_PORT.fullmatch(value)
    ]
    if picker is not PickerKind.NONE and replicas is None:
        faults.append(f"--picker {picker.value} without --replicas: one server is not picked from")
    if faults:
        raise InputError(
            "\n".join(faults), hint="the address at which Envoy reaches tritonserver, such as tritonserver:8000"
        )
    services = find_services(find_project().services, names or [])
    admitted = admissions(services, profile)
    rows = {name: row for name, row in canaries(services).items() if row is not None}
    texts = [service.name for service in services if service.generation is not None]
    mode = BodyMode.FULL_DUPLEX if picker is PickerKind.UPSTREAM else BodyMode.BUFFERED
    chosen = None if picker is PickerKind.NONE else picking(picker_at, list(admitted), texts, mode)

    def document_for(folder: Path | None) -> Document:
        return envoy_config(
            Upstream(http, grpc) if folder is None else Replicas(folder, picking=chosen),
            Listen(host, port, admin_port, host, metrics_port),
            request_limits(services),
            admitted,
            canaries={name: canary_of(row, admitted[name]) for name, row in rows.items()},
            threads=threads,
            untraced=hides_contexts(asked_of(services)),
        )

    document = document_for(replicas)
    with tempfile.TemporaryDirectory(prefix="brim-") as scratch:
        # Envoy takes no configuration whose files are not there.
        ReplicaFiles(Path(scratch), list(admitted))
        trouble = validate(document if replicas is None else document_for(Path(scratch)))
    if trouble:
        raise InputError(f"Envoy does not take this configuration: {trouble}", hint="look at the addresses and ports")
    text = json.dumps(document, indent=1) + "\n"
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        named = " --service-cluster gateway --service-node gateway" if replicas else ""
        say(f"wrote {out}: envoy --config-path {out} --concurrency {threads}{named}")
    if as_json:
        put_answer("gateway", {"file": None if out is None else str(out), "configuration": document})
    elif out is None:
        put(text)
    return 0
