"""``brim picker``: names a replica for each request that the gateway asks about."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.errors import InputError
from brim.router.decisions import DecisionLog, replay
from brim.router.policy import POLICIES
from brim.router.pools import Pools
from brim.router.replica_file import Server
from brim.router.view import Settings
from brim.router.watch import Looks, Watch
from brim.server.endpoint import HOST_AND_PORT, LOOPBACK
from brim.units import US_PER_S

STANDARD = Settings()
US_PER_MS = 1_000
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: chosen by the system.")]


def picker(
    replica: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=HTTP,GRPC[,METRICS]", help="A replica, host:port of each; once for each replica."),
    ] = None,
    eds: Annotated[
        Path | None, typer.Option(help="File that Envoy finds the replicas in, as JSON; it is watched.")
    ] = None,
    eds_metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of replicas whose file does not say where their page is.")
    ] = None,
    gateway_admin: Annotated[
        str | None, typer.Option(help="host:port of Envoy's own pages: replicas that it holds for sick get nothing.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Port = 0,
    metrics_port: Port = 0,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=POLICY", help=f"Instead of what suits the model: {', '.join(POLICIES)}."),
    ] = None,
    caller_class: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME=PRIORITY", help="Of x-brim-class; 1 is the most important."),
    ] = None,
    scrape_ms: Annotated[int, typer.Option(min=10, max=60_000, help="Pause between two looks at a page.")] = 100,
    stale_ms: Annotated[
        int, typer.Option(min=10, max=600_000, help="A page that is older says nothing.")
    ] = STANDARD.stale_us // US_PER_MS,
    settle_ms: Annotated[
        int, typer.Option(min=0, max=60_000, help="A request that is younger than this may not be on a page.")
    ] = 20,
    least_match_tokens: Annotated[
        int, typer.Option(min=1, help="A shorter common beginning of prompts is none.")
    ] = STANDARD.least_match_tokens,
    prefix_weight: Annotated[
        float, typer.Option(min=0, help="Requests of queue that it is worth to hold all of a prompt.")
    ] = STANDARD.prefix_weight,
    load_factor: Annotated[
        float, typer.Option(min=1, help="A replica is taken for its prefix up to so many times the mean.")
    ] = STANDARD.load_factor,
    seed: Annotated[int, typer.Option(help="Tells equal replicas apart.")] = 0,
    decisions: Annotated[Path | None, typer.Option(help="Write every decision there, as lines of JSON.")] = None,
    replay_file: Annotated[
        Path | None, typer.Option("--replay", help="Make the decisions of such a file again, and serve nothing.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Speak Envoy's ext_proc, and name a replica for each request: by its queue, its KV cache and the prompts that it holds.

    The gateway goes on by itself, to the replica with the fewest requests under way, while there is no picker or none answers.
    """
    if replay_file is not None:
        return _replay(replay_file, as_json)
    servers, policies, classes = _given(replica or [], policy or [], caller_class or [], gateway_admin)
    if not servers and eds is None:
        raise InputError(
            "there is no replica to pick", hint="name them: --replica NAME=HTTP,GRPC,METRICS, or --eds FILE"
        )
    settings = Settings(
        seed=seed,
        stale_us=stale_ms * US_PER_MS,
        settle_us=settle_ms * US_PER_MS,
        least_match_tokens=least_match_tokens,
        prefix_weight=prefix_weight,
        load_factor=load_factor,
    )
    pools = Pools(settings, policies)
    looks = Looks(
        servers=tuple(servers),
        file=eds,
        metrics_port=eds_metrics_port,
        gateway_admin=gateway_admin,
        every_s=scrape_ms * US_PER_MS / US_PER_S,
    )
    watch = Watch(pools, looks, say)
    log = None if decisions is None else DecisionLog(decisions)
    # Envoy's messages take a third of a second to load, which no other command has to wait for.
    from brim.router.picker import Picker
    from brim.router.serve import Listening, serve

    served = Picker(pools, watch, classes=classes, decisions=log)

    def ready(where: Listening) -> None:
        event = {"event": "ready", "picker": where.grpc, "metrics": where.metrics, "replicas": list(pools.names)}
        put(json.dumps(event) if as_json else "\n".join(f"{key}: {value}" for key, value in event.items()))

    try:
        with stop_on_signal():
            asyncio.run(serve(served, pools, watch, host=host, port=port, metrics_port=metrics_port, ready=ready))
    finally:
        if log is not None:
            log.close()
    return 0


def _given(
    replicas: list[str], policies: list[str], classes: list[str], gateway_admin: str | None
) -> tuple[list[Server], dict[str, str], dict[str, int]]:
    """What the flags say.

    Raises:
        InputError: a flag says something else than it should; all of them at once.
    """
    servers, faults = [], []
    for text in replicas:
        name, _, rest = text.partition("=")
        http, grpc, *page = rest.split(",") if "," in rest else ("", "")
        if name and len(page) < 2 and all(map(HOST_AND_PORT.fullmatch, (http, grpc, *page))):
            servers.append(Server(name, http, grpc, page[0] if page else None))
        else:
            faults.append(f"--replica {text}: expected NAME=HTTP,GRPC or NAME=HTTP,GRPC,METRICS, each host:port")
    chosen = dict(text.rpartition("=")[::2] for text in policies)
    faults += [
        f"--policy {model}={name}: expected MODEL=POLICY, one of {', '.join(POLICIES)}"
        for model, name in chosen.items()
        if not model or name not in POLICIES
    ]
    ranks = dict(text.rpartition("=")[::2] for text in classes)
    faults += [
        f"--class {name}={rank}: expected NAME=PRIORITY, a number from 1"
        for name, rank in ranks.items()
        if not name or not re.fullmatch(r"[1-9]\d{0,8}", rank)
    ]
    if gateway_admin is not None and not HOST_AND_PORT.fullmatch(gateway_admin):
        faults.append(f"--gateway-admin {gateway_admin}: expected host:port")
    if len({server.name for server in servers}) < len(servers):
        faults.append("--replica: two have one name")
    if faults:
        raise InputError("\n".join(faults), hint="`brim picker --help` shows what it takes")
    return servers, chosen, {name: int(rank) for name, rank in ranks.items()}


def _replay(path: Path, as_json: bool) -> int:
    try:
        with path.open(encoding="utf-8") as lines:
            result = replay(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}", hint="name a file of `brim picker --decisions FILE`"
        ) from error
    same = not result.differing
    if as_json:
        put_answer("picker", {"decisions": result.decisions, "differing": list(result.differing)}, ok=same)
    else:
        put(f"{result.decisions} decisions made again, {len(result.differing)} differ")
        for line in result.differing[:10]:
            put(f"line {line}")
    return 0 if same else 1
