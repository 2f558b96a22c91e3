"""Served throughput at saturation over what the same model reaches without a server, with full batches.

Beside the shipped models stands the one of known batch time, whose device is its limit however it is served: what is
missing there is what batching and serving leave unused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from brim.bench.comparison import Comparison, Judged, judged
from brim.bench.conditions import Conditions, Watch
from brim.bench.padding import CALLERS as ENCODER_CALLERS
from brim.bench.padding import offline_encoder
from brim.bench.saturation_limits import Compared, DeviceUse, device_use
from brim.bench.saturation_offline import VERSION, EncoderLoop, GraphLoop, KnownTimeLoop, OfflineProcesses
from brim.bench.saturation_served import Asked, Generated, Segment
from brim.bench.sentences import lengths, sentences
from brim.bench.verdict import Target, Verdict
from brim.errors import InputError
from brim.limits import BATCH_LIMIT
from brim.measure.input_data import write_input_data
from brim.measure.known_time import KnownTime, read_executions, write_known_time
from brim.measure.launcher import Launcher
from brim.paths import Project
from brim.runtime.session import cores
from brim.server.embedded import EmbeddedServer
from brim.service.load import find_service
from brim.service.samples import random_rows, sample_rows
from brim.service.schema import DataType, Service
from brim.units import US_PER_MS

NAME = "saturation"
KNOWN_TIME = "known-time"
"""No service can have this name: it has a hyphen."""
SHIPPED = ("text_embedding", "image_classifier")
TARGET = 0.95
DEFAULT_SETTING = KnownTime(tau0_us=10_000, alpha_us=100, record=True)
"""Triton's own: ``dynamic_batching {}``, one instance."""
BEST_SETTING = replace(DEFAULT_SETTING, preferred=(BATCH_LIMIT,), delay_us=20_000, instances=2)
"""What the simulator predicts to be best for throughput, and the simplest of those that it predicts to be equal. The delay
is as long as a full batch takes: a batch that is not full waits while the device is taken anyhow."""
CALLERS = 400
"""A full batch in each of two instances, one that waits, and one on its way between callers and server."""
ROWS = 200


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: every setting served and offline, each.
        callers: of perf_analyzer's closed loop.
        window_ms: of perf_analyzer; a segment takes three.
        offline_us: of a loop without a server.
        sentences: of a round of a text model, the same served and offline.
        encoder_callers: of the closed loop on a text model.
    """

    rounds: int = 8
    callers: int = CALLERS
    window_ms: int = 1_000
    offline_us: int = 1_500_000
    sentences: int = 400
    encoder_callers: int = ENCODER_CALLERS


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class _Run:
    """What every part of a run needs."""

    project: Project
    launcher: Launcher
    folder: Path
    log_file: Path
    seed: int
    effort: Effort
    watch: Watch
    say: Callable[[str], None]

    def server(self, repository: Path, models: Sequence[str]) -> EmbeddedServer:
        return EmbeddedServer(
            repository, models, cache=self.project.cache, log_file=self.log_file, on_progress=self.say
        )

    def generated(self, server: EmbeddedServer, model: str, instances: int, data: Path | None) -> Generated:
        raw, effort = self.folder / "raw", self.effort
        return Generated(server, model, instances, self.launcher, data, raw, effort.callers, effort.window_ms)


def services_of(folder: Path, name: str | None) -> list[Service]:
    """The services to look at: none for ``KNOWN_TIME``, those that are shipped without a name.

    Raises:
        UnknownService: there is none of that name.
        InputError: a service has several inputs.
    """
    names = SHIPPED if name is None else () if name == KNOWN_TIME else (name,)
    found = [find_service(folder, one) for one in names]
    for service in found:
        if len(service.inputs) != 1:
            raise InputError(
                f"{service.name} has {len(service.inputs)} inputs; `brim bench {NAME}` wants one",
                hint=f"{KNOWN_TIME}, {' and '.join(SHIPPED)} have one",
            )
    return found


def saturation(
    project: Project,
    services: Sequence[Service],
    *,
    known_time: bool,
    launcher: Launcher,
    folder: Path,
    log_file: Path,
    seed: int = 0,
    effort: Effort = DEFAULT_EFFORT,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare serving with a loop without a server, model after model, each with a server of its own.

    Args:
        project: where the model repository lies.
        services: exported, with one input each; served with the configuration in the model repository.
        known_time: look at the model of known batch time, too: the only one with a target.
        launcher: the load generator.
        folder: for the raw output of every segment.
        log_file: of the server.
        seed: for what is sent.
        effort: how long to look.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ServerFailed: a server did not start, or died.
        CouldNotTell: a segment gave no figure, or a request failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    watch = Watch()
    run = _Run(project, launcher, folder, log_file, seed, effort, watch, on_progress)
    settings = _known_time(run) if known_time else []
    found = [*settings]
    for service in services:
        look = _encoder if service.inputs[0].dtype is DataType.BYTES else _graph
        found += look(run, service)
    conditions = watch.stop()
    ratios = tuple(judged_fairly(one, conditions) for one in settings if one.name == _model(BEST_SETTING))
    figures = {name: values for one in found for name, values in one.figures.items()}
    details = {
        "findings": [str(one) for one in found],
        "generator_bound_rounds": {one.name: one.generator_bound for one in found},
        "answered": sum(segment.answered for one in found for segment in one.served),
    }
    return Comparison(NAME, ratios, figures, conditions, details)


def judged_fairly(found: Compared, conditions: Conditions) -> Judged:
    """The verdict on a setting. A miss in rounds of which the callers limited one is none."""
    verdict = judged(Target(f"served / offline, {found.words}", least=TARGET), found.ratios, conditions)
    if verdict.verdict is Verdict.MISSED and found.generator_bound:
        return replace(verdict, verdict=Verdict.UNCLEAR)
    return verdict


@dataclass(frozen=True, slots=True)
class _Pair:
    """A model served and the same in a loop.

    Attributes:
        served: a segment of a round, by its number.
        offline: rows a second of a round.
        notes: folders of the model of known batch time, served and offline, where its executions are noted.
    """

    name: str
    words: str
    instances: int
    served: Callable[[int], Segment]
    offline: Callable[[int], float]
    notes: tuple[Path, Path] | None = None
    segments: list[Segment] = field(default_factory=list)
    offline_per_s: list[float] = field(default_factory=list)
    device: tuple[list[DeviceUse], list[DeviceUse]] = field(default_factory=lambda: ([], []))

    def serve(self, number: int) -> None:
        """One segment."""
        known = self._noted(0)
        self.segments.append(self.served(number))
        self._note(0, known)

    def loop(self, number: int) -> None:
        """One loop."""
        known = self._noted(1)
        self.offline_per_s.append(self.offline(number))
        self._note(1, known)

    def _noted(self, way: int) -> int:
        return 0 if self.notes is None else len(read_executions(self.notes[way]))

    def _note(self, way: int, known: int) -> None:
        use = None if self.notes is None else device_use(read_executions(self.notes[way])[known:])
        if use is not None:
            self.device[way].append(use)

    def compared(self) -> Compared:
        return Compared(self.name, self.words, self.instances, self.segments, self.offline_per_s, *self.device)


def _rounds(run: _Run, pairs: Sequence[_Pair]) -> list[Compared]:
    """All ways in turn; who comes first changes every round, since what drifts would favour whoever always does."""
    ways = [way for pair in pairs for way in (pair.serve, pair.loop)]
    for number in range(run.effort.rounds):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            way(number)
        words = ", ".join(
            f"{pair.name} {pair.segments[-1].rate_per_s:.0f}/s served, {pair.offline_per_s[-1]:.0f}/s offline"
            for pair in pairs
        )
        run.say(f"round {number + 1} of {run.effort.rounds}: {words}")
    run.watch.note()
    return [pair.compared() for pair in pairs]


def _known_time(run: _Run) -> list[Compared]:
    with TemporaryDirectory(prefix="brim-saturation-") as place, ExitStack() as stack:
        served, alone = Path(place, "served"), Path(place, "offline")
        settings = (BEST_SETTING, DEFAULT_SETTING)
        for setting in settings:
            for repository in (served, alone):
                write_known_time(repository, _model(setting), setting)
        server = stack.enter_context(run.server(served, [_model(setting) for setting in settings]))
        pairs = []
        for setting in settings:
            name = _model(setting)
            loop = stack.enter_context(OfflineProcesses(KnownTimeLoop(alone / name), setting.instances))
            pairs.append(
                _Pair(
                    name=name,
                    words=f"{KNOWN_TIME}, {_words(setting)}",
                    instances=setting.instances,
                    served=run.generated(server, name, setting.instances, None).segment,
                    offline=partial(loop.rate_per_s, least_us=run.effort.offline_us),
                    notes=(served / name, alone / name),
                )
            )
        return _rounds(run, pairs)


def _model(setting: KnownTime) -> str:
    return "known_time_best" if setting == BEST_SETTING else "known_time_default"


def _words(setting: KnownTime) -> str:
    preferred = f"preferred {list(setting.preferred)}" if setting.preferred else "no preferred size"
    delay = f"delay {setting.delay_us / US_PER_MS:g} ms" if setting.delay_us else "no delay"
    return f"{preferred}, {delay}, {setting.instances} instance{'s' * (setting.instances > 1)}"


def _encoder(run: _Run, service: Service) -> list[Compared]:
    tokenizer = offline_encoder(run.project, service).tokenizer
    seeds = range(run.seed, run.seed + run.effort.rounds)
    texts = [sentences(tokenizer, lengths(run.effort.sentences, seed), seed) for seed in seeds]
    taken, instances = service.inputs[0].name, _instances(service)
    rows = [[{taken: np.array([[text.encode()]], dtype=np.object_)} for text in of_round] for of_round in texts]
    with (
        run.server(run.project.model_repository, [service.name]) as server,
        OfflineProcesses(EncoderLoop(run.project, service, texts), instances) as loop,
    ):
        asked = Asked(server, service.name, instances, rows, run.effort.encoder_callers)
        return _rounds(run, [_Pair(service.name, service.name, instances, asked.segment, loop.rate_per_s)])


def _graph(run: _Run, service: Service) -> list[Compared]:
    rows = sample_rows(service) or random_rows(service, ROWS, seed=run.seed)
    data = write_input_data(
        run.folder / f"{service.name}.json", [{name: array[0] for name, array in row.items()} for row in rows]
    )
    instances = _instances(service)
    graph = GraphLoop(
        run.project.model_repository / service.name / VERSION / "model.onnx",
        threads=service.runtime.threads or max(1, cores() // instances),
        rows=rows,
        remedy=f"run `brim export {service.name}`",
    )
    with (
        run.server(run.project.model_repository, [service.name]) as server,
        OfflineProcesses(graph, instances) as loop,
    ):
        served = run.generated(server, service.name, instances, data).segment
        offline = partial(loop.rate_per_s, least_us=run.effort.offline_us)
        return _rounds(run, [_Pair(service.name, service.name, instances, served, offline)])


def _instances(service: Service) -> int:
    return sum(group.count for group in service.instances)
