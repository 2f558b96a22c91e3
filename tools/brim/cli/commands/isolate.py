"""``brim isolate``: the conformance suite against a service of ours, or any KServe v2 endpoint."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.errors import InputError, ModelFileError
from brim.isolation.judge import Verdict
from brim.isolation.record import write_results
from brim.isolation.suite import Options, Result, chosen, run_suite
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint, endpoint_from_url
from brim.service.load import find_service, find_services
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service
from brim_export.known_answers import known_answers

ROWS = 200
INTERRUPTED = 130
DEFAULTS = Options()
COLUMNS = {
    "check": 20,
    "": 4,
    "sent": 7,
    "right": 7,
    "own error": 9,
    "cancelled": 9,
    "wrong": 6,
    "neighbour errors": 16,
    "hung": 5,
    "mean batch": 10,
    "seconds": 8,
}


def isolate(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A service; its rows are sent.")] = None,
    url: Annotated[
        str | None, typer.Option(help="A server that already runs, by its HTTP address; one is started when absent.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model at --url; NAME when absent.")] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The gRPC port at --url; the HTTP port plus one when absent.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Rows of the largest checks.")] = DEFAULTS.requests,
    callers: Annotated[int, typer.Option(min=2, help="Callers at once.")] = DEFAULTS.callers,
    seed: Annotated[int, typer.Option(min=0, help="For every random choice.")] = DEFAULTS.seed,
    tolerance: Annotated[
        float, typer.Option(min=0, help="How far an answer may be from the one alone, relative to 1 + its size.")
    ] = DEFAULTS.tolerance,
    answer_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="A caller without an answer by then counts as hung.")
    ] = DEFAULTS.answer_timeout_s,
    check: Annotated[list[str] | None, typer.Option(help="Only this check; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for isolation.json and JUnit XML.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Prove that no caller is hurt by a neighbour: own answers, own errors, whatever the others send or do."""
    if name is None and (url is None or model is None):
        raise InputError(
            "neither a service nor --url with --model is given",
            hint="brim isolate NAME, or brim isolate --url U --model M",
        )
    if url is None and (model is not None or grpc_port is not None):
        raise InputError("--model and --grpc-port go with --url", hint="a server that is started here needs neither")
    chosen(check or [])
    project = find_project() if name is not None else None
    service = find_service(project.services, name) if project and name is not None else None
    words = [
        *([name] if name is not None else []),
        *(["--url", url] if url is not None else []),
        *(["--model", model] if model is not None else []),
        *(["--grpc-port", str(grpc_port)] if grpc_port is not None else []),
        *("--requests", str(requests), "--seed", str(seed)),
        *(["--callers", str(callers)] if callers != DEFAULTS.callers else []),
        *(["--tolerance", str(tolerance)] if tolerance != DEFAULTS.tolerance else []),
        *(["--answer-timeout-s", str(answer_timeout_s)] if answer_timeout_s != DEFAULTS.answer_timeout_s else []),
    ]
    options = Options(
        requests=requests,
        seed=seed,
        callers=callers,
        answer_timeout_s=answer_timeout_s,
        tolerance=tolerance,
        checks=tuple(check or ()),
        repeat=shlex.join(["brim", "isolate", *words]),
    )
    target = model or (service.name if service else "")
    shown: list[Result] = []
    show = say if as_json else put

    def on_result(result: Result) -> None:
        if not shown:
            show(_line(list(COLUMNS)))
        shown.append(result)
        show(_line(_cells(result)))
        if result.message:
            say(f"  {result.message}")

    finished = False
    with stop_on_signal(), ExitStack() as stack:
        endpoint = (
            replace(endpoint_from_url(url, grpc_port=grpc_port), metrics=None)
            if url is not None
            else _serve(stack, project, service)
        )
        rows = good_rows(service, seed=seed) if service else []
        run_suite(endpoint, target, options, rows=rows, on_result=on_result, on_progress=say)
        finished = True
    if not finished:
        say(f"interrupted after {len(shown)} checks")
        return INTERRUPTED
    ok = all(result.ok for result in shown)
    about = {"model": target, "ok": ok, "requests": requests, "callers": callers, "seed": seed, "tolerance": tolerance}
    files = write_results(out, about, shown) if out else []
    if as_json:
        checks = [result.as_json() for result in shown]
        put_answer("isolate", {**about, "checks": checks, "files": [str(path) for path in files]}, ok=ok)
    else:
        for path in files:
            say(f"written: {path}")
        failed = [result.id for result in shown if not result.ok]
        say(f"isolation is broken: {', '.join(failed)}" if failed else f"nobody was hurt in {len(shown)} checks")
    return 0 if ok else 1


def good_rows(service: Service, *, seed: int) -> list[Row]:
    """Varied rows where the model's source has some, else the samples with random ones behind them."""
    known = known_answers(service, ROWS, seed=seed)
    if known:
        return known.requests
    samples = sample_rows(service)[:ROWS]
    return [*samples, *random_rows(service, ROWS - len(samples), seed=seed)]


def _serve(stack: ExitStack, project: Project | None, service: Service | None) -> Endpoint:
    """A server of our own with the service, and one other service for ``two_models`` where one is exported."""
    if project is None or service is None:
        raise AssertionError("a service is given when no address is")
    require_artifacts(project, [service], Profile.DEFAULT)
    services = [service, *_companion(project, service)]
    server = EmbeddedServer(
        project.model_repository,
        [one.name for one in services],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries(services),
        on_progress=say,
    )
    return stack.enter_context(server).endpoint


def _companion(project: Project, service: Service) -> list[Service]:
    for one in find_services(project.services, []):
        if one.name != service.name:
            try:
                require_artifacts(project, [one], Profile.DEFAULT)
            except ModelFileError:
                continue
            return [one]
    return []


def _line(cells: Sequence[str]) -> str:
    widths = list(COLUMNS.values())
    first = cells[0].ljust(widths[0])
    return "  ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])


def _cells(result: Result) -> list[str]:
    state = "skip" if result.skipped else "ok" if result.ok else "FAIL"
    batch = "-" if result.mean_batch is None else f"{result.mean_batch:.1f}"
    counts = [str(getattr(result, verdict.value)) for verdict in Verdict]
    return [result.id, state, str(result.sent), *counts, batch, f"{result.took_us / 1e6:.1f}"]
