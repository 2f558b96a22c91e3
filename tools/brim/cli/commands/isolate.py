"""``brim isolate``: the conformance suite against a service of ours, or any KServe v2 endpoint."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from brim.cli.app import JsonFlag
from brim.cli.commands.serve import canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import people, put, put_answer, say
from brim.config.generate import Profile
from brim.errors import InputError, ModelFileError
from brim.gateway.admission import Admission, admissions
from brim.gateway.envoy import Gateway
from brim.gateway.limits import request_limits
from brim.isolation.checks import chosen
from brim.isolation.fuzz_plan import Window
from brim.isolation.judge import Verdict
from brim.isolation.record import write_results
from brim.isolation.result import Options, Result, totals
from brim.isolation.suite import run_suite
from brim.isolation.text import checks as text_checks
from brim.isolation.text.special import patient_repository
from brim.isolation.text.suite import is_language_model, run_text_suite
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint, endpoint_from_url
from brim.server.supervise import Supervisor
from brim.service.load import find_service, find_services
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service
from brim_export.known_answers import known_answers

ROWS = 200
INTERRUPTED = 130
DEFAULTS = Options()
TEXT_DEFAULTS = Options(requests=400, callers=32, answer_timeout_s=120.0)
"""Of a language model, whose answers take seconds and not milliseconds."""
ABOUT = ("requests", "callers", "seed", "tolerance", "poison_share")
RATIO = "poison_throughput_ratio"
SHOWN_EVERY = 64
TOLD_EVERY_S = 15.0
COLUMNS = {
    "check": 21,
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
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Rows of the largest checks ({DEFAULTS.requests:,}), or calls of a language model ({TEXT_DEFAULTS.requests}).",
        ),
    ] = None,
    callers: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Callers at once; {DEFAULTS.callers}, or {TEXT_DEFAULTS.callers} of a language model, when absent.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For every random choice.")] = DEFAULTS.seed,
    tolerance: Annotated[
        float, typer.Option(min=0, help="How far an answer may be from the one alone, relative to 1 + its size.")
    ] = DEFAULTS.tolerance,
    answer_timeout_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="A caller without an answer by then counts as hung "
            f"({DEFAULTS.answer_timeout_s:g}; {TEXT_DEFAULTS.answer_timeout_s:g} of a language model).",
        ),
    ] = None,
    poison_share: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="Share of bad requests where there are few of them.")
    ] = DEFAULTS.poison_share,
    allow_reload: Annotated[
        bool, typer.Option("--allow-reload", help="The model at --url may be loaded anew by its repository API.")
    ] = False,
    fuzz_only: Annotated[
        str | None, typer.Option(help="Repeat just these of the check `fuzz`, such as http:150-199.")
    ] = None,
    gateway: Annotated[
        bool,
        typer.Option("--gateway/--no-gateway", help="Whether callers go through the gateway, as they do in service."),
    ] = True,
    check: Annotated[list[str] | None, typer.Option(help="Only this check; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for isolation.json, JUnit XML and a page.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Prove that no caller is hurt by a neighbour: own answers, own errors, whatever the others send or do."""
    if name is None and (url is None or model is None):
        raise InputError(
            "neither a service nor --url with --model is given",
            hint="brim isolate NAME, or brim isolate --url U --model M",
        )
    if url is None and (model is not None or grpc_port is not None or allow_reload):
        raise InputError(
            "--model, --grpc-port and --allow-reload go with --url",
            hint="a server that is started here needs none of them",
        )
    given = Options(
        seed=seed,
        tolerance=tolerance,
        poison_share=poison_share,
        checks=tuple(check or ()),
        may_reload=allow_reload,
        fuzz_only=str(Window.parse(fuzz_only)) if fuzz_only is not None else "",
    )
    project = find_project() if name is not None else None
    service = find_service(project.services, name) if project and name is not None else None
    target = model or (service.name if service else "")
    foreign = _foreign(url, grpc_port) if url is not None else None
    texts = is_language_model(foreign, target) if foreign else service is not None and service.generation is not None
    usual = TEXT_DEFAULTS if texts else DEFAULTS
    options = replace(
        given,
        requests=requests or usual.requests,
        callers=callers or usual.callers,
        answer_timeout_s=answer_timeout_s or usual.answer_timeout_s,
    )
    (text_checks.chosen if texts else chosen)(options.checks)
    options = replace(options, repeat=_repeat(options, usual, name, url, model, grpc_port, gateway=gateway))
    shown: list[Result] = []
    show = say if as_json else put
    began = perf_counter_ns()

    progress = _Progress()

    def on_result(result: Result) -> None:
        with progress.aside():
            if not shown:
                show(_line(list(COLUMNS)))
            shown.append(result)
            show(_line(_cells(result)))
            if result.message:
                say(f"  {result.message}")

    finished = False
    with stop_on_signal(), ExitStack() as stack:
        running = _Running(foreign) if foreign else _serve(stack, project, service, gateway=gateway)
        if texts:
            suite = run_text_suite
        else:
            rows = good_rows(service, seed=seed) if service else []
            suite = partial(run_suite, rows=rows, guarded=foreign is None and gateway)
        with progress:
            suite(
                running.endpoint,
                target,
                options,
                own=running.server,
                supervisor=running.supervisor,
                on_result=on_result,
                on_progress=progress.step,
                on_count=progress.count,
            )
        finished = True
    if not finished:
        say(f"interrupted after {len(shown)} checks")
        return INTERRUPTED
    ok = all(result.ok for result in shown)
    about = {
        "model": target,
        "ok": ok,
        **{key: value for key, value in asdict(options).items() if key in ABOUT},
        "took_us": (perf_counter_ns() - began) // 1_000,
        "totals": totals(shown),
        "poison_throughput_ratio": _ratio(shown),
    }
    files = write_results(out, about, shown) if out else []
    if as_json:
        checks = [result.as_json() for result in shown]
        put_answer("isolate", {**about, "checks": checks, "files": [str(path) for path in files]}, ok=ok)
    else:
        for path in files:
            say(f"written: {path}")
        say(_summary(shown))
    return 0 if ok else 1


def _repeat(
    options: Options,
    usual: Options,
    name: str | None,
    url: str | None,
    model: str | None,
    grpc_port: int | None,
    *,
    gateway: bool,
) -> str:
    """The command that does the same again, but for ``--check``."""
    words = [
        *([name] if name is not None else []),
        *(["--url", url] if url is not None else []),
        *(["--model", model] if model is not None else []),
        *(["--grpc-port", str(grpc_port)] if grpc_port is not None else []),
        *("--requests", str(options.requests), "--seed", str(options.seed)),
    ]
    for flag, value, default in (
        ("--callers", options.callers, usual.callers),
        ("--tolerance", options.tolerance, usual.tolerance),
        ("--answer-timeout-s", options.answer_timeout_s, usual.answer_timeout_s),
        ("--poison-share", options.poison_share, usual.poison_share),
    ):
        words += [flag, str(value)] if value != default else []
    words += ["--allow-reload"] if options.may_reload else []
    words += [] if gateway else ["--no-gateway"]
    return shlex.join(["brim", "isolate", *words])


def _ratio(results: Sequence[Result]) -> float | None:
    """What poison leaves of the throughput; None where it was not measured."""
    found = [result.figures[RATIO] for result in results if RATIO in result.figures]
    return found[0] if found else None


def _summary(results: Sequence[Result]) -> str:
    counts = totals(results)
    parts = " + ".join(f"{counts[verdict.value]:,} {verdict.value.replace('_', ' ')}" for verdict in Verdict)
    failed = [result.id for result in results if not result.ok]
    skipped = sum(result.skipped for result in results)
    verdict = (
        f"isolation is broken: {', '.join(failed)}"
        if failed
        else f"nobody was hurt in {len(results) - skipped} checks, {skipped} had nothing to check"
    )
    return f"{counts['sent']:,} requests sent = {parts}\n{verdict}"


def good_rows(service: Service, *, seed: int) -> list[Row]:
    """Varied rows where the model's source has some, else the samples with random ones behind them."""
    known = known_answers(service, ROWS, seed=seed)
    if known:
        return known.requests
    samples = sample_rows(service)[:ROWS]
    return [*samples, *random_rows(service, ROWS - len(samples), seed=seed)]


@dataclass(frozen=True, slots=True)
class _Running:
    """Where callers go; the server itself, and what starts it again when it dies, where it is our own."""

    endpoint: Endpoint
    server: EmbeddedServer | None = None
    supervisor: Supervisor | None = None


def _foreign(url: str, grpc_port: int | None) -> Endpoint:
    """Somebody else's server; where its metrics page is, nobody says."""
    return replace(endpoint_from_url(url, grpc_port=grpc_port), metrics=None)


def _serve(stack: ExitStack, project: Project | None, service: Service | None, *, gateway: bool) -> _Running:
    """A server of our own with the service, and one other service for ``two_models`` where one is exported."""
    if project is None or service is None:
        raise AssertionError("a service is given when no address is")
    require_artifacts(project, [service], Profile.DEFAULT)
    services = [service, *([] if service.generation else _companion(project, service))]
    repository = project.model_repository
    if service.generation:
        repository = stack.enter_context(patient_repository(repository, service.name))
    server = EmbeddedServer(
        repository,
        [one.name for one in services],
        cache=project.cache,
        log_file=new_log(project),
        canaries=canaries(services),
        on_progress=say,
    )
    stack.enter_context(server)
    supervisor = stack.enter_context(Supervisor(server, on_event=lambda event: say(str(event))))
    if not gateway:
        return _Running(server.endpoint, server, supervisor)
    # Without the bounds of the service: how long an answer takes beside thousands of bad requests is not the question here.
    front = Gateway(
        server.endpoint,
        log_file=new_log(project, "gateway"),
        limits=request_limits(services),
        admitted={name: _unbounded(bounds) for name, bounds in admissions(services, Profile.DEFAULT).items()},
        canaries=canaries(services),
    )
    return _Running(stack.enter_context(front).endpoint, server, supervisor)


def _unbounded(bounds: Admission) -> Admission:
    """What a gateway must know of a model, and nothing by which it refuses anybody."""
    classes = tuple(replace(one, in_flight=None, timeout_us=None) for one in bounds.classes)
    return Admission(classes=classes if bounds.tells else (), pieces=bounds.pieces, tells=bounds.tells)


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


class _Progress:
    """A bar on a terminal; elsewhere a sentence now and then."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} answers"), TimeElapsedColumn())
        self.bar = Progress(SpinnerColumn(), *columns, console=people, transient=True, redirect_stdout=False)
        self.task = self.bar.add_task("starting", total=None)
        self.counted = 0
        self.told = time.monotonic()

    def __enter__(self) -> Self:
        if people.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if people.is_terminal:
            self.bar.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The bar is away while something is written to the same terminal."""
        if people.is_terminal:
            self.bar.stop()
        try:
            yield
        finally:
            if people.is_terminal:
                self.bar.start()

    def step(self, what: str) -> None:
        """The next thing is begun."""
        self.counted = 0
        self.told = time.monotonic()
        if people.is_terminal:
            self.bar.reset(self.task, description=what, total=None)
        else:
            say(what)

    def count(self, more: int) -> None:
        """So many more answers have come."""
        self.counted += more
        if self.counted % SHOWN_EVERY:
            return
        if people.is_terminal:
            self.bar.update(self.task, completed=self.counted)
        elif time.monotonic() - self.told > TOLD_EVERY_S:
            self.told = time.monotonic()
            say(f"  {self.counted:,} answers so far")
