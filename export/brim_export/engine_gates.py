"""The gates again, on the engine itself: another program than the graph it was built from, with kernels of its own."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from brim.config.tensorrt_plan import EnginePrecision
from brim.paths import Project
from brim.service.schema import Service
from brim_export import accuracy, gates, graph
from brim_export.artifact import Artifact
from brim_export.gates import GateResult
from brim_export.graph import IndexRange
from brim_export.noise import captured
from brim_export.precision import Allowed
from brim_export.rows import RowSource
from brim_export.service_export import graph_samples, source_of
from brim_export.session import Array, Feed, Runs, Session
from brim_export.source import OnnxSource
from brim_export.subject import Subject, working_sizes

ALLOWED = {
    EnginePrecision.FP32: Allowed(parity=1e-3, rows=1e-4),
    EnginePrecision.FP16: Allowed(parity=2e-2, rows=5e-3),
    EnginePrecision.BF16: Allowed(parity=1e-1, rows=3e-2),
    EnginePrecision.FP8: Allowed(parity=0.2, rows=3e-2),
    EnginePrecision.INT8: Allowed(parity=0.2, rows=5e-3),
}
"""By precision: wider than on a CPU, since a GPU's kernels sum in an order that changes with the batch. Derived from the
bits of each type, not measured: no GPU was at hand."""


@dataclass(frozen=True, slots=True)
class _Reference:
    """What the engine is held against."""

    answer: Callable[[Mapping[str, Array]], Feed]
    hook: accuracy.AccuracyHook | None
    name: str

    def run(self, feed: Mapping[str, Array]) -> Feed:
        """Every output by name."""
        return self.answer(feed)


def engine_gates(
    project: Project,
    service: Service,
    exported: Artifact,
    graph_file: Path,
    session: Runs,
    precision: EnginePrecision,
    on_progress: Callable[[str], None],
) -> list[GateResult]:
    """Every gate's answer for the engine: torch's answers, or the brought file's in FP32, are what parity is held against.

    Args:
        project: where the service's source is.
        service: whose engine it is.
        exported: the export that the engine was built from.
        graph_file: the graph of it.
        session: the engine.
        precision: that it computes in.
        on_progress: told what is happening.

    Raises:
        InputError, ModelFileError: the service's source is gone, or broken.
    """
    log = io.StringIO()
    with captured(log):
        source = source_of(project, service)
        model = onnx.load(str(graph_file), load_external_data=False)
        inputs = graph.inputs(model)
        samples = graph_samples(service)
        ranges = {name: IndexRange(one.minimum, one.maximum) for name, one in exported.index_ranges.items()}
        if isinstance(source, OnnxSource):
            rows = RowSource(inputs, ranges, samples)
            reference = _Reference(Session(source.path).run, None, gates.FULL_PRECISION)
        else:
            from brim_export import torch_source

            loaded = torch_source.load(source)
            rows = RowSource(
                inputs,
                ranges,
                samples,
                row_samples=loaded.row_samples,
                pad_rows=loaded.pad_rows,
                examples=loaded.example_arrays(),
            )
            reference = _Reference(loaded.reference, loaded.accuracy, gates.TORCH)
        sizes, fault = working_sizes(session, rows, exported.seed)
        subject = Subject(
            session,
            model,
            inputs,
            graph.outputs(model),
            rows,
            exported.batch_limit,
            exported.seed,
            sizes or [{}],
            fault,
            exported.axis_limits,
        )
    allowed = ALLOWED[precision]
    checks: dict[str, Callable[[], GateResult]] = {
        gates.BATCH_AXIS_GATE: lambda: gates.batch_axis(subject),
        gates.ROWS_PRESERVED: lambda: gates.rows_preserved(subject),
        gates.PARITY: lambda: gates.parity(subject, reference.run, allowed.parity, reference.name),
        gates.ROW_INDEPENDENCE: lambda: gates.row_independence(subject, allowed.rows),
        gates.DETERMINISTIC: lambda: gates.deterministic(subject),
        accuracy.GATE: lambda: accuracy.gate(subject, reference, reference.hook),
    }
    results = []
    for name, check in checks.items():
        on_progress(f"gate {name}, on the engine")
        if fault and name != gates.BATCH_AXIS_GATE:
            results.append(gates.not_run(name, f"the engine does not run (see {gates.BATCH_AXIS_GATE})"))
            continue
        with captured(log):
            results.append(check())
    return results
