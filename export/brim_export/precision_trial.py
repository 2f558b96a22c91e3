"""A model in several precisions at once: each graph made, held against every gate, and kept to be timed. Nothing is placed."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brim.errors import GateRefused, ModelFileError
from brim.service.schema import Precision, Service
from brim_export import accuracy
from brim_export.artifact import MODEL_NAME
from brim_export.gates import ROW_TOLERANCE, GateResult
from brim_export.noise import captured
from brim_export.pipeline import Plain, Settings, lowered, plain_model, run_gates
from brim_export.rows import AxisSizes
from brim_export.service_export import graph_samples
from brim_export.session import Feed
from brim_export.source import Source
from brim_export.subject import Subject

TYPICAL_SIZE = 32
"""Size of a variable axis in the batches that are timed: a short text."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One precision.

    Attributes:
        precision: which.
        graph: None where it could not be made; ``fault`` says why.
        fault: see above.
        gates: every gate's answer, those that refuse too.
        accuracy: figure -> value, higher is better.
    """

    precision: Precision
    graph: Path | None
    fault: str
    gates: tuple[GateResult, ...]
    accuracy: dict[str, float]

    @property
    def refusals(self) -> list[str]:
        """Why it may not be served; empty when it may."""
        return [self.fault] if self.fault else [f"{one.gate}: {one.message}" for one in self.gates if not one.ok]


@dataclass(frozen=True)
class Trials:
    """All of them, and rows to time them with."""

    trials: tuple[Trial, ...]
    subject: Subject
    sizes: AxisSizes

    def feed(self, rows: int) -> Feed:
        """``rows`` ordinary rows of typical size, the same at every call."""
        return self.subject.source.rows(self.subject.rng(f"timed {rows}"), rows, self.sizes)


def try_precisions(
    service: Service,
    source: Source,
    folder: Path,
    precisions: Sequence[Precision] = tuple(Precision),
    *,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Trials:
    """Make each graph in ``folder`` and try it. The graph in FP32 comes first, asked for or not.

    Args:
        service: whose samples, tolerance and largest batch count.
        source: of its model.
        folder: an empty one, for the graphs.
        precisions: which to try.
        seed: of the rows.
        on_progress: told what is happening.

    Raises:
        GateRefused: torch cannot make a graph of the model at all.
        InputError, ModelFileError, CouldNotTell: as ``brim_export.pipeline.export``.
    """
    log = io.StringIO()
    settings = Settings(service.model.tolerance, ROW_TOLERANCE, service.max_batch_size, seed, Precision.FP32).checked()
    stage = folder / Precision.FP32.value
    stage.mkdir(parents=True)
    plain = plain_model(source, stage, graph_samples(service), settings, on_progress, log)
    if plain.subject is None:
        raise GateRefused(
            "\n".join(f"{one.gate}: {one.message}" for one in plain.refusals), hint="no graph, no precision"
        )
    wanted = [Precision.FP32, *(one for one in precisions if one is not Precision.FP32)]
    trials = [
        _trial(plain, plain.subject, folder, replace(settings, precision=one), on_progress, log) for one in wanted
    ]
    known = plain.subject.axis_sizes[-1]
    symbols = plain.subject.source.symbols()
    typical = dict.fromkeys(symbols, TYPICAL_SIZE) if not plain.subject.source.samples else known
    return Trials(tuple(trials), plain.subject, typical)


def _trial(
    plain: Plain, subject: Subject, folder: Path, settings: Settings, tell: Callable[[str], None], log: io.StringIO
) -> Trial:
    hook = plain.loaded.accuracy if plain.loaded else None
    if not settings.is_lower:
        tell("accuracy of the graph in fp32")
        with captured(log):
            figures = accuracy.measure(subject, plain.session, hook)
        gates = run_gates(subject, plain, settings, tell, log)
        seen = {one.name: one.value for one in figures}
        return Trial(settings.precision, folder / settings.precision.value / MODEL_NAME, "", tuple(gates), seen)
    path = folder / settings.precision.value / MODEL_NAME
    path.parent.mkdir()
    try:
        made = lowered(
            subject, plain.loaded, folder / Precision.FP32.value / MODEL_NAME, path, settings.precision, tell, log
        )
    except ModelFileError as error:
        return Trial(settings.precision, None, error.message, (), {})
    gates = run_gates(made, plain, settings, lambda said: tell(f"{settings.precision.value}: {said}"), log)
    seen = next((dict(one.seen) for one in gates if one.gate == accuracy.GATE), {})
    return Trial(settings.precision, path, "", tuple(gates), seen)
