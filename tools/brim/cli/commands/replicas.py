"""``brim replicas``: how the replicas of a running ``brim serve --replicas N`` are, and orders for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say, table_text
from brim.errors import CouldNotTell, InputError
from brim.fleet.orders import MOST_REPLICAS, Order, place_order, read_status, runs
from brim.fleet.replica import State
from brim.paths import find_project

POLL_S = 0.1
TAKEN_WITHIN_S = 30.0
DONE_WITHIN_S = 600.0
"""Beyond the deadline of the order: a replica that is started has models to load."""


def replicas(
    drain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take a replica out: what is under way on it may end first.")
    ] = None,
    scale: Annotated[
        int | None, typer.Option(min=1, max=MOST_REPLICAS, help="So many replicas from now on; the newest go first.")
    ] = None,
    deadline_s: Annotated[
        float, typer.Option(min=0, max=86_400, help="What is under way on a replica that goes ends then at latest.")
    ] = 60.0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is done.")] = True,
    pid: Annotated[int | None, typer.Option(help="Of the `brim serve`, where several run.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Show the replicas of a running server; drain one, or change how many there are."""
    folder = _folder(find_project().cache, pid)
    if drain is not None or scale is not None:
        _carry_out(folder, Order(drain=drain, replicas=scale, deadline_s=deadline_s), wait=wait)
    status = read_status(folder)
    if as_json:
        put_answer("replicas", status)
    else:
        put(table_text(_table(status)))
    return 0


def _folder(cache: Path, pid: int | None) -> Path:
    """Of the fleet that is meant.

    Raises:
        InputError: none runs, or several do and none is named.
    """
    found = [path for path in runs(cache) if pid in (None, int(path.name))]
    if len(found) == 1:
        return found[0]
    if not found:
        which = "" if pid is None else f" with the process id {pid}"
        raise InputError(f"no server with replicas runs here{which}", hint="`brim serve --replicas N` starts one")
    raise InputError(
        f"{len(found)} servers with replicas run here: {', '.join(path.name for path in found)}", hint="name one: --pid"
    )


def _carry_out(folder: Path, order: Order, *, wait: bool) -> None:
    """Give an order, and wait until it is taken, and done.

    Raises:
        InputError: the fleet does not do that; it says why.
        CouldNotTell: it does not answer, or is not done with it.
    """
    name = place_order(folder, order)

    def taken(status: dict[str, Any]) -> bool:
        return name in status["orders"]

    answer = _until(folder, taken, TAKEN_WITHIN_S, "has taken the order")["orders"][name]
    if not answer["ok"]:
        raise InputError(answer["message"], hint=answer["hint"])
    if not wait:
        return
    say("the order is taken")

    def done(status: dict[str, Any]) -> bool:
        states = {replica["name"]: replica["state"] for replica in status["replicas"]}
        if order.drain is not None:
            return order.drain not in states
        return len(states) == order.replicas and not set(states.values()) & {State.STARTING, State.STOPPING}

    _until(folder, done, order.deadline_s + DONE_WITHIN_S, "is done with it")


def _until(folder: Path, holds: Callable[[dict[str, Any]], bool], within_s: float, what: str) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while not holds(status := read_status(folder)):
        if time.monotonic() > deadline:
            raise CouldNotTell(
                f"{folder}: not seen within {within_s:g} s that the server {what}", hint="see its output"
            )
        time.sleep(POLL_S)
    return status


def _table(status: dict[str, Any]) -> Table:
    table = Table("replica", "state", "http", "grpc", "metrics", "pid", "", box=None, pad_edge=False)
    for one in status["replicas"]:
        cells = (one[key] for key in ("name", "state", "http", "grpc", "metrics", "pid", "detail"))
        table.add_row(*("-" if cell is None else str(cell) for cell in cells))
    return table
