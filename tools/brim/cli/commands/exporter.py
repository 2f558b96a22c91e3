"""``brim exporter``: what Triton and the gateway do not tell Prometheus by themselves, on a page of its own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.errors import CouldNotTell, InputError
from brim.server.endpoint import HOST_AND_PORT, LOOPBACK

if TYPE_CHECKING:
    from brim.exporter.serve import Exporter


def exporter(
    server: Annotated[
        str | None,
        typer.Option(help="host:port of tritonserver's HTTP side; left out beside a gateway that stands alone."),
    ] = None,
    gateway_admin: Annotated[
        str | None, typer.Option(help="host:port of Envoy's own pages; of one exporter only, where several look at it.")
    ] = None,
    gateway_metrics: Annotated[
        str | None, typer.Option(help="In its place, where it is out of reach: Envoy's page for Prometheus.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of /metrics; 0: chosen by the system.")] = 0,
    once: Annotated[
        bool, typer.Option("--once", help="Print the page and end; 3 when a source did not answer.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Give Prometheus the batch sizes, busy times, launches and outcomes of one server and its gateway, until SIGTERM or Ctrl-C."""
    # The page's library takes a moment to load, which no other command has to wait for.
    from brim.exporter.serve import Exporter, serve
    from brim.exporter.sources import Sources

    given = {"--server": server, "--gateway-admin": gateway_admin, "--gateway-metrics": gateway_metrics}
    faults = [
        f"{flag} {value}: expected host:port"
        for flag, value in given.items()
        if value is not None and not HOST_AND_PORT.fullmatch(value)
    ]
    if not any(given.values()):
        faults.append("there is nobody to ask: give --server, --gateway-admin or --gateway-metrics")
    if gateway_admin is not None and gateway_metrics is not None:
        faults.append("--gateway-admin and --gateway-metrics are the same gateway: give one of them")
    if faults:
        raise InputError(
            "\n".join(faults), hint="`brim serve --json` prints them as http, gateway_admin and gateway_metrics"
        )
    asked = Exporter(Sources(server, gateway_admin, gateway_metrics), on_change=say)
    if once:
        return asyncio.run(_once(asked, as_json=as_json))

    def ready(address: str) -> None:
        event = {"event": "ready", "metrics": address}
        put(json.dumps(event) if as_json else "\n".join(f"{key}: {value}" for key, value in event.items()))

    with stop_on_signal():
        asyncio.run(serve(asked, host=host, port=port, ready=ready))
    return 0


async def _once(asked: Exporter, *, as_json: bool) -> int:
    async with asked:
        page = await asked.page()
    text, ok = page.text().decode(), all(page.up.values())
    if as_json:
        put_answer("exporter", {"sources": {one.value: up for one, up in page.up.items()}, "page": text}, ok=ok)
    else:
        put(text)
    return 0 if ok else CouldNotTell.exit_code
