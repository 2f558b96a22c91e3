"""``brim measure --open-loop``: Brim's own driver, which charges latency from when requests were due."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from brim.cli.commands.measure_target import (
    INTERRUPTED,
    batched_rows,
    check_running,
    kept_in,
    serve_until_the_end,
)
from brim.cli.commands.serve import require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.errors import InputError
from brim.measure.accounting import Objective
from brim.measure.open_measure import OpenPlan, measure_open
from brim.measure.open_point import FILE_NAME, OpenPoint
from brim.measure.plan import Protocol
from brim.measure.schedule import Arrivals, Schedule, schedules, trace_schedule
from brim.paths import Project
from brim.server.endpoint import Endpoint
from brim.service.schema import Arrival, Service
from brim.units import US_PER_S, ms_to_us, us_to_ms

DURATION_S = 10.0
COLUMNS = {
    "load": 22,
    "answers/s": 9,
    "goodput/s": 9,
    "in SLO": 7,
    "p50 ms": 9,
    "p99 ms": 9,
    "mean batch": 10,
    "duty": 5,
    "unanswered": 10,
    "limited by": 14,
}
UNANSWERED = ("refused", "expired", "timed_out", "cancelled", "failed", "not_sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedArrivals:
    """When requests come, as it was typed; None where the service file or a default decides."""

    rates: tuple[float, ...] | None
    arrival: Arrivals | None
    trace: Path | None
    duration_s: float | None
    give_up_ms: float | None
    seed: int

    def check_times(self) -> None:
        """Refuse times that are none.

        Raises:
            InputError: all of them at once.
        """
        given = {"--duration": self.duration_s, "--give-up-ms": self.give_up_ms}
        wrong = [f"{name} {value:g}" for name, value in given.items() if value is not None and not 0 < value < math.inf]
        if wrong:
            raise InputError(f"{', '.join(wrong)}: a number above 0 is expected", hint="both have defaults")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopOptions(AskedArrivals):
    """What was typed."""

    processes: int
    protocol: Protocol
    stability_percent: float


def plan_of(options: OpenLoopOptions, service: Service) -> OpenPlan:
    """What will be carried out.

    Raises:
        InputError: options exclude each other or are out of range.
    """
    options.check_times()
    slo = service.slo
    give_up_ms = slo.caller_gives_up_ms if options.give_up_ms is None else options.give_up_ms
    return OpenPlan(
        schedules_of(options, service),
        Objective(percentile=slo.percentile, latency_us=ms_to_us(slo.latency_ms)),
        protocol=options.protocol,
        give_up_us=None if give_up_ms is None else ms_to_us(give_up_ms),
        processes=options.processes,
        seed=options.seed,
        stability_percent=options.stability_percent,
        command=["brim", *sys.argv[1:]],
    )


def schedules_of(options: AskedArrivals, service: Service) -> list[Schedule]:
    """The runs that are asked for; the service file says what is usual.

    Raises:
        InputError: options exclude each other or are out of range.
    """
    length_us = None if options.duration_s is None else round(options.duration_s * US_PER_S)
    if options.trace is not None:
        if options.rates is not None or options.arrival not in (None, Arrivals.TRACE):
            raise InputError(
                "--trace beside --rate or --arrival", hint="a trace says itself when requests are due; give one of them"
            )
        return [trace_schedule(options.trace, length_us)]
    if options.arrival is Arrivals.TRACE:
        raise InputError("--arrival trace without --trace", hint="--trace FILE names the recorded arrivals")
    traffic = service.traffic
    usual = Arrivals.BURSTY if traffic.arrival is Arrival.BURSTY else Arrivals.POISSON
    expected = (traffic.rate_per_s, *(() if traffic.peak_per_s is None else (traffic.peak_per_s,)))
    return schedules(
        options.arrival or usual,
        options.rates or expected,
        round(DURATION_S * US_PER_S) if length_us is None else length_us,
        seed=options.seed,
    )


def measure_open_loop(
    project: Project,
    service: Service,
    options: OpenLoopOptions,
    running: Endpoint | None,
    folder: Path,
    *,
    as_json: bool,
) -> int:
    """Carry it out against the running server or one of its own; the exit code.

    Raises:
        InputError: what was typed cannot be carried out, or the folder cannot be one.
        ServerFailed: the server does not start or answer, or ended during a run.
    """
    plan = plan_of(options, service)
    shown: list[OpenPoint] = []
    show = say if as_json else put

    def on_point(point: OpenPoint) -> None:
        if not shown:
            show(_line(list(COLUMNS)))
        shown.append(point)
        show(_line(_cells(point)))
        for remark in remarks(point):
            say(f"  {remark}")

    finished = False
    with stop_on_signal():
        _measure(project, service, plan, running, folder, on_point)
        finished = True
    if not finished:
        say(f"interrupted: {len(shown)} of {len(plan.schedules)} points are kept in {folder}")
        say(f"the same command with --out {folder} goes on from there")
        return INTERRUPTED
    if as_json:
        points = [point.as_json() for point in shown]
        put_answer("measure", {"points": points, "folder": str(folder), "plot": None})
    else:
        say(f"{FILE_NAME}: {folder}; `brim report {shlex.quote(str(folder))}` draws it")
    return 0


def _measure(
    project: Project,
    service: Service,
    plan: OpenPlan,
    running: Endpoint | None,
    folder: Path,
    on_point: Callable[[OpenPoint], None],
) -> None:
    if running is None:
        require_artifacts(project, [service], Profile.DEFAULT)
    else:
        check_running(running, service.name, plan.protocol)
    with kept_in(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        endpoint = running or serve_until_the_end(stack, project, service)
        rows = batched_rows(service, seed=plan.seed)
        measure_open(endpoint, service.name, plan, rows, folder=folder, on_point=on_point, on_progress=say)


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))


def _cells(point: OpenPoint) -> list[str]:
    return [
        f"{point.arrivals.value} {point.rate:.6g}/s",
        f"{point.throughput:.1f}",
        _number(point.goodput, 1),
        "-" if point.goodput_ratio is None else f"{100 * point.goodput_ratio:.1f} %",
        _number(None if point.p50_us is None else us_to_ms(point.p50_us), 2),
        _number(None if point.p99_us is None else us_to_ms(point.p99_us), 2),
        _number(point.mean_batch, 1),
        _number(point.duty, 2),
        str(sum(getattr(point, kind) for kind in UNANSWERED)),
        "generator" if point.generator_bound else "server or load",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def remarks(point: OpenPoint) -> list[str]:
    """What a row cannot say: the SLO's verdict, what became of the unanswered, and what the driver did to the figures."""
    found = []
    if point.slo is not None:
        verdict = {True: "met", False: "missed", None: "could not tell"}[point.slo_met]
        found.append(
            f"SLO p{point.slo.percentile:g} within {us_to_ms(point.slo.latency_us):g} ms: {verdict}, "
            f"{point.in_slo} of {point.offered} offered requests were answered in time"
        )
    kinds = [f"{getattr(point, kind)} {kind.replace('_', ' ')}" for kind in UNANSWERED if getattr(point, kind)]
    if kinds:
        found.append(f"not answered: {', '.join(kinds)}")
    found += [f"{count} times: {message}" for message, count in point.messages.items()]
    hidden = {name: us for name, us in point.since_sent_us.items() if name == "99"}
    if point.late and hidden:
        found.append(
            f"{point.late} requests left late; counted from sending, p99 would be {us_to_ms(hidden['99']):.2f} ms"
        )
    found += [f"the driver is the limit: {limit}" for limit in point.limits]
    if not point.settled:
        found.append("other requests were under way: they are in the batch figures, the fill and the duty")
    return found
