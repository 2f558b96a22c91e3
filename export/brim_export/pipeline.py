"""Export a model: make or take the ONNX file, hold it against every gate, and put it in place when all of them pass."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import psutil

from brim.config.generate import valid_output
from brim.errors import AnswerIsNo, CouldNotTell, GateRefused, InputError, ModelFileError
from brim.limits import BATCH_LIMIT
from brim.service.schema import Precision
from brim_export import accuracy, gates, graph, onnx_source
from brim_export.artifact import (
    ARTIFACT_NAME,
    GUARDED_NAME,
    MODEL_NAME,
    OWN_NAMES,
    Artifact,
    FileRecord,
    GateRecord,
    GuardRecord,
    SourceRecord,
    Tensor,
    Tolerance,
    ValidRange,
    file_faults,
    hash_files,
)
from brim_export.calibration import calibration_feeds
from brim_export.compare import deviation
from brim_export.fingerprint import fingerprint, versions
from brim_export.foreign import foreign, told
from brim_export.gates import PARITY_TOLERANCE, ROW_TOLERANCE, GateResult
from brim_export.graph_guard import Guarding, can_guard, guarded
from brim_export.noise import captured
from brim_export.placement import FULL, check_utf8, locked, place, staging
from brim_export.precision import parity_allowed, rows_allowed
from brim_export.rows import RowSource
from brim_export.session import Array, Feed, LoadFailed, RunFailed, Runs, Session
from brim_export.source import OnnxSource, Source, TorchSource
from brim_export.subject import Subject, working_sizes

if TYPE_CHECKING:
    from brim_export.language_model_record import LanguageModelRecord
    from brim_export.torch_source import LoadedModule

Samples = Mapping[str, Sequence[Array]]
"""Rows to try the model with, by input name, without the batch axis."""

_BYTES_A_VALUE = 32
"""Of an input while gates try it: drawn as float64, cast, stacked with its neighbours, copied by ONNX Runtime."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportResult:
    """Every gate's answer. ``artifact`` and ``model_path`` are None when one of them refused: nothing was placed.

    ``log`` is what the export libraries printed. A language model has a ``record`` in the artifact's place.
    """

    gates: list[GateResult]
    artifact: Artifact | None
    model_path: Path | None
    log: str
    record: LanguageModelRecord | None = None

    @property
    def ok(self) -> bool:
        """Whether every gate passed."""
        return self.artifact is not None or self.record is not None


@dataclass(frozen=True, slots=True)
class Settings:
    """What an export was asked for. Tolerances are of FP32."""

    tolerance: float
    row_tolerance: float
    batch_limit: int
    seed: int
    precision: Precision

    def checked(self) -> Settings:
        """These settings.

        Raises:
            InputError: one is out of its range.
        """
        if not 1 <= self.batch_limit <= BATCH_LIMIT:
            raise InputError(
                f"batch limit {self.batch_limit}, expected 1..{BATCH_LIMIT}: the GPU takes no more rows a batch",
                hint=f"give a limit of 1 to {BATCH_LIMIT}",
            )
        if not (0 < self.tolerance < 1 and 0 < self.row_tolerance < 1):
            raise InputError(
                f"tolerances {self.tolerance} and {self.row_tolerance}, expected between 0 and 1",
                hint="1e-4 suits float32, 1e-2 float16",
            )
        if self.seed < 0:
            raise InputError(f"seed {self.seed}, expected 0 or more", hint="any whole number from 0 will do")
        return self

    @property
    def parity_allowed(self) -> float:
        """What parity may be off by in this precision."""
        return parity_allowed(self.precision, self.tolerance)

    @property
    def rows_allowed(self) -> float:
        """What a row's answer may change by its neighbours in this precision."""
        return rows_allowed(self.precision, self.row_tolerance)

    @property
    def is_lower(self) -> bool:
        """Whether the graph is another than the one that came."""
        return self.precision is not Precision.FP32

    def as_values(self) -> dict[str, float | str]:
        """For the fingerprint."""
        return {
            "precision": self.precision.value,
            "tolerance": self.tolerance,
            "row_tolerance": self.row_tolerance,
            "batch_limit": self.batch_limit,
            "seed": self.seed,
        }


def export(
    source: Source,
    out_dir: Path,
    *,
    samples: Samples | None = None,
    tolerance: float = PARITY_TOLERANCE,
    row_tolerance: float = ROW_TOLERANCE,
    batch_limit: int = BATCH_LIMIT,
    seed: int = 0,
    precision: Precision = Precision.FP32,
    guard: Guarding | None = None,
    on_progress: Progress | None = None,
    log_path: Path | None = None,
) -> ExportResult:
    """Make ``model.onnx``, ``model.guarded.onnx``, the assets and ``artifact.json`` in ``out_dir``, or say which gates
    refused and why. A graph that cannot be guarded has no guarded file, and ``on_progress`` is told why.

    A graph of lower ``precision`` is held to that precision's tolerances where they are wider, and to the accuracy gate.

    When a gate refuses, or anything raises, ``out_dir`` is left exactly as it was. With ``log_path``, what the export
    libraries printed is written there in that case.

    Raises:
        InputError: the factory, the samples or a setting is wrong.
        ModelFileError: the model file cannot be read, written or loaded.
        NoSpace: the disk is full.
        CouldNotTell: there is not enough memory to try the model.
    """
    settings = Settings(tolerance, row_tolerance, batch_limit, seed, precision).checked()
    tell = on_progress or (lambda message: None)
    log = io.StringIO()
    try:
        with staging(out_dir) as work:
            result = _export(source, out_dir, work, samples, settings, guard or Guarding(), tell, log)
    except MemoryError as error:
        raise CouldNotTell(
            f"not enough memory to try the model with {batch_limit} rows: {error}",
            hint="state a smaller max_batch_size in a service file and export that, or use a larger machine",
        ) from error
    except BaseException as error:
        _write_log(log_path, log)
        if isinstance(error, ModelFileError) and log_path and log.getvalue():
            error.hint = f"{error.hint}; what torch printed is in {log_path}".removeprefix("; ")
        raise
    if not result.ok:
        _write_log(log_path, log)
    return result


def require(result: ExportResult) -> Artifact:
    """The artifact of a result.

    Raises:
        GateRefused: a gate refused; carries every refusal's message.
    """
    if result.artifact is None:
        refusals = [f"{item.gate}: {item.message}" for item in result.gates if not item.ok]
        raise GateRefused("\n".join(refusals), hint="nothing was written; an earlier export is still in place")
    return result.artifact


def up_to_date(
    source: Source,
    out_dir: Path,
    *,
    samples: Samples | None = None,
    tolerance: float = PARITY_TOLERANCE,
    row_tolerance: float = ROW_TOLERANCE,
    batch_limit: int = BATCH_LIMIT,
    seed: int = 0,
    precision: Precision = Precision.FP32,
    guard: Guarding | None = None,
) -> bool:
    """Whether ``out_dir`` holds, unharmed, what exporting now with these arguments would make. The model is not loaded.

    Raises:
        InputError: the factory's module is not to be found, or a setting is wrong.
        ModelFileError: the ONNX source cannot be read.
    """
    settings = Settings(tolerance, row_tolerance, batch_limit, seed, precision).checked()
    guard = guard or Guarding()
    with captured(io.StringIO()):
        wanted = fingerprint(source, settings.as_values(), samples, guard.limits)
    try:
        artifact = Artifact.load(out_dir / ARTIFACT_NAME)
    except ModelFileError:
        return False
    if artifact.guard is not None and guard.valid not in (None, artifact.guard.valid):
        return False
    return artifact.fingerprint == wanted and not file_faults(out_dir, artifact.files)


def _export(
    source: Source,
    out_dir: Path,
    work: Path,
    samples: Samples | None,
    settings: Settings,
    guard: Guarding,
    tell: Progress,
    log: io.StringIO,
) -> ExportResult:
    stage, backup = work / "new", work / "old"
    stage.mkdir()
    backup.mkdir()
    plain = plain_model(source, stage, samples, settings, tell, log)
    if plain.subject is None:
        return ExportResult(plain.refusals, None, None, log.getvalue())
    loaded, subject = plain.loaded, plain.subject
    if settings.is_lower:
        kept = work / "plain"
        stage.replace(kept)
        stage.mkdir()
        subject = lowered(subject, loaded, kept / MODEL_NAME, stage / MODEL_NAME, settings.precision, tell, log)
    results = run_gates(subject, plain, settings, tell, log)
    if not all(result.ok for result in results):
        return ExportResult(results, None, None, log.getvalue())
    tell("the guard in the graph, for native backends")
    with captured(log):
        guard_record, fault = _guard(subject, stage, guard, settings)
    if fault:
        tell(f"no guarded graph: {fault}")
    if loaded and loaded.write_assets:
        tell("writing the files that belong to the model")
        with captured(log):
            _assets(loaded, stage, work / "assets")
    with captured(log):
        fingerprint_now = fingerprint(source, settings.as_values(), samples, guard.limits)
        artifact = _artifact(source, subject, results, settings, hash_files(stage), fingerprint_now, guard_record)
    artifact.save(stage / ARTIFACT_NAME)
    with locked(out_dir.parent):
        earlier = _earlier_files(out_dir)
        place(stage, [*artifact.files, ARTIFACT_NAME], out_dir, backup)
        for name in earlier - set(artifact.files):
            (out_dir / name).unlink(missing_ok=True)
    return ExportResult(results, artifact, out_dir / MODEL_NAME, log.getvalue())


@dataclass(frozen=True)
class Plain:
    """A model as it comes, in FP32 as a rule, loaded and with rows to try it on.

    Attributes:
        loaded: the torch factory's answer; None for an ONNX file.
        subject: None where torch could not make a graph of it.
        refusals: every gate's answer in that case.
    """

    loaded: LoadedModule | None
    subject: Subject | None
    refusals: list[GateResult]

    def reference(self, feed: Mapping[str, Array]) -> Feed:
        """What a graph of lower precision is held against: torch's answer, else that of the graph as it came.

        Raises:
            ReferenceFailed: it does not run these rows.
        """
        if self.loaded:
            return self.loaded.reference(feed)
        try:
            return self.session.run(feed)
        except RunFailed as error:
            raise gates.ReferenceFailed(str(error)) from error

    @property
    def session(self) -> Runs:
        """The graph as it came."""
        assert self.subject is not None
        return self.subject.session


def plain_model(
    source: Source, stage: Path, samples: Samples | None, settings: Settings, tell: Progress, log: io.StringIO
) -> Plain:
    """Make or copy the graph into ``stage`` and load it.

    Raises:
        InputError, ModelFileError, CouldNotTell: as ``export``.
    """
    loaded: LoadedModule | None = None
    limits: dict[str, int] = {}
    if isinstance(source, TorchSource):
        loaded, limits, refusals = _from_torch(source, stage, tell, log)
        if refusals:
            return Plain(loaded, None, refusals)
    else:
        tell(f"taking {source.path.name} as it is")
        _from_onnx(source, stage)
    tell("loading the model in ONNX Runtime")
    with captured(log):
        return Plain(loaded, _subject(source, stage / MODEL_NAME, loaded, limits, samples, settings), [])


def lowered(
    subject: Subject,
    loaded: LoadedModule | None,
    plain: Path,
    path: Path,
    precision: Precision,
    tell: Progress,
    log: io.StringIO,
) -> Subject:
    """The graph at ``plain``, of which ``subject`` is, written to ``path`` in another precision and loaded.

    Raises:
        InputError: the calibration hook failed.
        ModelFileError: the graph cannot be converted, or ONNX Runtime does not load the result.
    """
    # Late: the converters take a moment to import, and an export in FP32 needs none.
    from brim_export.lowering import lower

    tell(f"fp32 to {precision.value}")
    with captured(log):
        feeds = calibration_feeds(subject, loaded.calibration_rows if loaded else None)
        lower(plain, path, precision, feeds)
        model = onnx.load(str(path), load_external_data=False)
        try:
            session = Session(path)
        except LoadFailed as error:
            raise ModelFileError(
                f"ONNX Runtime does not load the graph in {precision.value}: {error}",
                hint="leave model.precision at fp32",
            ) from error
    return replace(subject, session=session, model=model, outputs=graph.outputs(model), _by_rows={})


def _from_torch(
    source: TorchSource, stage: Path, tell: Progress, log: io.StringIO
) -> tuple[LoadedModule, dict[str, int], list[GateResult]]:
    """The loaded factory and its axes' limits, its ONNX file written; or every gate's answer if it cannot become a graph."""
    try:
        from brim_export import torch_source
    except ImportError as error:
        raise InputError(
            f"exporting from torch needs {error.name}, which is not installed",
            hint="install brim with its [export] extra",
        ) from error

    tell(f"building {source.factory}")
    with captured(log):
        loaded = torch_source.load(source)
        mode = gates.mode_result(loaded.mode_faults())
    tell("torch to ONNX")
    try:
        with captured(log):
            program = torch_source.export_program(loaded)
            torch_source.write_onnx(loaded, program, stage / MODEL_NAME)
    except torch_source.NotExportable as error:
        own = {
            error.gate: gates.refused(error.gate, [error.fault], error.remedy),
            gates.INFERENCE_MODE: mode,
        }
        missing = f"the model could not be exported (see {error.gate})"
        return loaded, {}, [own.get(gate) or gates.not_run(gate, missing) for gate in gates.GATES]
    return loaded, torch_source.axis_limits(loaded, program), []


def _from_onnx(source: OnnxSource, stage: Path) -> None:
    check_utf8(source.path)
    model = onnx_source.read(source.path)
    external = onnx_source.external_files(source.path, model)
    taken = [str(file) for file in external if str(file) in OWN_NAMES]
    if taken:
        raise ModelFileError(
            f"{source.path}: external data file {taken[0]} has a name that the export uses itself",
            hint="save the model again with another name for its external data",
        )
    shutil.copyfile(source.path, stage / MODEL_NAME)
    for file in external:
        (stage / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.path.parent / file, stage / file)


def _subject(
    source: Source,
    path: Path,
    loaded: LoadedModule | None,
    limits: dict[str, int],
    samples: Samples | None,
    settings: Settings,
) -> Subject:
    name = source.factory if isinstance(source, TorchSource) else str(source.path)
    model = onnx.load(str(path), load_external_data=False)
    inputs, outputs = graph.inputs(model), graph.outputs(model)
    if not inputs:
        raise ModelFileError(
            f"{name} has no inputs: it can only ever give one answer",
            hint="export it with its inputs left open, not filled in as constants",
        )
    _check_room(name, inputs, settings.batch_limit)
    try:
        session = Session(path)
    except LoadFailed as error:
        raise ModelFileError(
            f"{name}: ONNX Runtime {versions().get('onnxruntime', '')} does not load the model "
            f"(IR version {model.ir_version}, opset {onnx_source.opset(model)}): {error}",
            hint="if its IR version or opset is too new, export it again for an older one; else it is corrupt",
        ) from error
    rows = RowSource(
        inputs,
        graph.index_ranges(model),
        samples,
        row_samples=loaded.row_samples if loaded else None,
        pad_rows=loaded.pad_rows if loaded else None,
        examples=loaded.example_arrays() if loaded else {},
    )
    rows.check_samples()
    sizes, fault = working_sizes(session, rows, settings.seed)
    return Subject(
        session, model, inputs, outputs, rows, settings.batch_limit, settings.seed, sizes or [{}], fault, limits
    )


def _check_room(name: str, inputs: Sequence[graph.TensorSpec], batch_limit: int) -> None:
    """Refuse to try a model whose smallest full batch this machine cannot hold: the kernel would end the process.

    Raises:
        CouldNotTell: see above.
    """
    values = sum(
        math.prod(size for size in (spec.shape or ())[graph.BATCH_AXIS + 1 :] if isinstance(size, int))
        for spec in inputs
    )
    needed, free = values * batch_limit * _BYTES_A_VALUE, psutil.virtual_memory().available
    if needed > free:
        raise CouldNotTell(
            f"{name}: trying {batch_limit} rows takes about {needed / 2**30:.3g} GiB (a row has {values} values), "
            f"and this machine has {free / 2**30:.3g} GiB free",
            hint="state a smaller max_batch_size in a service file and export that, or use a larger machine",
        )


def run_gates(subject: Subject, plain: Plain, settings: Settings, tell: Progress, log: io.StringIO) -> list[GateResult]:
    """The answer of every gate that can be asked of ``subject``, which is ``plain`` in the precision of the settings."""
    loaded = plain.loaded
    checks: dict[str, Callable[[], GateResult]] = {
        gates.INFERENCE_MODE: lambda: gates.inference_mode(subject, loaded.mode_faults() if loaded else ()),
        gates.BATCH_AXIS_GATE: lambda: gates.batch_axis(subject),
        gates.ROWS_PRESERVED: lambda: gates.rows_preserved(subject),
        gates.ROW_INDEPENDENCE: lambda: gates.row_independence(subject, settings.rows_allowed),
        gates.DETERMINISTIC: lambda: gates.deterministic(subject),
    }
    if loaded or settings.is_lower:
        of = gates.TORCH if loaded else gates.FULL_PRECISION
        checks[gates.PARITY] = lambda: gates.parity(subject, plain.reference, settings.parity_allowed, of)
    if settings.is_lower:
        checks[accuracy.GATE] = lambda: accuracy.gate(subject, plain.session, loaded.accuracy if loaded else None)
    needs_runs = {*gates.GATES, accuracy.GATE} - {gates.INFERENCE_MODE, gates.BATCH_AXIS_GATE}
    results = []
    for gate in (*gates.GATES, accuracy.GATE):
        if gate not in checks:
            continue
        tell(f"gate {gate}")
        if subject.size_fault and gate in needs_runs:
            results.append(gates.not_run(gate, f"the model does not run (see {gates.BATCH_AXIS_GATE})"))
        else:
            with captured(log):
                results.append(checks[gate]())
    return results


def _guard(subject: Subject, stage: Path, guard: Guarding, settings: Settings) -> tuple[GuardRecord | None, str]:
    """Write the guarded graph and hold it against the plain one; without a record, why this graph cannot be guarded."""
    model = subject.model
    if not can_guard(model):
        return None, f"its opset is {onnx_source.opset(model)}; export the model with 9 or later"
    valid = guard.valid or valid_output(spec.name for spec in (*subject.inputs, *subject.outputs))
    path = stage / GUARDED_NAME
    onnx.save(guarded(model, subject.source.ranges, guard.limits, valid), str(path))
    fault = _guard_fault(subject, path, valid, settings.rows_allowed)
    if fault:
        path.unlink()
        return None, fault
    data = [file.as_posix() for file in onnx_source.external_files(path, model)]
    return GuardRecord(file=GUARDED_NAME, data=data, valid=valid), ""


def _guard_fault(subject: Subject, path: Path, valid: str, tolerance: float) -> str:
    """Where the guarded graph answers rows that it calls valid otherwise than the plain one; empty when nowhere."""
    rows = min(3, subject.batch_limit)
    plain = subject.at(rows)
    if isinstance(plain, RunFailed):
        return f"the plain one does not run {rows} rows: {plain}"
    feed = subject.source.rows(subject.rng(f"rows {rows}"), rows, subject.axis_sizes[0])
    try:
        answer = Session(path).run(feed)
    except (LoadFailed, RunFailed) as error:
        return f"ONNX Runtime does not run it: {error}"
    known = answer[valid].reshape(rows) != 0
    off = {
        spec.name: deviation(plain[spec.name][known], answer[spec.name][known])
        for spec in subject.outputs
        if spec.name in answer
    }
    wrong = sorted(name for name, apart in off.items() if apart.size and apart.max() > tolerance)
    return f"it answers otherwise in {', '.join(wrong)}" if wrong else ""


def _assets(loaded: LoadedModule, stage: Path, folder: Path) -> None:
    folder.mkdir()
    with foreign(lambda error: _assets_failed(loaded, error)):
        if loaded.write_assets:
            loaded.write_assets(folder)
    odd = [path.name for path in folder.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())]
    if odd:
        raise ModelFileError(
            f"torch factory {loaded.name}: write_assets made {odd[0]}, which is a link or a device, not a file",
            hint="copy files (shutil.copyfile), so that the model folder stands alone",
        )
    for name in hash_files(folder):
        if (stage / name).exists() or name in OWN_NAMES:
            raise ModelFileError(
                f"torch factory {loaded.name}: write_assets wrote {name}, a name that the export uses itself",
                hint="write the file under another name",
            )
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).replace(stage / name)


def _assets_failed(loaded: LoadedModule, error: BaseException) -> Exception:
    if isinstance(error, OSError) and error.errno in FULL:
        return error
    return ModelFileError(
        f"torch factory {loaded.name}: write_assets raised {told(error)}",
        hint="it stands beside the factory; call it in python with an empty folder to see the whole traceback",
    )


def _artifact(
    source: Source,
    subject: Subject,
    results: Sequence[GateResult],
    settings: Settings,
    files: dict[str, FileRecord],
    fingerprint_now: str,
    guard: GuardRecord | None,
) -> Artifact:
    by_gate = {result.gate: result for result in results}
    parity = by_gate.get(gates.PARITY)
    torch_made = isinstance(source, TorchSource)
    return Artifact(
        source=SourceRecord(
            kind="torch" if torch_made else "onnx",
            name=source.factory if isinstance(source, TorchSource) else source.path.name,
        ),
        fingerprint=fingerprint_now,
        files=files,
        versions=versions(),
        opset=onnx_source.opset(subject.model),
        precision=settings.precision,
        accuracy=dict(by_gate[accuracy.GATE].seen) if accuracy.GATE in by_gate else {},
        inputs=[_tensor(spec, None) for spec in subject.inputs],
        outputs=[_tensor(spec, subject) for spec in subject.outputs],
        batch_limit=settings.batch_limit,
        index_ranges={
            name: ValidRange(minimum=valid.minimum, maximum=valid.maximum)
            for name, valid in subject.source.ranges.items()
        },
        axis_limits=subject.axis_limits,
        guard=guard,
        parity=Tolerance(asked=settings.parity_allowed, seen=dict(parity.seen)) if parity else None,
        row_independence=Tolerance(asked=settings.rows_allowed, seen=dict(by_gate[gates.ROW_INDEPENDENCE].seen)),
        gates=[GateRecord(gate=result.gate, ok=result.ok, message=result.message) for result in results],
        seed=settings.seed,
    )


def _tensor(spec: graph.TensorSpec, subject: Subject | None) -> Tensor:
    shape: Sequence[int | str | None] = spec.shape or ()
    answer = subject.at(1) if subject else None
    if isinstance(answer, dict) and spec.shape is not None:
        _check_declared(spec, answer[spec.name].shape)
    if spec.shape is None and answer is not None:
        if isinstance(answer, RunFailed):
            raise AnswerIsNo(
                f"output {spec.name} declares no shape, and one row does not run: {answer}",
                hint="export the model with the shape of its outputs declared",
            )
        shape = [None] * answer[spec.name].ndim
    return Tensor(
        name=spec.name,
        datatype=spec.datatype,
        shape=[size if isinstance(size, int) else -1 for size in shape],
        axes=[size if isinstance(size, str) else None for size in shape],
    )


def _check_declared(spec: graph.TensorSpec, found: Sequence[int]) -> None:
    """Refuse an output whose declared sizes are not those that it has: every configuration would be made from them.

    Raises:
        ModelFileError: see above.
    """
    declared = spec.shape or ()
    wrong = len(declared) != len(found) or any(
        isinstance(size, int) and size != there
        for axis, (size, there) in enumerate(zip(declared, found, strict=True))
        if axis != graph.BATCH_AXIS
    )
    if wrong:
        raise ModelFileError(
            f"output {spec.name} is declared as {list(declared)}, and one row gives {list(found)}",
            hint="declare the sizes that it has, or none (onnx.shape_inference finds them), and export again",
        )


def _earlier_files(out_dir: Path) -> set[str]:
    try:
        return set(Artifact.load(out_dir / ARTIFACT_NAME).files)
    except ModelFileError:
        return set()


def _write_log(path: Path | None, log: io.StringIO) -> None:
    if path and log.getvalue():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log.getvalue(), encoding="utf-8")
