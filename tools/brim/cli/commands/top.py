"""``brim top``: what running servers do at this moment, in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from brim.cli.app import JsonFlag
from brim.cli.commands.live_places import (
    LEAST_INTERVAL_S,
    MOST_INTERVAL_S,
    ONCE_INTERVAL_S,
    GatewayOption,
    MetricsOption,
    PidOption,
    places,
    promised,
    recorded,
)
from brim.cli.output import put, put_answer, say, table_text
from brim.errors import CouldNotTell, InputError, MissingTool
from brim.live.columns import COLUMNS, in_order, sizes_text
from brim.live.history import History, View
from brim.live.look import Looker
from brim.live.places import Places
from brim.live.seen import MOST_LOOKS, Recording, Seen, read_recording, write_recording, write_text
from brim.units import US_PER_S

INTERVAL_S = 2.0
LOOKS = 6
BUG = 70
"""Exit code."""


def top(
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="HTTP address of a server, once for each; else the one that runs here."),
    ] = None,
    metrics: MetricsOption = None,
    gateway_admin: GatewayOption = None,
    pid: PidOption = None,
    interval_s: Annotated[
        float | None,
        typer.Option(
            min=LEAST_INTERVAL_S,
            max=MOST_INTERVAL_S,
            help=f"Between two looks; {INTERVAL_S:g}, and {ONCE_INTERVAL_S:g} with --once, --record and --picture.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Two looks, a table, and the end.")] = False,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep --looks looks as JSON.")] = None,
    looks: Annotated[int, typer.Option(min=2, max=MOST_LOOKS, help="That --record keeps.")] = LOOKS,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Show what was recorded, and ask nobody.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="The view as a picture.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Rate, goodput, latency, batches, queue, refusals and tokens of every model, one or many replicas."""
    is_live = not (once or record or picture)
    given = bool(server or metrics or gateway_admin or pid is not None)
    _require_sense(as_json=as_json, once=once, given=given, record=record, replay=replay, picture=picture)
    if is_live:
        _require_terminal()
        if replay is not None:
            return _watch_recording(read_recording(replay), interval_s or INTERVAL_S)
        return _watch(places(server or [], metrics or [], gateway_admin, pid), interval_s or INTERVAL_S)
    if replay is not None:
        recording = read_recording(replay)
    else:
        where = places(server or [], metrics or [], gateway_admin, pid)
        recording = recorded(where, looks if record else 2, interval_s or ONCE_INTERVAL_S)
    view = last_view(recording)
    if record is not None:
        write_recording(record, recording)
        put(str(record))
    if picture is not None:
        _draw(recording, picture)
        put(str(picture))
    if once:
        _show(view, recording, as_json=as_json)
    return 0


def last_view(recording: Recording) -> View:
    """What there is to see at the end of a recording.

    Raises:
        CouldNotTell: no server answers there.
    """
    history = History(recording.objectives)
    for look in recording.looks:
        view = history.add(look)
    if all(one.trouble for one in view.servers):
        raise CouldNotTell(
            "; ".join(f"{one.name}: {one.trouble}" for one in view.servers) or "there is no server",
            hint="--server takes the HTTP address of a Triton server that runs, such as 127.0.0.1:8000",
        )
    return view


def _require_sense(
    *, as_json: bool, once: bool, given: bool, record: Path | None, replay: Path | None, picture: Path | None
) -> None:
    """Refuse what does not go together.

    Raises:
        InputError: with every fault at once.
    """
    faults = []
    if as_json and not once:
        faults.append("--json without --once")
    if as_json and (record or picture):
        faults.append("--json with --record or --picture, which print the file's name")
    if replay is not None and given:
        faults.append("--replay with an address: it asks nobody")
    if replay is not None and record is not None:
        faults.append("--replay with --record")
    if picture is not None and picture.suffix != ".svg":
        faults.append(f"--picture {picture}: its name ends in .svg")
    if faults:
        raise InputError("; ".join(faults), hint="`brim top --help` shows what it takes")


def _require_terminal() -> None:
    # Textual reads the one, and draws on the other.
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise InputError("this is no terminal, and the view needs one", hint="--once shows a table, --once --json data")


def _watch(where: Callable[[], Places], interval_s: float) -> int:
    with Looker(where) as looker:
        history = History(promised())
        return _run(looker.look, history, interval_s, history.add(looker.look()))


def _watch_recording(recording: Recording, interval_s: float) -> int:
    history = History(recording.objectives)
    remaining = iter(recording.looks)
    first = history.add(next(remaining))
    return _run(lambda: next(remaining, None), history, interval_s, first)


def _run(look: Callable[[], Seen | None], history: History, interval_s: float, first: View) -> int:
    try:
        from brim.live.terminal import Top
    except ImportError as error:
        raise _no_textual(error) from error
    app = Top(look, history, interval_s=interval_s, first=first)
    app.run()
    # It has told by itself what went wrong.
    return BUG if app.return_code else 0


def _draw(recording: Recording, path: Path) -> None:
    try:
        from brim.live.terminal import picture
    except ImportError as error:
        raise _no_textual(error) from error
    write_text(path, asyncio.run(picture(recording)))


def _no_textual(error: ImportError) -> MissingTool:
    return MissingTool(
        f"the terminal view cannot be drawn: {error}",
        hint="pip install 'brim[top]' brings what it needs; --once works without",
    )


def _show(view: View, recording: Recording, *, as_json: bool) -> None:
    for one in (*view.servers, *([view.gateway] if view.gateway else [])):
        if one.trouble:
            say(f"warning: {one.name}: {one.trouble}")
    if as_json:
        stretch_us = recording.looks[-1].taken_us - recording.looks[0].taken_us
        put_answer("top", {"looks": len(recording.looks), "stretch_us": stretch_us, **view.as_json()})
        return
    put(table_text(_table(view)))
    stretch_s = max((one.wall_us for one in view.models.values()), default=0) / US_PER_S
    say(f"over {stretch_s:.1f} s; - is what cannot be known from what was asked (docs/top.md)")


def _table(view: View) -> Table:
    table = Table("model", *(column.title for column in COLUMNS), "batches x rows", box=None, pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for column in table.columns:
        column.no_wrap = True
    for model in in_order(list(view.models.values()), None):
        replicas = view.by_server[model.model]
        shown = [(model.model, model), *((f"  {one.server}", one) for one in replicas if len(replicas) > 1)]
        for name, figures in shown:
            cells = (column.cell(figures) for column in COLUMNS)
            table.add_row(name, *cells, sizes_text(figures.batch_sizes))
    return table
