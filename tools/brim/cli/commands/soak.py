"""``brim soak``: steady load through the gateway for a long time, and whether everything stays as it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from brim.cli.app import JsonFlag
from brim.cli.commands.measure_target import INTERRUPTED, ROWS, batched_rows, kept_in, numbers
from brim.cli.commands.serve import STOP_SIGNALS, canaries, new_log, require_artifacts, stop_on_signal
from brim.cli.output import people, put, put_answer, say
from brim.cli.whole_answers import require_whole_answers
from brim.config.generate import Profile
from brim.errors import InputError
from brim.gateway.admission import Admission, admissions
from brim.gateway.envoy import Gateway
from brim.gateway.limits import RequestLimits, request_limits
from brim.limits import DEFAULT_TRITON_RELEASE
from brim.measure.callers import Row
from brim.measure.known_time import INPUT, OUTPUT, WIDTH, KnownTime, write_known_time
from brim.measure.plan import Protocol, usable_cores
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer
from brim.server.supervise import Supervisor
from brim.service.load import find_service
from brim.service.schema import BatchTime, Service
from brim.soak.run import RESULT_FILE, SoakPlan, SoakResult, Stack, run_soak
from brim.soak.sample import Sample
from brim.soak.verdict import Answer
from brim.units import US_PER_S, us_to_ms
from brim_export.known_answers import known_answers

KNOWN_TIME = "known_time"
PICTURE = "soak.svg"
TOLD_EVERY_S = 15.0
MIB = 1 << 20


def soak(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A service; its rows are sent.")] = None,
    duration: Annotated[float, typer.Option(help="Seconds of steady load.")] = 600.0,
    known_time: Annotated[
        str | None,
        typer.Option(
            metavar="TAU0_US,ALPHA_US",
            help="In place of a service the model whose batch of b rows takes TAU0_US + ALPHA_US * b.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second; a part of the capacity, which is measured first, when absent."),
    ] = None,
    load: Annotated[float, typer.Option(help="That part.")] = 0.9,
    protocol: Annotated[Protocol, typer.Option(help="How requests travel.")] = Protocol.HTTP,
    seed: Annotated[int, typer.Option(min=0, help="For the rows.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder, for the samples, the verdict and a picture.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Send at a steady rate for a long time; exit code 0 when throughput stayed and nothing grew, 1 when not."""
    if (name is None) is (known_time is None):
        raise InputError(
            "both a service and --known-time" if name else "neither a service nor --known-time",
            hint="give one: brim soak NAME --duration 600",
        )
    plan = SoakPlan(duration, rate, load, protocol)
    project = find_project()
    subject = _known_time(known_time) if known_time is not None else _service(project, name or "", seed)
    folder = out or project.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-soak-{subject.name}"
    result: SoakResult | None = None
    progress = _Progress(plan.duration_s)
    with kept_in(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with stop_on_signal(), ExitStack() as stack:
        running = _serve(stack, project, subject)
        with progress:
            result = run_soak(
                running,
                subject.name,
                subject.rows,
                plan,
                folder=folder,
                truth=subject.truth,
                most_callers=subject.admission.in_flight,
                stopping=_told(),
                on_progress=say,
                on_sample=progress.show,
                about=_about(
                    {
                        "--known-time": known_time,
                        "--duration": f"{duration:.10g}",
                        "--rate": None if rate is None else f"{rate:.10g}",
                        "--load": f"{load:.10g}" if rate is None else None,
                        "--protocol": protocol.value,
                        "--seed": str(seed),
                    },
                    name,
                ),
            )
    if result is None:
        say("interrupted before the load began: no verdict")
        return INTERRUPTED
    picture = _draw(result, folder, subject.name)
    answer = result.verdict.answer
    if as_json:
        document = {**result.as_json(), "folder": str(folder), "plot": picture and str(picture)}
        put_answer("soak", document, ok=answer is Answer.FLAT)
    else:
        put(shown(result))
        say(f"every sample, and the whole answer: {folder / RESULT_FILE}")
    return answer.exit_code


def _about(options: Mapping[str, str | None], name: str | None) -> dict[str, Any]:
    """What makes the run anew, and where it was, for ``brim report``."""
    given = [word for option, value in options.items() if value is not None for word in (option, value)]
    return {
        "command": join(["brim", "soak", *([] if name is None else [name]), *given]),
        "conditions": {
            "soaked_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "cores": usable_cores(),
            "triton": DEFAULT_TRITON_RELEASE,
        },
    }


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is served and asked.

    Attributes:
        name: of the model.
        rows: that are sent.
        truth: the answers, where they are known without the server.
        admission: bounds at the gateway.
        limits: likewise.
        service: None for the model of known time.
        settings: of the model of known time.
    """

    name: str
    rows: Sequence[Row]
    truth: Sequence[Row] | None
    admission: Admission
    limits: RequestLimits
    service: Service | None = None
    settings: KnownTime | None = None


def _service(project: Project, name: str, seed: int) -> _Subject:
    service = find_service(project.services, name)
    require_whole_answers(service, "brim soak")
    require_artifacts(project, [service], Profile.DEFAULT)
    known = known_answers(service, ROWS, seed=seed)
    return _Subject(
        service.name,
        known.requests if known else batched_rows(service, seed=seed),
        known.answers if known else None,
        admissions([service])[service.name],
        request_limits([service]),
        service=service,
    )


def _known_time(text: str) -> _Subject:
    parts = numbers(text, "--known-time")
    if len(parts) != 2 or not float(parts[0]).is_integer():
        raise InputError(
            f"--known-time {text}: expected are a whole number of microseconds and one that may have a fraction",
            hint="such as 10000,100: 10 ms and 0.1 ms a row",
        )
    settings = KnownTime(tau0_us=int(parts[0]), alpha_us=parts[1])
    rows = [{INPUT: np.full((1, WIDTH), number, np.float32)} for number in range(ROWS)]
    return _Subject(
        KNOWN_TIME,
        rows,
        [{OUTPUT: row[INPUT] * 2} for row in rows],
        Admission(
            max_rows=settings.max_batch,
            batch_time=BatchTime(tau0_us=settings.tau0_us, alpha_us=settings.alpha_us),
        ),
        RequestLimits(body_bytes=1 << 20),
        settings=settings,
    )


def _serve(stack: ExitStack, project: Project, subject: _Subject) -> Stack:
    """A supervised server with the subject alone, and the gateway with its bounds, as ``brim serve`` has them."""
    repository = project.model_repository
    if subject.settings is not None:
        repository = Path(stack.enter_context(TemporaryDirectory(prefix="brim-soak-")))
        write_known_time(repository, subject.name, subject.settings)
    row = canaries([subject.service])[subject.name] if subject.service else dict(subject.rows[0])
    server = EmbeddedServer(
        repository,
        [subject.name],
        cache=project.cache_folder(),
        log_file=new_log(project),
        canaries={subject.name: row},
        on_progress=say,
    )
    stack.enter_context(server)
    supervisor = stack.enter_context(Supervisor(server, on_event=lambda event: say(str(event))))
    gateway = Gateway(
        server.endpoint,
        log_file=new_log(project, "gateway"),
        limits=subject.limits,
        admitted={subject.name: subject.admission},
        canaries={subject.name: row},
    )
    return Stack(server, supervisor, stack.enter_context(gateway))


@contextmanager
def _told() -> Iterator[Callable[[], bool]]:
    """Whether a signal said stop since the block began; it ends the load and not the command."""
    told = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield lambda: told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _draw(result: SoakResult, folder: Path, name: str) -> Path | None:
    """The picture; None where matplotlib is not installed or nothing was sampled."""
    if not result.samples:
        return None
    try:
        from brim.soak.plot import draw
    except ImportError as error:
        say(f"no picture: {error}")
        return None
    title = f"{name}: {result.rate_per_s:.1f} requests a second over {result.plan.protocol.value}"
    with kept_in(folder):
        return draw(result.samples, result.verdict, folder / PICTURE, title=title)


def shown(result: SoakResult) -> str:
    """For people."""
    verdict, data = result.verdict, result.as_json()
    share = "" if result.capacity_per_s is None else f", {result.plan.load:g} of {result.capacity_per_s:.1f}/s"
    window = f"{verdict.window_us / US_PER_S:g} s"
    ratio = "-" if verdict.ratio is None else f"{verdict.ratio:.4f}"
    lines = [
        f"{result.model}: {result.rate_per_s:.1f} requests/s{share}, for {data['ran_us'] / US_PER_S:.0f} s",
        f"answers/s: {verdict.first:.1f} in the first {window}, {verdict.last:.1f} in the last: {ratio}",
        *(
            f"memory of {name}: {growth.level / MIB:.1f} MiB, {growth.growth / MIB:+.2f} MiB by the trend, "
            f"{growth.allowed / MIB:.1f} may be"
            for name, growth in verdict.rss.items()
        ),
        f"shared memory: {verdict.shm.level / MIB:.1f} MiB, {verdict.shm.growth / MIB:+.2f} MiB by the trend",
        f"of {data['offered']} requests: {data['answered']} answered rightly, {data['refused']} refused, "
        f"{data['offered'] - data['answered'] - data['refused']} others",
    ]
    if data["p50_us"] is not None:
        lines.append(f"p50 {us_to_ms(data['p50_us']):.1f} ms, p99 {us_to_ms(data['p99_us']):.1f} ms")
    lines.append(f"other programs on this machine took {verdict.others_cores:.2f} processors")
    return "\n".join([*lines, f"verdict: {verdict.answer.value}", *(f"  {reason}" for reason in verdict.reasons)])


class _Progress:
    """A bar on a terminal; elsewhere a sentence now and then."""

    def __init__(self, duration_s: float) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=people, transient=True, redirect_stdout=False)
        self.task = self.bar.add_task("", total=duration_s)
        self.told_s = time.monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, sample: Sample) -> None:
        """The newest sample."""
        memory = sum(sample.resources.rss.values()) / MIB
        text = (
            f"{sample.at_us / US_PER_S:.0f} s: {sample.throughput:.1f} answers/s, {sample.in_flight} under way, "
            f"{sample.refused} refused, {sample.failed} failed, {memory:.0f} MiB"
        )
        if people.is_terminal:
            self.bar.start()
            self.bar.update(self.task, description=text, completed=sample.at_us / US_PER_S)
        elif time.monotonic() - self.told_s > TOLD_EVERY_S:
            self.told_s = time.monotonic()
            say(text)
