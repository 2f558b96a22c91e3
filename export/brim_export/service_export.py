"""Export what a service file names, into the place that the model repository keeps for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brim.paths import Project
from brim.service.samples import sample_rows
from brim.service.schema import Service
from brim_export.pipeline import ExportResult, Samples, export, up_to_date
from brim_export.source import OnnxSource, Source, TorchSource

VERSION = "1"
"""Brim writes one version of a model; Triton's other versions are the user's own."""


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


def export_service(
    project: Project, service: Service, *, force: bool = False, on_progress: Callable[[str], None] = lambda _: None
) -> ExportResult | None:
    """Export the service's model, or return None when what is there is what an export would make.

    Raises:
        InputError, ModelFileError, NoSpace: as ``brim_export.pipeline.export``.
    """
    source, folder, samples = source_of(project, service), out_folder(project, service), graph_samples(service)
    tolerance, limit = service.model.tolerance, service.max_batch_size
    if not force and up_to_date(source, folder, samples=samples, tolerance=tolerance, batch_limit=limit):
        return None
    return export(
        source,
        folder,
        samples=samples,
        tolerance=tolerance,
        batch_limit=limit,
        on_progress=on_progress,
        log_path=project.cache / "logs" / f"export-{service.name}.log",
    )
