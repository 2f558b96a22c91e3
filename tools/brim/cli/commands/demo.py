"""``brim demo``: what Brim does when things go wrong, to look at."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from brim.bench.alert_watch import Change
from brim.bench.overload_alert import ALERT, Effort, OneModel, Shown, overload_alert
from brim.cli.app import JsonFlag
from brim.cli.commands.bench_answer import INTERRUPTED
from brim.cli.commands.serve import new_log, stop_on_signal
from brim.cli.output import put, put_answer, say, table_text
from brim.paths import find_project

ANSWER_FILE = "demo.json"
STANDARD = Effort()


class Demo(StrEnum):
    """What is shown."""

    OVERLOAD = "overload"


def demo(
    what: Annotated[
        Demo,
        typer.Argument(
            help="overload: an alert that fires at three times the capacity and ends after it, on a real Prometheus."
        ),
    ],
    factor: Annotated[float, typer.Option(help="Offered load over capacity.")] = STANDARD.factor,
    divide_times_by: Annotated[
        float,
        typer.Option(help="The alerts' times are so many times shorter; 1 takes those of the service file, and hours."),
    ] = STANDARD.divided_by,
    most_s: Annotated[
        float, typer.Option(help="Of the overload until the alert fires, and of the calm until it has ended.")
    ] = STANDARD.most_s,
    seed: Annotated[int, typer.Option(min=0, help="For arrivals.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Show it; exit 1 when it does not happen. About two minutes."""
    effort = Effort(factor=factor, divided_by=divide_times_by, most_s=most_s)
    project = find_project()
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-demo-{what.value}"
    shown: Shown | None = None
    with stop_on_signal():
        shown = overload_alert(
            OneModel(),
            effort,
            cache=project.cache_folder(),
            folder=folder,
            log_file=new_log(project),
            seed=seed,
            on_progress=say,
            on_change=lambda change: say(_words(change)),
        )
    if shown is None:
        say("interrupted: no answer")
        return INTERRUPTED
    (folder / ANSWER_FILE).write_text(json.dumps(shown.as_json()) + "\n", encoding="utf-8")
    if as_json:
        put_answer("demo", {**shown.as_json(), "folder": str(folder)}, ok=shown.ok)
    else:
        put(_table(shown))
        say(f"the whole answer: {folder / ANSWER_FILE}")
    return 0 if shown.ok else 1


def _words(change: Change) -> str:
    return f"{change.at_s:6.1f} s  {change.alert} {change.state.value} ({change.who})"


def _table(shown: Shown) -> str:
    table = Table("after s", "alert", "is", "about", box=None, pad_edge=False)
    for change in shown.changes:
        table.add_row(f"{change.at_s:.1f}", change.alert, change.state.value, change.who)
    figures = Table("at the height of it", "", box=None, pad_edge=False)
    for name, value in shown.figures.items():
        figures.add_row(name, f"{value:.4g}")
    end = (
        f"{ALERT} fired and ended"
        if shown.ok
        else f"{ALERT} did not fire and end: {[state.value for state in shown.states]}"
    )
    return "\n".join([table_text(table), table_text(figures), end])
