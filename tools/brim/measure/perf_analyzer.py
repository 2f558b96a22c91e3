"""One perf_analyzer run for one point of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from brim.errors import BrimError, CouldNotTell, InputError, ServerFailed
from brim.measure.generator import Usage, run_watched
from brim.measure.launcher import Launcher, Origin
from brim.measure.plan import LEAST_TRIALS, Mode, Plan, Protocol, usable_cores
from brim.measure.report import (
    Console,
    Figures,
    UnreadableReport,
    explanation,
    parse_console,
    parse_csv,
    parse_request_latencies,
    percentiles_us,
)
from brim.server.endpoint import Endpoint

ANY_STABILITY_PERCENT = 1_000_000.0


class MeasurementFailed(CouldNotTell):
    """perf_analyzer ended without a figure."""

    code = "measurement_failed"


class RequestsFailed(MeasurementFailed):
    """A request failed, at which perf_analyzer gives up."""

    code = "requests_failed"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave.

    Attributes:
        command: the command line.
        folder: where its raw output lies.
        figures: the report's row; None when the windows never agreed, or the run had to be ended.
        further_us: the plan's further percentiles -> latency; empty without figures.
        console: windows and remarks.
        usage: what the generator cost.
        ended: why the run was ended from here; empty when it ended by itself.
    """

    command: tuple[str, ...]
    folder: Path
    figures: Figures | None
    further_us: dict[float, int]
    console: Console
    usage: Usage
    ended: str


def any_stability(plan: Plan) -> Plan:
    """The plan that reports its first three windows however much they differ."""
    return replace(plan, stability_percent=ANY_STABILITY_PERCENT, max_trials=LEAST_TRIALS)


def arguments(plan: Plan, endpoint: Endpoint, model: str, value: float, folder: Path) -> list[str]:
    """The arguments of perf_analyzer for one value of a plan. Reports go to ``folder``.

    Requests carry one row (``-b 1``) and are asynchronous: synchronous ones take a thread a caller, whatever
    ``--max-threads`` says.
    """
    url = endpoint.grpc if plan.protocol is Protocol.GRPC else endpoint.http
    given = [
        *("-m", model, "-u", url, "-i", plan.protocol.value, "-b", "1", "--async"),
        *(f"--max-threads={plan.threads(usable_cores())}", f"--measurement-interval={plan.window_ms}"),
        *(f"--max-trials={plan.max_trials}", f"--stability-percentage={plan.stability_percent:f}"),
        *(f"--percentile={plan.percentile}", "-v", "--verbose-csv", "-f", str(folder / "report.csv")),
    ]
    if plan.mode is Mode.CONCURRENCY:
        given.append(f"--concurrency-range={value:.0f}")
    else:
        given += [f"--request-rate-range={value:f}", f"--request-distribution={plan.distribution.value}"]
    if plan.input_data is not None:
        given.append(f"--input-data={plan.input_data.resolve()}")
    for name, shape in sorted(plan.shapes.items()):
        given += ["--shape", f"{name}:{','.join(str(size) for size in shape)}"]
    if plan.percentiles:
        given.append(f"--profile-export-file={folder / 'requests.json'}")
    return given


def run_perf_analyzer(
    launcher: Launcher, endpoint: Endpoint, model: str, plan: Plan, value: float, folder: Path
) -> Run:
    """Measure one value and keep the raw output (``stdout.txt``, ``stderr.txt``, ``report.csv``) in ``folder``.

    Windows that never agree are no error: ``figures`` is None and ``console.stable`` False.

    Raises:
        InputError: perf_analyzer refuses the model's name, the input data or a shape.
        ServerFailed: nothing answers at the address.
        RequestsFailed: a request failed; the text is the server's own.
        MeasurementFailed: it ended without a figure for another reason, such as a window without an answer.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("report.csv", "requests.json"):
        (folder / name).unlink(missing_ok=True)
    reads = [plan.input_data.resolve().parent] if plan.input_data else []
    command = launcher.command(arguments(plan, endpoint, model, value, folder), [folder, *reads])
    finished = run_watched(
        command,
        folder,
        time_limit_s=plan.time_limit_s(),
        memory_limit_bytes=plan.memory_limit_bytes,
        can_sample=launcher.origin is not Origin.DOCKER,
    )
    text = finished.stdout + "\n" + finished.stderr
    console = parse_console(text)
    figures, further_us = None, {}
    # Its exit status does not tell: the wrapper in the PyPI package drops it. The report is there, or it is not.
    if (folder / "report.csv").is_file() and not finished.ended:
        figures = _only_row(parse_csv((folder / "report.csv").read_text(encoding="utf-8")), value)
        if plan.percentiles:
            exported = (folder / "requests.json").read_text(encoding="utf-8", errors="replace")
            further_us = percentiles_us(parse_request_latencies(exported), plan.percentiles)
    elif console.stable and not finished.ended:
        raise failure(text, f"perf_analyzer, {model}, {plan.mode.value} {value:g}")
    return Run(tuple(command), folder, figures, further_us, console, finished.usage, finished.ended)


def failure(text: str, where: str) -> BrimError:
    """The error for a run that gave no report, from what it printed."""
    said = explanation(text)
    message = f"{where}: {said}"
    if "Thread [" in text or "Failed to retrieve results" in text:
        return RequestsFailed(
            message,
            hint="perf_analyzer stops at the first request that fails: check that the model answers this input; "
            "it cannot measure overload, use `brim load` for that",
        )
    if "failed to connect" in text or "Couldn't connect" in text or "onnection refused" in text:
        return ServerFailed(message, hint="start the server first (`brim serve`), or check the address")
    if "unknown model" in text or "Failed to init manager inputs" in text or "Failed to parse" in text:
        return InputError(message, hint=_input_hint(text))
    if "No valid requests recorded" in text:
        return MeasurementFailed(message, hint="no answer came within a window: use a longer one")
    return MeasurementFailed(message, hint="the raw output is kept in the run folder")


def _input_hint(text: str) -> str:
    if "dynamic shape" in text:
        return "the model has variable dimensions: give input data, or a shape for each such input"
    if "data in json" in text:
        return "the input data's numbers must match the model's types: FP32 wants 1.0, not 1"
    return "check the model's name and the input data"


def _only_row(rows: list[Figures], value: float) -> Figures:
    if len(rows) != 1:
        raise UnreadableReport(f"the report for {value:g} has {len(rows)} rows, 1 was expected")
    return rows[0]
