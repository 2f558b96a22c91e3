"""``brim bench``: two ways of doing the same work, in turn on this machine, held against a target."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.table import Table

from brim.bench import fleet, generation, padding, planning, routing_real, runtime_cost, saturation
from brim.bench.comparison import Comparison
from brim.bench.fit import REPEATS, Fit, fit_padding
from brim.cli.app import JsonFlag
from brim.cli.commands.bench_device import bench_device
from brim.cli.commands.bench_generation_simulation import bench_generation_simulation
from brim.cli.commands.bench_overload import bench_overload
from brim.cli.commands.bench_precision import bench_precision
from brim.cli.commands.bench_routing import bench_routing
from brim.cli.commands.bench_simulation import bench_simulation, refuse_options_of_others
from brim.cli.commands.bench_tuning import bench_tuning
from brim.cli.commands.serve import new_log, require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say, table_text
from brim.config.generate import Profile
from brim.errors import InputError
from brim.measure.launcher import find_launcher
from brim.paths import Project, find_project
from brim.service.load import find_service
from brim.service.schema import Service

INTERRUPTED = 130
ANSWER_FILE = "bench.json"


class Benchmark(StrEnum):
    """Which question."""

    PADDING = "padding"
    RUNTIME_COST = "runtime-cost"
    FIT_PADDING = "fit-padding"
    SATURATION = "saturation"
    SIMULATION = "simulation"
    TUNING = "tuning"
    OVERLOAD = "overload"
    FLEET = "fleet"
    ROUTING = "routing"
    PLAN = "plan"
    GENERATION = "generation"
    GENERATION_SIMULATION = "generation-simulation"
    DEVICE = "device"
    PRECISION = "precision"


DEFAULT_SERVICE = {
    Benchmark.PADDING: "text_embedding",
    Benchmark.RUNTIME_COST: "image_classifier",
    Benchmark.FIT_PADDING: "text_embedding",
    Benchmark.GENERATION: "text_generation",
    Benchmark.DEVICE: "image_classifier",
    Benchmark.PRECISION: "image_classifier",
    Benchmark.ROUTING: "text_generation",
}


def bench(
    benchmark: Annotated[
        Benchmark,
        typer.Argument(
            help="padding: mixed-length text, served against loops without a server. runtime-cost: the server's processor "
            "time a request, against a model without checks. fit-padding: the `padding:` block for this machine. "
            "saturation: served throughput against the same model offline, for the model of known batch time and both "
            "shipped models. "
            "simulation: the simulator's predictions against the real server. "
            "tuning: what `brim tune` chooses against an exhaustive sweep. "
            "overload: what the gateway does at up to ten times the capacity. "
            "fleet: replicas of which one is slow, killed or drained, against a healthy fleet. "
            "routing: prompts that share beginnings over simulated or real replicas, policy against policy. "
            "plan: what `brim plan` predicts of one, two and three replicas against what they do. "
            "generation: texts through the server against the engine alone, short prompts behind long ones, and overload. "
            "generation-simulation: the simulator of token models against the engine, and continuous against static batching. "
            "device: what batches of 1 to 100 rows take on a GPU (or with --cpu) without a server. "
            "precision: a model in fp16 and int8 against fp32, speed on this processor and accuracy."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(help="A service; one that is shipped when absent. saturation: or known-time; all three."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Comparisons; 5 at least allow a verdict.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For what is sent.")] = 0,
    points: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="simulation, generation-simulation: so many of the grid's points. routing: requests. device: batch sizes.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=600,
            help="simulation, generation-simulation: length of a point; a few thousand requests, or 20 s, when absent. "
            "overload: length of an open loop. device: after so long no further round begins.",
        ),
    ] = None,
    processor_time: Annotated[
        bool,
        typer.Option(
            "--processor-time",
            help="generation-simulation: an engine of one thread by its processor time, on a machine that others use.",
        ),
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="device: the CPU in the GPU's place.")] = False,
    real: Annotated[
        bool, typer.Option("--real", help="routing: three servers, their gateway and its picker, in six minutes.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder, for the figures and raw output.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Answer a question about speed on this machine; exit code 1 when a target is missed, 3 when noise forbids an answer."""
    project = find_project()
    if benchmark is not Benchmark.ROUTING:
        refuse_options_of_others(benchmark.value, {"--real": real or None})
    if benchmark is Benchmark.GENERATION_SIMULATION:
        refuse_options_of_others(benchmark.value, {"--rounds": rounds, "--cpu": cpu or None})
        service = find_service(project.services, name or DEFAULT_SERVICE[Benchmark.GENERATION])
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-generation-simulation"
        return bench_generation_simulation(
            project, service, folder, points=points, seconds=seconds, processor_time=processor_time, seed=seed,
            as_json=as_json,
        )  # fmt: skip
    refuse_options_of_others(benchmark.value, {"--processor-time": processor_time or None})
    if benchmark is Benchmark.DEVICE:
        service = find_service(project.services, name or DEFAULT_SERVICE[benchmark])
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-device"
        return bench_device(
            project, service, folder, on_gpu=not cpu, points=points, rounds=rounds, seconds=seconds, seed=seed,
            as_json=as_json,
        )  # fmt: skip
    refuse_options_of_others(benchmark.value, {"--cpu": cpu or None})
    if benchmark is Benchmark.TUNING:
        refuse_options_of_others(benchmark.value, {"a service": name, "--points": points, "--seconds": seconds})
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-tuning"
        return bench_tuning(project, folder, rounds=rounds, seed=seed, as_json=as_json)
    if benchmark is Benchmark.OVERLOAD:
        refuse_options_of_others(benchmark.value, {"a service": name, "--points": points})
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-overload"
        return bench_overload(project, folder, rounds=rounds, seconds=seconds, seed=seed, as_json=as_json)
    if benchmark is Benchmark.ROUTING and not real:
        refuse_options_of_others(benchmark.value, {"a service": name, "--rounds": rounds, "--seconds": seconds})
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-routing"
        return bench_routing(folder, points=points, seed=seed, as_json_answer=as_json)
    if benchmark is Benchmark.PRECISION:
        refuse_options_of_others(benchmark.value, {"--points": points, "--seconds": seconds})
        service = find_service(project.services, name or DEFAULT_SERVICE[benchmark])
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-precision"
        return bench_precision(project, service, folder, rounds=rounds, seed=seed, as_json=as_json)
    is_simulation = benchmark is Benchmark.SIMULATION
    refuse_options_of_others(
        benchmark.value,
        {"a service": name, "--rounds": rounds} if is_simulation else {"--points": points, "--seconds": seconds},
    )
    if is_simulation:
        folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-simulation"
        return bench_simulation(project, folder, points=points, seconds=seconds, seed=seed, as_json=as_json)
    if benchmark in (Benchmark.FLEET, Benchmark.PLAN):
        refuse_options_of_others(benchmark.value, {"a service": name})
    services = _services(benchmark, project, name)
    require_artifacts(project, services, Profile.DEFAULT)
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-bench-{benchmark.value}"
    # Before the minutes that it takes to have something to put there.
    folder.mkdir(parents=True, exist_ok=True)
    answer: Comparison | Fit | None = None
    with stop_on_signal():
        if benchmark is Benchmark.SATURATION:
            answer = _saturation(project, services, name, folder, rounds, seed)
        elif benchmark is Benchmark.FLEET:
            effort = fleet.DEFAULT_EFFORT if rounds is None else replace(fleet.DEFAULT_EFFORT, rounds=rounds)
            answer = fleet.fleet(effort=effort, cache=project.cache_folder(), folder=folder, seed=seed, on_progress=say)
        elif benchmark is Benchmark.PLAN:
            planned = planning.DEFAULT_EFFORT if rounds is None else replace(planning.DEFAULT_EFFORT, rounds=rounds)
            answer = planning.planning(
                effort=planned, cache=project.cache_folder(), folder=folder, seed=seed, on_progress=say
            )
        else:
            answer = _answer(benchmark, project, services[0], folder, rounds, seed)
    if answer is None:
        say("interrupted: no answer")
        return INTERRUPTED
    data = answer.as_json()
    (folder / ANSWER_FILE).write_text(json.dumps(data) + "\n", encoding="utf-8")
    code = int(answer.exit_code) if isinstance(answer, Comparison) else 0
    if as_json:
        put_answer("bench", {**data, "folder": str(folder)}, ok=code == 0)
    else:
        put(_shown(answer) if isinstance(answer, Comparison) else answer.block())
        say(f"figures of every round: {folder / ANSWER_FILE}")
    return code


def _answer(
    benchmark: Benchmark, project: Project, service: Service, folder: Path, rounds: int | None, seed: int
) -> Comparison | Fit:
    if benchmark is Benchmark.FIT_PADDING:
        return fit_padding(project, service, seed=seed, repeats=rounds or REPEATS, on_progress=say)
    if benchmark is Benchmark.GENERATION:
        text = generation.DEFAULT_EFFORT if rounds is None else replace(generation.DEFAULT_EFFORT, rounds=rounds)
        return generation.generation(
            project, service, log_file=new_log(project), seed=seed, effort=text, on_progress=say
        )
    if benchmark is Benchmark.ROUTING:
        texts = routing_real.DEFAULT_EFFORT if rounds is None else replace(routing_real.DEFAULT_EFFORT, rounds=rounds)
        return routing_real.routing_real(project, service, effort=texts, folder=folder, seed=seed, on_progress=say)
    if benchmark is Benchmark.PADDING:
        effort = padding.DEFAULT_EFFORT if rounds is None else replace(padding.DEFAULT_EFFORT, rounds=rounds)
        return padding.padding(project, service, log_file=new_log(project), seed=seed, effort=effort, on_progress=say)
    launcher = find_launcher(project.cache_folder(), on_progress=say)
    cost = runtime_cost.DEFAULT_EFFORT if rounds is None else replace(runtime_cost.DEFAULT_EFFORT, rounds=rounds)
    return runtime_cost.runtime_cost(
        project,
        service,
        launcher=launcher,
        folder=folder,
        log_file=new_log(project),
        seed=seed,
        effort=cost,
        on_progress=say,
    )


def _saturation(
    project: Project, services: list[Service], name: str | None, folder: Path, rounds: int | None, seed: int
) -> Comparison:
    effort = saturation.DEFAULT_EFFORT if rounds is None else replace(saturation.DEFAULT_EFFORT, rounds=rounds)
    return saturation.saturation(
        project,
        services,
        known_time=name in (None, saturation.KNOWN_TIME),
        launcher=find_launcher(project.cache_folder(), on_progress=say),
        folder=folder,
        log_file=new_log(project),
        seed=seed,
        effort=effort,
        on_progress=say,
    )


def _services(benchmark: Benchmark, project: Project, name: str | None) -> list[Service]:
    """The services that the question is asked of.

    Raises:
        InputError: there is none of that name, or the question cannot be asked of it.
    """
    if benchmark in (Benchmark.FLEET, Benchmark.PLAN):
        return []
    if benchmark is Benchmark.SATURATION:
        return saturation.services_of(project.services, name)
    service = find_service(project.services, name or DEFAULT_SERVICE[benchmark])
    if benchmark not in (Benchmark.GENERATION, Benchmark.ROUTING):
        _require_shape(benchmark, service)
    return [service]


def _require_shape(benchmark: Benchmark, service: Service) -> None:
    """Refuse a service that the question cannot be asked of.

    Raises:
        InputError: it has several inputs or outputs, or no text where text is needed, or text where none can be.
    """
    kinds = [tensor.dtype.value for tensor in service.inputs]
    text = kinds == ["BYTES"]
    wants_text = benchmark is not Benchmark.RUNTIME_COST
    if len(kinds) != 1 or len(service.outputs) != 1 or text is not wants_text:
        wanted = "one text input" if wants_text else "one input that is no text"
        raise InputError(
            f"{service.name} has inputs of {kinds} and {len(service.outputs)} outputs; "
            f"`brim bench {benchmark.value}` wants {wanted} and one output",
            hint=f"leave the name out: {DEFAULT_SERVICE[benchmark]} is taken",
        )


def _shown(found: Comparison) -> str:
    parts = [f"{found.name}: {found.conditions}"]
    parts += [table_text(_ratios(found))] if found.ratios else []
    parts.append(table_text(_figures(found)))
    stages = found.details.get("stages_us")
    if isinstance(stages, dict):
        parts.append(table_text(_stages(stages)))
    findings = found.details.get("findings")
    if isinstance(findings, list):
        parts += findings
    return "\n".join(parts)


def _ratios(found: Comparison) -> Table:
    table = Table("ratio", "target", "median", "interval", "rounds", "verdict", box=None, pad_edge=False)
    for judged in found.ratios:
        spread = judged.spread
        table.add_row(
            judged.target.ratio,
            str(judged.target),
            f"{spread.median:.3f}",
            f"{spread.low:.3f} to {spread.high:.3f} ({spread.confidence:.0%})",
            str(spread.rounds),
            judged.verdict.value,
        )
    return table


def _figures(found: Comparison) -> Table:
    table = Table("measured", "median", "least", "most", box=None, pad_edge=False)
    for name, values in found.figures.items():
        table.add_row(name, *(f"{pick(values):.2f}" for pick in _PICKS))
    return table


_PICKS: tuple[Callable[..., float], ...] = (median, min, max)


def _stages(stages: dict[str, dict[str, float]]) -> Table:
    names = list(dict.fromkeys(name for spent in stages.values() for name in spent))
    table = Table("stage, us a request", *stages, box=None, pad_edge=False)
    for name in names:
        table.add_row(name, *(f"{spent[name]:.2f}" if name in spent else "-" for spent in stages.values()))
    table.add_row("all", *(f"{sum(spent.values()):.2f}" for spent in stages.values()))
    return table
