"""``brim measure`` by the real perf_analyzer, with Triton's own batch statistics around every point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from brim.cli.commands.measure_target import INTERRUPTED, check_running, kept_in, payload, serve_until_the_end
from brim.cli.commands.serve import require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.measure.input_data import write_input_data
from brim.measure.launcher import find_launcher
from brim.measure.measure import measure as measure_points
from brim.measure.plan import Mode, Plan
from brim.measure.point import FILE_NAME, Point
from brim.paths import Project
from brim.server.endpoint import Endpoint
from brim.service.schema import Service
from brim.units import ms_to_us, us_to_ms

PICTURE = "measurements.svg"
COLUMNS = {
    "load": 14,
    "infer/s": 9,
    "p50 ms": 9,
    "p99 ms": 9,
    "mean batch": 10,
    "fill": 5,
    "duty": 5,
    "stable": 6,
    "limited by": 14,
}
"""Titles and widths: a row is shown as soon as its point has ended, so none can wait for the widest."""


def measure_with_perf_analyzer(
    project: Project,
    service: Service,
    plan: Plan,
    running: Endpoint | None,
    folder: Path,
    seed: int,
    *,
    as_json: bool,
) -> int:
    """Carry a plan out against the running server or one of its own; the exit code.

    Raises:
        BrimError: the server does not start or answer, the folder cannot be one, or perf_analyzer gives no figure.
    """
    shown: list[Point] = []
    show = say if as_json else put

    def on_point(point: Point) -> None:
        if not shown:
            show(_line(list(COLUMNS)))
        shown.append(point)
        show(_line(_cells(point)))
        for remark in _remarks(point):
            say(f"  {remark}")

    finished = False
    with stop_on_signal():
        _measure(project, service, plan, running, folder, seed, on_point)
        finished = True
    if not finished:
        say(f"interrupted: {len(shown)} of {len(plan.values)} points are kept in {folder}")
        say(f"the same command with --out {folder} goes on from there")
        return INTERRUPTED
    picture = _draw(shown, folder, service, plan)
    if as_json:
        points = [point.as_json() for point in shown]
        put_answer("measure", {"points": points, "folder": str(folder), "plot": picture and str(picture)})
    else:
        say(f"raw output and {FILE_NAME}: {folder}")
    return 0


def _measure(
    project: Project,
    service: Service,
    plan: Plan,
    running: Endpoint | None,
    folder: Path,
    seed: int,
    on_point: Callable[[Point], None],
) -> None:
    """Against the running server, or one of its own that ends with this call, however that ends."""
    if running is None:
        require_artifacts(project, [service], Profile.DEFAULT)
    else:
        check_running(running, service.name, plan.protocol)
    launcher = find_launcher(project.cache_folder(), on_progress=say)
    with kept_in(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        plan = replace(plan, input_data=write_input_data(folder / "rows.json", payload(service, seed=seed)))
        endpoint = running or serve_until_the_end(stack, project, service)
        measure_points(
            endpoint,
            service.name,
            plan,
            launcher=launcher,
            folder=folder,
            resume=True,
            on_point=on_point,
            on_progress=say,
        )


def _draw(points: Sequence[Point], folder: Path, service: Service, plan: Plan) -> Path | None:
    """The picture; None where matplotlib is not installed, since the figures are there without it."""
    try:
        from brim.measure.plot import draw
    except ImportError as error:
        say(f"no picture: {error}")
        return None
    loop = "closed loop" if plan.mode is Mode.CONCURRENCY else f"open loop, {plan.distribution.value} arrivals"
    with kept_in(folder):
        picture = draw(
            points,
            folder / PICTURE,
            title=f"{service.name}: {loop}, {plan.protocol.value}",
            slo_latency_us=ms_to_us(service.slo.latency_ms),
            percentile=service.slo.percentile,
        )
    say(f"picture: {picture}")
    return picture


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))


def _cells(point: Point) -> list[str]:
    return [
        f"{point.value:.10g}" + {None: "/s", 1: " caller"}.get(point.concurrency, " callers"),
        _number(point.throughput, 1),
        _number(None if point.p50_us is None else us_to_ms(point.p50_us), 2),
        _number(None if point.p99_us is None else us_to_ms(point.p99_us), 2),
        _number(point.mean_batch, 1),
        _number(point.fill, 2),
        _number(point.duty, 2),
        "yes" if point.stable else "no",
        "generator" if point.generator_bound else "server or load",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _remarks(point: Point) -> list[str]:
    """What a row cannot say."""
    remarks = [point.note] if point.note else []
    if point.generator_bound:
        remarks.append(point.reason)
    if not point.settled:
        remarks.append("other requests were under way: they are in the batch figures, the fill and the duty")
    return remarks
