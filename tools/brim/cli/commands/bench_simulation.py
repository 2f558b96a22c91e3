"""``brim bench simulation``: the simulator's predictions held against the real server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import join

from rich.table import Table

from brim.bench.simulation import CHECK_FILE, check_simulation
from brim.bench.simulation_check import Judged, SimulationCheck, remarks
from brim.bench.simulation_grid import DEFAULT_EFFORT, grid
from brim.cli.commands.bench_answer import give_answer, interrupted
from brim.cli.commands.serve import new_log, stop_on_signal
from brim.cli.output import say, table_text
from brim.errors import InputError
from brim.paths import Project
from brim.units import us_to_ms


def refuse_options_of_others(benchmark: str, given: Mapping[str, object]) -> None:
    """Refuse what this benchmark does not know.

    Raises:
        InputError: one of the options is given.
    """
    lost = [name for name, value in given.items() if value is not None]
    if lost:
        raise InputError(
            f"`brim bench {benchmark}` takes no {' and no '.join(lost)}", hint="`brim bench --help` says what is whose"
        )


def bench_simulation(
    project: Project, folder: Path, *, points: int | None, seconds: float | None, seed: int, as_json: bool
) -> int:
    """Run the grid, or go on with it where ``folder`` holds a part of it, and show it."""
    effort = DEFAULT_EFFORT if seconds is None else replace(DEFAULT_EFFORT, least_s=seconds, requests=1)
    options = {"--points": points, "--seconds": seconds, "--seed": seed or None}
    given = [word for name, value in options.items() if value is not None for word in (name, f"{value:g}")]
    found: SimulationCheck | None = None
    with stop_on_signal():
        found = check_simulation(
            grid(points),
            cache=project.cache_folder(),
            log_file=new_log(project),
            folder=folder,
            seed=seed,
            effort=effort,
            command=join(["brim", "bench", "simulation", *given]),
            on_progress=say,
        )
    if found is None:
        return interrupted(folder)
    return give_answer(found.exit_code, found.as_json(), lambda: shown(found), folder / CHECK_FILE, as_json=as_json)


def shown(found: SimulationCheck) -> str:
    """For people: the verdict, every point, and remarks."""
    parts = [f"simulation: {found.conditions}", table_text(_verdicts(found.judged)), table_text(_points(found))]
    return "\n".join([*parts, *remarks(found.points)])


def _verdicts(judged: list[Judged]) -> Table:
    table = Table("figure", "median error", "target", "worst", "noise", "verdict", box=None, pad_edge=False)
    for one in judged:
        table.add_row(
            one.figure,
            _percent(one.median),
            f"<= {one.target:.0%}",
            _percent(one.worst),
            _percent(one.noise),
            one.verdict,
        )
    return table


def _points(found: SimulationCheck) -> Table:
    table = Table(
        "batch time", "setting", "rate/s", "load", "p50 ms", "measured", "p99 ms", "measured", "batch", "measured", "",
        box=None, pad_edge=False,
    )  # fmt: skip
    for point in found.points:
        predicted, measured = point.predicted, point.measured
        table.add_row(
            point.curve,
            point.setting,
            f"{point.load:.0f}",
            f"{point.load_ratio:.0%}",
            f"{us_to_ms(predicted.p50_us):.1f}",
            f"{us_to_ms(measured.p50_us):.1f}",
            f"{us_to_ms(predicted.p99_us):.1f}",
            f"{us_to_ms(measured.p99_us):.1f}",
            f"{predicted.mean_batch:.1f}",
            f"{measured.mean_batch:.1f}",
            "generator" if point.limits else "",
        )
    return table


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
