"""Export what a service file names, into the place that the model repository keeps for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from brim.config import files as config_files
from brim.config.files import language_model_file
from brim.config.generate import MODEL_FILES, native_name, tensor_names, valid_output
from brim.config.generation import generation_of
from brim.errors import InputError
from brim.paths import Project
from brim.service.samples import sample_rows
from brim.service.schema import Precision, Service
from brim_export.artifact import ARTIFACT_NAME, Artifact, FileRecord, file_faults
from brim_export.engine_record import RECORD_NAME, read_engine_record
from brim_export.graph_guard import Guarding, Limits
from brim_export.pipeline import ExportResult, Samples, export, up_to_date
from brim_export.placement import work_folder
from brim_export.source import OnnxSource, Source, TorchSource

VERSION = config_files.VERSION
"""The version folder that an export fills."""


def source_of(project: Project, service: Service) -> Source:
    """Where the service's model comes from. A relative ONNX path counts from the checkout."""
    if service.model.torch is not None:
        return TorchSource(service.model.torch)
    return OnnxSource(project.root / str(service.model.onnx))


def out_folder(project: Project, service: Service) -> Path:
    """The version folder that the export fills."""
    return project.model_repository / service.name / VERSION


def graph_samples(service: Service) -> Samples | None:
    """The service's samples by graph input, or None when an adapter stands between callers and the graph."""
    rows = sample_rows(service)
    if not rows or service.model.graph_inputs:
        return None
    names = {tensor.name: tensor.graph_name or tensor.name for tensor in service.inputs}
    complete = [name for name in names if all(name in row for row in rows)]
    return {names[name]: [row[name][0] for row in rows] for name in complete}


def guarding(service: Service) -> Guarding:
    """What the service asks of the guard in its graph. What an adapter makes is not what the service file describes: of
    that only the indices are guarded."""
    valid = valid_output(tensor_names(service))
    if service.model.graph_inputs:
        return Guarding({tensor.name: Limits(finite=False) for tensor in service.model.graph_inputs}, valid)
    limits = {
        tensor.graph_name or tensor.name: Limits(tensor.finite, tensor.minimum, tensor.maximum)
        for tensor in service.inputs
    }
    return Guarding(limits, valid)


def place_native(repository: Path, service: Service) -> None:
    """Give the model behind the native profiles' front its files: those of the export, under a second name.

    They are hard links, so nothing is stored twice; a copy where the file system has none. Without a guarded graph
    nothing is left there that could be served. An engine that was built of another graph goes.

    Raises:
        ModelFileError: the service has not been exported.
    """
    folder = repository / service.name / VERSION
    native = repository / native_name(service) / VERSION
    native.mkdir(parents=True, exist_ok=True)
    artifact = Artifact.load(folder / ARTIFACT_NAME)
    target = MODEL_FILES["onnxruntime"]
    if artifact.guard is None:
        (native / target).unlink(missing_ok=True)
        return
    for name, here in {**{data: data for data in artifact.guard.data}, artifact.guard.file: target}.items():
        _link(folder / name, native / here, artifact.files[name])
    engine = read_engine_record(native)
    if engine is not None and engine.graph != artifact.files[artifact.guard.file].sha256:
        (native / MODEL_FILES["tensorrt"]).unlink(missing_ok=True)
        (native / RECORD_NAME).unlink(missing_ok=True)


def _link(source: Path, target: Path, record: FileRecord) -> None:
    if target.is_file() and (target.samefile(source) or not file_faults(target.parent, {target.name: record})):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with work_folder(target.parent, ".linking-") as beside:
        made = beside / target.name
        try:
            made.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, made)
        made.replace(target)


def export_service(
    project: Project,
    service: Service,
    *,
    precision: Precision | None = None,
    force: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> ExportResult | None:
    """Export the service's model, or return None when what is there is what an export would make.

    Args:
        project: where it goes.
        service: whose model it is.
        precision: instead of the service file's.
        force: export in any case.
        on_progress: told what is happening.

    Raises:
        InputError, ModelFileError, NoSpace: as ``brim_export.pipeline.export``.
    """
    if service.model.llm is not None:
        if precision is not None:
            raise InputError(
                f"{service.name} is a language model, whose precision is generation.precision in its service file",
                hint="leave out --precision",
            )
        return _export_text(project, service, force=force, on_progress=on_progress)
    source, folder, samples = source_of(project, service), out_folder(project, service), graph_samples(service)
    tolerance, limit, guard = service.model.tolerance, service.max_batch_size, guarding(service)
    chosen = precision or service.model.precision
    if not force and up_to_date(
        source, folder, samples=samples, tolerance=tolerance, batch_limit=limit, precision=chosen, guard=guard
    ):
        place_native(project.model_repository, service)
        return None
    result = export(
        source,
        folder,
        samples=samples,
        tolerance=tolerance,
        batch_limit=limit,
        precision=chosen,
        guard=guard,
        on_progress=on_progress,
        log_path=project.cache / "logs" / f"export-{service.name}.log",
    )
    if result.ok:
        place_native(project.model_repository, service)
    return result


def _export_text(
    project: Project, service: Service, *, force: bool, on_progress: Callable[[str], None]
) -> ExportResult | None:
    # Late: the engine and torch take seconds to import, and no other export needs the engine.
    from brim_export.language_model import export_language_model
    from brim_export.language_model import up_to_date as text_up_to_date
    from brim_export.language_model_source import find_source
    from brim_export.model_shape import check_context, shape_of

    source, folder = find_source(str(service.model.llm), project.root), out_folder(project, service)
    check_context(shape_of(source), generation_of(service).context_tokens, f"services/{service.name}.yaml")
    if not force and text_up_to_date(source, folder):
        return None
    gates, record = export_language_model(source, folder, on_progress=on_progress)
    return ExportResult(gates, None, folder / language_model_file(service) if record else None, "", record)
