"""``brim measure`` of a language model: streaming callers, what they wait for, and what the server says of the same time."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from brim.cli.commands.measure_open import AskedArrivals, schedules_of
from brim.cli.commands.measure_target import INTERRUPTED, check_running, kept_in, serve_until_the_end
from brim.cli.commands.measure_text_table import check_table, parts_table, remarks, text_row
from brim.cli.commands.serve import require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile
from brim.config.generation import generation_of
from brim.engine.lifecycle import RequestClass
from brim.errors import InputError
from brim.measure.launcher import find_launcher
from brim.measure.plan import LEAST_TRIALS, Mode, Plan, Protocol
from brim.measure.text.lengths import Mix, mix_of, read_pairs
from brim.measure.text.measure import measure_text
from brim.measure.text.perf_stream import StreamCheck, cross_check
from brim.measure.text.plan import TextPlan
from brim.measure.text.point import FILE_NAME, TextPoint
from brim.measure.text.token_times import TokenObjective
from brim.paths import Project
from brim.server.endpoint import Endpoint
from brim.service.schema import Service
from brim.units import US_PER_S, ms_to_us

CONCURRENCIES = (1.0, 8.0, 32.0)
PROMPTS, TEXTS = "128", "64"
"""Tokens."""
DURATION_S = 20.0
STREAM_WINDOW_MS = 5_000
PICTURE = "text.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions(AskedArrivals):
    """What was typed; None where the service file or a default decides."""

    concurrency: tuple[float, ...] | None
    prompts: str | None
    texts: str | None
    pairs: Path | None
    batch_share: float
    shared_prefix: int
    perf_analyzer: bool
    window_ms: int | None
    max_trials: int | None
    stability_percent: float


def text_plan_of(options: TextOptions, service: Service) -> TextPlan:
    """What will be carried out.

    Raises:
        InputError: options exclude each other or are out of range.
    """
    options.check_times()
    generation, slo = generation_of(service), service.slo
    concurrencies = options.concurrency or ()
    wrong = [f"{callers:g}" for callers in concurrencies if callers % 1 or callers < 1]
    if wrong:
        raise InputError(f"--concurrency {', '.join(wrong)}: whole numbers from 1 are expected", hint="such as 1,8,32")
    is_open = any(one is not None for one in (options.rates, options.arrival, options.trace))
    if is_open and concurrencies:
        raise InputError(
            "--concurrency beside --arrival or --trace", hint="one is a closed loop, the other an open one"
        )
    if is_open and options.perf_analyzer:
        raise InputError(
            "--perf-analyzer with an open loop",
            hint="it counts from sending there, so its figures are of something else: give --concurrency",
        )
    if not is_open and options.give_up_ms is not None:
        raise InputError("--give-up-ms with a closed loop", hint="its callers wait for the end: give --rate")
    if options.batch_share and len(service.callers) < len(RequestClass):
        raise InputError(
            f"--batch-share {options.batch_share:g}: {service.name} has {len(service.callers)} classes of callers",
            hint="name two under `callers` in the service file",
        )
    mix, words = _mix(options, generation.context_tokens)
    give_up_ms = slo.caller_gives_up_ms if options.give_up_ms is None else options.give_up_ms
    ordered = sorted(service.callers, key=lambda caller: caller.priority)
    objective = TokenObjective(
        slo.percentile,
        None if slo.ttft_ms is None else ms_to_us(slo.ttft_ms),
        None if slo.tpot_ms is None else ms_to_us(slo.tpot_ms),
    )
    seconds = DURATION_S if options.duration_s is None else options.duration_s
    return TextPlan(
        concurrencies=[] if is_open else [int(callers) for callers in concurrencies or CONCURRENCIES],
        schedules=schedules_of(options, service) if is_open else [],
        duration_us=round(seconds * US_PER_S),
        mix=mix,
        mix_words=words,
        context_tokens=generation.context_tokens,
        max_sequences=generation.max_sequences,
        objective=None if objective.ttft_us is None and objective.tpot_us is None else objective,
        classes={RequestClass.INTERACTIVE: ordered[0].name, RequestClass.BATCH: ordered[-1].name} if ordered else {},
        batch_share=options.batch_share,
        shared_prefix_tokens=options.shared_prefix,
        give_up_us=None if give_up_ms is None or not is_open else ms_to_us(give_up_ms),
        seed=options.seed,
        stability_percent=options.stability_percent,
        command=["brim", *sys.argv[1:]],
    )


def _mix(options: TextOptions, context_tokens: int) -> tuple[Mix, str]:
    if options.pairs is not None:
        if options.prompts is not None or options.texts is not None:
            raise InputError("--pairs beside --prompts or --texts", hint="pairs say both lengths; give one of them")
        pairs = read_pairs(options.pairs)
        return pairs, f"lengths of {len(pairs.pairs)} recorded pairs"
    prompts, texts = options.prompts or PROMPTS, options.texts or TEXTS
    mix = mix_of(prompts, texts, context_tokens=context_tokens)
    return mix, f"prompts of {prompts} tokens, texts of {texts}"


def measure_language_model(
    project: Project,
    service: Service,
    options: TextOptions,
    running: Endpoint | None,
    folder: Path,
    *,
    as_json: bool,
) -> int:
    """Carry it out against the running server or one of its own; the exit code.

    Raises:
        InputError: what was typed cannot be carried out, or the folder cannot be one.
        ServerFailed: the server does not start or answer, or ended during a run.
        CouldNotTell: the model answers no prompt, or perf_analyzer gives no figure.
    """
    plan = text_plan_of(options, service)
    windows = _windows(options)
    shown: list[TextPoint] = []
    checks: list[StreamCheck] = []
    show = say if as_json else put

    def on_point(point: TextPoint) -> None:
        if not shown:
            show(text_row())
        shown.append(point)
        show(text_row(point))
        for remark in remarks(point):
            say(f"  {remark}")

    picture: Path | None = None

    def on_measured() -> None:
        nonlocal picture
        for line in parts_table(shown):
            show(line)
        picture = _draw(shown, folder, service, plan)

    finished = False
    with stop_on_signal():
        _measure(project, service, plan, windows, running, folder, on_point, on_measured, checks.append)
        finished = True
    if not finished:
        say(f"interrupted: {len(shown)} of {len(plan.loads)} points are kept in {folder}")
        say(f"the same command with --out {folder} goes on from there")
        return INTERRUPTED
    for line in check_table(checks):
        show(line)
    if as_json:
        points = [point.as_json() for point in shown]
        told = [check.model_dump(mode="json") for check in checks]
        put_answer(
            "measure",
            {"points": points, "folder": str(folder), "plot": picture and str(picture), "perf_analyzer": told},
        )
    else:
        say(f"{FILE_NAME}: {folder}; `brim report {shlex.quote(str(folder))}` shows it as a page")
    return 0


def _windows(options: TextOptions) -> Plan | None:
    """How perf_analyzer measures; None where it is not asked for.

    Raises:
        InputError: it would not take them.
    """
    if not options.perf_analyzer:
        return None
    return Plan(
        mode=Mode.CONCURRENCY,
        values=tuple(float(callers) for callers in options.concurrency or CONCURRENCIES),
        window_ms=STREAM_WINDOW_MS if options.window_ms is None else options.window_ms,
        max_trials=LEAST_TRIALS if options.max_trials is None else options.max_trials,
    )


def _measure(
    project: Project,
    service: Service,
    plan: TextPlan,
    windows: Plan | None,
    running: Endpoint | None,
    folder: Path,
    on_point: Callable[[TextPoint], None],
    on_measured: Callable[[], None],
    on_check: Callable[[StreamCheck], None],
) -> None:
    if running is None:
        require_artifacts(project, [service], Profile.DEFAULT)
    else:
        check_running(running, service.name, Protocol.GRPC)
    launcher = None if windows is None else find_launcher(project.cache_folder(), on_progress=say)
    with kept_in(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        endpoint = running or serve_until_the_end(stack, project, service)
        measure_text(endpoint, service.name, plan, folder=folder, on_point=on_point, on_progress=say)
        # A check that gives no figure must not take away what was measured.
        on_measured()
        if windows is not None and launcher is not None:
            cross_check(
                endpoint,
                service.name,
                plan,
                windows,
                launcher=launcher,
                folder=folder,
                on_check=on_check,
                on_progress=say,
            )


def _draw(points: Sequence[TextPoint], folder: Path, service: Service, plan: TextPlan) -> Path | None:
    """The picture; None where matplotlib is not installed, since the figures are there without it."""
    try:
        from brim.measure.text.plot import draw
    except ImportError as error:
        say(f"no picture: {error}")
        return None
    with kept_in(folder):
        picture = draw(points, folder / PICTURE, title=f"{service.name}: {plan.mix_words}")
    say(f"picture: {picture}")
    return picture
