"""perf_analyzer's streaming mode against a language model: a second generator, for a cross-check.

Release 2.60.0 speaks to a decoupled model (``-i grpc --streaming``). It announces that it takes the first response for its
latency, and reports the last one's (seen: a p50 of 648 ms where its own export has first responses at 215 ms and last ones at
648 ms). So nothing of its report is used: its export has the time of every request and response and the outputs,
and from those the times are taken by the same definitions as from Brim's own callers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from brim.engine.traffic import Call
from brim.measure.generator import run_watched
from brim.measure.histogram import Latencies
from brim.measure.input_data import write_input_data
from brim.measure.json_lines import append_line, read_lines
from brim.measure.launcher import Launcher, Origin
from brim.measure.measure import ask_target, new_folder
from brim.measure.open_point import Part
from brim.measure.perf_analyzer import MeasurementFailed, any_stability, arguments, failure
from brim.measure.plan import Mode, Plan
from brim.measure.report import parse_csv
from brim.measure.text.plan import TextPlan
from brim.measure.text.point import percentiles
from brim.measure.text.prompts import Prompts, count_words
from brim.measure.text.stream import RETURNS, Heard, TextCallers
from brim.measure.text.token_times import token_times
from brim.server.endpoint import Endpoint
from brim.units import US_PER_S, ns_to_us

FILE_NAME = "text-perf-analyzer.jsonl"
STEPS = 500
"""Different prompts that are handed out in turn."""
EXPORT = "requests.json"
LARGEST_EXPORT = 512 * 1024**2


class StreamCheck(Part):
    """One load, as perf_analyzer's callers saw it. Times are microseconds by percentile, from sending."""

    key: str
    mode: Mode
    value: float
    requests: int = Field(ge=0)
    """In its windows, as the export lists them."""
    responses_per_request: float
    output_tokens_per_s: float
    ttft_us: dict[str, int]
    itl_us: dict[str, int]
    tpot_us: dict[str, int]
    e2e_us: dict[str, int]
    reported_p50_us: int | None
    """What its own report calls latency."""
    perf_analyzer: str
    command: list[str]


def cross_check(
    endpoint: Endpoint,
    model: str,
    plan: TextPlan,
    windows: Plan,
    *,
    launcher: Launcher,
    folder: Path,
    on_check: Callable[[StreamCheck], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[StreamCheck]:
    """The closed loops of a plan, sent by perf_analyzer. Each is in the run folder's file before the next one begins.

    Args:
        endpoint: where the server answers.
        model: name of the model.
        plan: loads and lengths.
        windows: how long perf_analyzer measures; its first three windows count, however much they differ.
        launcher: a perf_analyzer that runs.
        folder: the run folder; checks that it holds already for this plan and configuration are taken over.
        on_check: told of each as it ends.
        on_progress: told what is happening.

    Raises:
        BrimError: the model answers no prompt, or perf_analyzer gives no figure.
    """
    target = ask_target(endpoint, model)
    known = {check.key: check for check in read_checks(folder)}
    found = []
    for callers in dict.fromkeys(plan.concurrencies):
        digest = f"{plan.fingerprint(callers)}/{windows.window_ms}/{windows.max_trials}/{target.config_digest}"
        key = f"{model}/perf_analyzer/concurrency={callers}/{digest}"
        check = known.get(key)
        if check is None:
            on_progress(f"measuring {model} with perf_analyzer: {callers} callers")
            prompts = asyncio.run(_prompts(endpoint, model, plan))
            raw = new_folder(folder, f"stream-{callers}")
            rows = write_prompts(raw / "prompts.json", prompts, plan.calls(callers))
            one = replace(any_stability(windows), values=(float(callers),), input_data=rows)
            check = run_stream_check(launcher, endpoint, model, one, callers, raw, key)
            append_line(folder / FILE_NAME, check.model_dump(mode="json"))
        found.append(check)
        on_check(check)
    return found


async def _prompts(endpoint: Endpoint, model: str, plan: TextPlan) -> Prompts:
    seed = secrets.token_hex(8)
    async with TextCallers(endpoint, model) as callers:
        return Prompts(await count_words(callers, seed), seed, plan.shared_prefix_tokens, str(plan.seed))


def write_prompts(path: Path, prompts: Prompts, calls: Sequence[Call]) -> Path:
    """The input file: one step a prompt, streaming, of a fixed length.

    Args:
        path: the file.
        prompts: makes them.
        calls: in turn.
    """
    rows = []
    for number in range(STEPS):
        call = calls[number % len(calls)]
        options = json.dumps({"max_tokens": call.max_tokens, "ignore_eos": True, "temperature": 0})
        rows.append(
            {
                "text_input": np.array([prompts.prompt(call, number)], np.object_),
                "sampling_parameters": np.array([options.encode()], np.object_),
                **{name: np.array([True]) for name in ("stream", "exclude_input_in_output", *RETURNS)},
            }
        )
    return write_input_data(path, rows)


def run_stream_check(
    launcher: Launcher, endpoint: Endpoint, model: str, plan: Plan, value: float, folder: Path, key: str
) -> StreamCheck:
    """Measure one load and keep the raw output in ``folder``, which is a new one.

    Raises:
        BrimError: perf_analyzer ended without a report or without its export.
    """
    folder = folder.resolve()
    given = [
        *arguments(plan, endpoint, model, value, folder),
        "--streaming",
        f"--profile-export-file={folder / EXPORT}",
    ]
    reads = [plan.input_data.resolve().parent] if plan.input_data else []
    command = launcher.command(given, [folder, *reads])
    finished = run_watched(
        command,
        folder,
        time_limit_s=plan.time_limit_s(),
        memory_limit_bytes=plan.memory_limit_bytes,
        can_sample=launcher.origin is not Origin.DOCKER,
    )
    where = f"perf_analyzer --streaming, {model}, {plan.mode.value} {value:g}"
    report, export = folder / "report.csv", folder / EXPORT
    if finished.ended or not report.is_file() or not export.is_file():
        raise failure(f"{finished.ended}\n{finished.stdout}\n{finished.stderr}", where)
    if export.stat().st_size > LARGEST_EXPORT:
        raise MeasurementFailed(
            f"{where}: its export has {export.stat().st_size:,} bytes, at most {LARGEST_EXPORT:,} are read",
            hint="measure for a shorter time: --window-ms, --max-trials",
        )
    (row,) = parse_csv(report.read_text(encoding="utf-8"))
    heard = parse_export(json.loads(export.read_text(encoding="utf-8", errors="replace")))
    return check_of(heard, key, plan.mode, value, row.latency_us.get(50), launcher.version, command)


def parse_export(document: Mapping[str, Any]) -> list[Heard]:
    """The requests of a profile export as callers that heard them. Times are its own clock's, in microseconds.

    Raises:
        MeasurementFailed: it has another form.
    """
    try:
        (experiment,) = document["experiments"]
        return [_heard(request) for request in experiment["requests"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise MeasurementFailed(
            f"perf_analyzer's export is not as release 2.60.0 writes it: {type(error).__name__}: {error}",
            hint="the file is kept in the run folder",
        ) from error


def _heard(request: Mapping[str, Any]) -> Heard:
    heard = Heard(sent_us=ns_to_us(request["timestamp"]))
    for at_ns, outputs in zip(request["response_timestamps"], request["response_outputs"], strict=True):
        heard.ended_us = ns_to_us(at_ns)
        if "num_output_tokens" not in outputs:
            continue
        heard.pieces.append((heard.ended_us, int(outputs["num_output_tokens"]), str(outputs["text_output"])))
        heard.input_tokens = int(outputs["num_input_tokens"])
        if outputs["finish_reason"] != "None":
            heard.finish_reason = str(outputs["finish_reason"])
    return heard


def check_of(
    heard: Sequence[Heard],
    key: str,
    mode: Mode,
    value: float,
    reported_p50_us: int | None,
    version: str,
    command: Sequence[str],
) -> StreamCheck:
    """The figures of a run.

    Raises:
        MeasurementFailed: no request was answered.
    """
    whole = [one for one in heard if one.complete]
    if not whole:
        raise MeasurementFailed("perf_analyzer's export has no whole text", hint="use longer windows, or shorter texts")
    ttft, itl, tpot, e2e = Latencies(), Latencies(), Latencies(), Latencies()
    for one in whole:
        times = token_times(one, one.sent_us)
        for gap_us in times.itl_us:
            itl.record(gap_us)
        for latencies, us in ((ttft, times.ttft_us), (tpot, times.tpot_us), (e2e, times.e2e_us)):
            if us is not None:
                latencies.record(us)
    span_us = max(one.ended_us for one in whole) - min(one.sent_us for one in whole)
    return StreamCheck(
        key=key,
        mode=mode,
        value=value,
        requests=len(heard),
        responses_per_request=sum(len(one.pieces) for one in whole) / len(whole),
        output_tokens_per_s=sum(one.output_tokens for one in whole) * US_PER_S / max(1, span_us),
        ttft_us=percentiles(ttft),
        itl_us=percentiles(itl),
        tpot_us=percentiles(tpot),
        e2e_us=percentiles(e2e),
        reported_p50_us=reported_p50_us,
        perf_analyzer=version,
        command=list(command),
    )


def read_checks(folder: Path) -> list[StreamCheck]:
    """Those in a run folder; none when there is no file.

    Raises:
        InputError: a whole line is something else.
    """
    return read_lines(folder / FILE_NAME, StreamCheck.model_validate, "a check by perf_analyzer")
