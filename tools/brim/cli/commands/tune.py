"""``brim tune``: the batcher's settings of a service, searched in the simulator and proven on the real server."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.table import Table

import brim
from brim.batcher.settings import settings_of
from brim.bench.fit import fit_padding
from brim.cli.app import JsonFlag
from brim.cli.commands.isolate import good_rows
from brim.cli.commands.serve import canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.commands.tune_text import refuse_for_batchers, tune_text
from brim.cli.output import put, put_answer, say, table_text
from brim.config.files import config_path, differences
from brim.config.generate import Profile
from brim.errors import CouldNotTell, InputError
from brim.measure.batch_time_run import FILE_NAME as BATCH_TIME_FILE
from brim.measure.plan import Protocol, usable_cores
from brim.measure.sweep import read_config
from brim.measure.text.lengths import EXPECTED
from brim.paths import Project, find_project
from brim.runtime.session import cores
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.service.load import find_service
from brim.service.schema import Service
from brim.tune.answer import document
from brim.tune.baseline import measure_baseline
from brim.tune.demand import demand_of
from brim.tune.derive import derived
from brim.tune.predict import Served
from brim.tune.refit import served_of, with_service_times
from brim.tune.rewrite import rewrite
from brim.tune.run import Run
from brim.tune.server_bench import ServerBench, ceiling_per_s
from brim.tune.text.tuning import Effort as TextEffort
from brim.tune.tuning import Tuning
from brim.tune.tuning import tune as tune_service
from brim.tune.verify import MOST_SETTINGS, Effort, usual_run_us
from brim.tune.weigh import weigh
from brim.units import ms_to_us, us_to_ms

USUAL_TEXT_RUN_US = TextEffort().run_us
CHOICE_FILE = "choice.json"
RUNS_FILE = "measurements.jsonl"
INTERRUPTED = 130
FIT_REPEATS = 3
"""Passes over the shapes of a padded run; a cutting by these times is compared on the server before it is believed."""


def tune(
    name: Annotated[str, typer.Argument(help="A service.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the choice into the service file and the configurations.")
    ] = False,
    settings: Annotated[
        int, typer.Option(min=1, max=MOST_SETTINGS, help="Settings that are measured on the server at most.")
    ] = MOST_SETTINGS,
    repeats: Annotated[int, typer.Option(min=1, max=3, help="How often each of them is measured.")] = 2,
    run_ms: Annotated[
        int | None,
        typer.Option(
            min=200,
            max=120_000,
            help="Length of one run; six times the SLO, 2 to 5 s, when absent; of a language model 20 s.",
        ),
    ] = None,
    tau_budget_ms: Annotated[
        int, typer.Option(min=500, max=60_000, help="Time for measuring batch times; of a language model, step times.")
    ] = 15_000,
    budget_s: Annotated[
        int, typer.Option(min=10, max=7_200, help="After this time no setting is measured again, and no further one.")
    ] = 300,
    protocol: Annotated[
        Protocol, typer.Option(help="How requests travel; over HTTP the generator needs less of the machine.")
    ] = Protocol.HTTP,
    step_time: Annotated[
        Path | None, typer.Option(help="Language model: what steps take; measured when absent.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help=f"Language model: lengths of prompts: {EXPECTED}; sharegpt when absent.")
    ] = None,
    texts: Annotated[str | None, typer.Option(help="Language model: the same of texts.")] = None,
    kv_blocks_max: Annotated[
        int | None,
        typer.Option(min=1, help="Language model: largest KV cache; as the service file says when absent."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For everything that is drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for choice.json and the measurements.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Choose preferred sizes, queue delay and instances for the SLO and the traffic of a service; of a language model, tokens
    of a step, texts at once, KV cache and what of it the batch class keeps. Exit 1 when nothing meets it."""
    project = find_project()
    service = find_service(project.services, name)
    folder = out or project.runs / f"tune-{service.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    if service.generation is not None:
        if apply:
            _check_committed(project, service)
        return tune_text(
            project,
            service,
            folder,
            effort=TextEffort(settings, repeats, USUAL_TEXT_RUN_US if run_ms is None else ms_to_us(run_ms)),
            step_time=step_time,
            prompts=prompts,
            texts=texts,
            most_blocks=kv_blocks_max,
            calibration_s=tau_budget_ms / 1_000,
            budget_s=budget_s,
            seed=seed,
            apply=apply,
            as_json=as_json,
        )
    refuse_for_batchers(
        {"--step-time": step_time, "--prompts": prompts, "--texts": texts, "--kv-blocks-max": kv_blocks_max}
    )
    require_artifacts(project, [service], Profile.DEFAULT)
    if apply:
        _check_committed(project, service)
    slo_us = ms_to_us(service.slo.latency_ms)
    effort = Effort(
        usual_run_us(slo_us) if run_ms is None else ms_to_us(run_ms),
        repeats=repeats,
        settings=settings,
        ceiling_per_s=ceiling_per_s(protocol),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUNS_FILE).write_bytes(b"")
    began = monotonic()
    conditions: dict[str, Any] = {
        "brim": brim.__version__,
        "cores": usable_cores(),
        "load_average": os.getloadavg()[0],
        "protocol": protocol.value,
        "seed": seed,
        "run_us": effort.run_us,
        "repeats": effort.repeats,
        "settings": effort.settings,
        "generator_ceiling_per_s": effort.ceiling_per_s,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    runs: list[Run] = []

    def on_run(run: Run) -> None:
        runs.append(run)
        with (folder / RUNS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(run.as_json()) + "\n")
        say(
            f"  {run.rate_per_s:.0f}/s: {run.in_slo_ratio:.1%} in time, p99 "
            f"{'-' if run.p99_us is None else format(us_to_ms(run.p99_us), '.4g')} ms"
        )

    tuning: Tuning | None = None
    with stop_on_signal(), tempfile.TemporaryDirectory(prefix="tune-", dir=project.cache_folder()) as scratch:
        served, about = _baseline(project, service, seed, tau_budget_ms, folder)
        rows = good_rows(service, seed=seed)
        model_folder = project.model_repository / service.name
        bench = ServerBench(
            model_folder,
            lambda repository: _serve(project, service, repository),
            rows,
            demand_of(service),
            scratch=Path(scratch),
            protocol=protocol,
        )
        weighed = weigh(
            service,
            served,
            bench.serve,
            model_folder,
            rows,
            cores=cores(),
            fitted=lambda: fit_padding(project, service, seed=seed, repeats=FIT_REPEATS, on_progress=say).cost,
            on_progress=say,
        )
        about["weighed"] = weighed.about
        config = read_config(config_path(project.model_repository, service.name, Profile.DEFAULT))
        tuning = tune_service(
            service,
            settings_of(config),
            weighed.served,
            bench,
            effort,
            runtimes=weighed.runtimes,
            seed=seed,
            out_of_time=lambda: monotonic() - began > budget_s,
            on_run=on_run,
            on_progress=say,
        )
    conditions["took_us"] = round((monotonic() - began) * 1e6)
    if tuning is None:
        partial = {"service": service.name, "interrupted": True, "conditions": conditions, "choice": None}
        _write(folder, {**partial, "runs": [run.as_json() for run in runs]})
        say(f"interrupted: {len(runs)} runs are kept in {folder / RUNS_FILE}")
        return INTERRUPTED
    return _answer(project, service, tuning, {**conditions, **about}, folder, apply, as_json)


def _check_committed(project: Project, service: Service) -> None:
    """Refuse to apply to configurations that somebody wrote by hand: they would be lost.

    Raises:
        InputError: a committed configuration is not what the service file gives.
    """
    found = differences(project.model_repository, service)
    if found:
        names = ", ".join(str(one.path.relative_to(project.root)) for one in found)
        raise InputError(
            f"--apply would write over what services/{service.name}.yaml does not give: {names}",
            hint=f"`brim config {service.name} --check` shows the differences, `--write` settles them",
        )


def _baseline(
    project: Project, service: Service, seed: int, budget_ms: int, folder: Path
) -> tuple[Served, dict[str, Any]]:
    """tau(b) of the current configuration, as the simulator starts with it; and what else to tell of it."""
    rows = good_rows(service, seed=seed)
    with _serve(project, service, project.model_repository) as endpoint:
        found = measure_baseline(
            endpoint,
            service.name,
            rows,
            max_rows=service.max_batch_size,
            seed=seed,
            budget_us=ms_to_us(budget_ms),
            on_progress=say,
        )
    found.batch_time.write(folder / BATCH_TIME_FILE)
    served = served_of(found.batch_time, service.max_batch_size)
    if found.in_service is not None:
        served = with_service_times(
            served,
            {size: float(time_us) for size, time_us in found.in_service.execution_us_by_size.items()},
            found.in_service.executions_by_size,
        )
    say(
        f"a batch takes {us_to_ms(served.time_us[0]):.4g} ms with one row and {us_to_ms(served.time_us[-1]):.4g} ms with "
        f"{served.max_rows}; a request {us_to_ms(served.overhead_us):.4g} ms besides"
    )
    return served, {"batch_time": found.batch_time.as_json(), "server": found.batch_time.provenance["server"]}


@contextmanager
def _serve(project: Project, service: Service, repository: Path) -> Iterator[Endpoint]:
    # Several servers run at once where ways to run a batch are compared: a log for each.
    log_file = new_log(project, "tune")
    log_file = log_file.with_name(f"{log_file.stem}.{repository.name}.log")
    server = EmbeddedServer(
        repository, [service.name], cache=project.cache, log_file=log_file, canaries=canaries([service])
    )
    with server:
        yield server.endpoint


def _answer(
    project: Project,
    service: Service,
    tuning: Tuning,
    conditions: dict[str, Any],
    folder: Path,
    apply: bool,
    as_json: bool,
) -> int:
    batch_time = conditions.pop("batch_time")
    data = document(tuning, conditions.pop("weighed"))
    data = {**data, "conditions": {**conditions, "simulations": tuning.simulations}, "batch_time": batch_time}
    change = rewrite(project, service, tuning.best.setting, derived(service, tuning.served, tuning.best.setting))
    applied = False
    unsure = _unsure(tuning)
    if apply and tuning.choice.point is not None and unsure is None:
        change.write()
        applied = True
    data = {**data, "diff": change.diff, "applied": applied, "folder": str(folder)}
    _write(folder, data)
    if unsure is not None:
        if not as_json:
            say(_words(data))
        raise CouldNotTell(
            f"{unsure}. Everything that was seen is in {folder / CHOICE_FILE}",
            hint="measure on a quiet machine, with --run-ms and --repeats higher, or from a larger one",
        )
    if as_json:
        put_answer("tune", data, ok=tuning.slo_met)
    else:
        put(_words(data))
    say(f"{CHOICE_FILE}, {RUNS_FILE} and {BATCH_TIME_FILE}: {folder}")
    if change.diff and not applied and tuning.choice.point is not None:
        say(f"nothing was changed; `brim tune {service.name} --apply` writes the choice")
    return 0 if tuning.slo_met else 1


def _unsure(tuning: Tuning) -> str | None:
    """Why there is no verdict; None where there is one."""
    if tuning.noise:
        return "; ".join(tuning.noise)
    measured, needed_per_s = tuning.best.measured, tuning.demand.needed_per_s
    if needed_per_s > tuning.effort.ceiling_per_s and measured.limited_by_generator:
        return (
            f"{needed_per_s:g} requests a second are needed, and more than {tuning.effort.ceiling_per_s:g} cannot be sent from "
            "this machine"
        )
    return None


def _write(folder: Path, data: dict[str, Any]) -> None:
    (folder / CHOICE_FILE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _words(data: dict[str, Any]) -> str:
    """The measured settings, the loads, the sentence, the differences."""
    table = Table("setting", "predicted/s", "measured/s", "off by", "p50 ms", "p99 ms", "batch", "duty", "fill", "")
    for one in data["measurements"]:
        setting, measured, predicted = one["setting"], one["measured"], one["predicted"]
        off = one["deviation"]
        table.add_row(
            _setting_words(setting),
            _number(predicted["goodput_per_s"], 1),
            _number(measured["goodput_per_s"], 1),
            "-" if off is None else f"{off:+.1%}",
            _milliseconds(measured["p50_us"]),
            _milliseconds(measured["p99_us"]),
            _number(measured["mean_batch"], 1),
            _percent(measured["duty_at_capacity"]),
            _percent(_ratio(measured["mean_batch_at_capacity"], data["max_batch_size"])),
            ", ".join(word for word in ("choice", "default", "current") if one[f"is_{word}"]),
        )
    loads = Table("load under the choice", "requests/s", "p50 ms", "p99 ms", "mean batch")
    lone = data["behaviour"]["lone"]
    loads.add_row("one caller", "-", _milliseconds(lone["latency_us"]), "-", "1.0")
    for name, seen in data["behaviour"].items():
        if name != "lone":
            loads.add_row(
                f"{name} ({seen['share']:.0%} of capacity)",
                _number(seen["rate_per_s"], 0),
                _milliseconds(seen["p50_us"]),
                _milliseconds(seen["p99_us"]),
                _number(seen["mean_batch"], 1),
            )
    looked = data["candidates"]
    parts: Sequence[str] = [
        table_text(table),
        "p50, p99 and batch at the expected rate; duty and fill at capacity",
        table_text(loads),
        data["why"],
        f"limit: {data['limits']['why']}",
        *(f"{name}: {about['why']}" for name, about in data["weighed"].items()),
        f"{looked['generated']:,} settings generated, {looked['generated'] - looked['refused']:,} of them sound, "
        f"{looked['simulated']:,} simulated, {looked['measured']} measured on the server",
    ]
    bounds = data["choice"]
    if bounds:
        parts = [*parts, f"gateway: {bounds['in_flight']} in flight, timeout {us_to_ms(bounds['timeout_us']):g} ms"]
    if data["way_out"]:
        parts = [*parts, f"way out: {data['way_out']}"]
    parts = [*parts, *(f"note: {note}" for note in data["notes"])]
    return "\n".join([*parts, data["diff"]] if data["diff"] else parts)


def _setting_words(setting: dict[str, Any]) -> str:
    words = f"{setting['preferred'] or 'none'}, {us_to_ms(setting['max_queue_delay_us']):g} ms, x{setting['instances']}"
    if setting["threads"] is not None:
        words += f", {setting['threads']} threads"
    return words if setting["padding"] is None else f"{words}, other cutting"


def _ratio(value: float | None, whole: int) -> float | None:
    return None if value is None else value / whole


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _milliseconds(value_us: int | None) -> str:
    return "-" if value_us is None else f"{us_to_ms(value_us):.2f}"
