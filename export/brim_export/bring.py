"""Bring a user's own model: export it past the gates, then write its service file, configurations and adapter."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from brim.config.files import write_configs, write_whole
from brim.config.generate import NATIVE_SUFFIX, native_name
from brim.errors import InputError
from brim.limits import BATCH_LIMIT
from brim.paths import Project
from brim.runtime.template import MODEL_PY
from brim.service.load import check_text
from brim.service.schema import NAME_PATTERN
from brim_export.artifact import Artifact, Tensor
from brim_export.pipeline import ExportResult, export
from brim_export.placement import locked, work_folder
from brim_export.service_export import VERSION, place_native
from brim_export.source import OnnxSource, Source

QUESTIONS = """# {name}: brought by `brim add`. The values below are defaults: answer these before you trust them.
#   slo.latency_ms, slo.caller_gives_up_ms   how long may a caller wait, and does it give up by itself?
#   traffic                                  how much, steady or in bursts, all of one size or not?
#   callers                                  are all equal, or are there classes with priorities and deadlines?
#   samples                                  a few real rows; the first one is the canary, and load tests draw from them
# Every key: docs/service-file.md. After a change: `brim config {name} --write`.
"""


def check_name(project: Project, name: str) -> None:
    """Refuse a name that cannot be a model's, or that is taken.

    Raises:
        InputError: see above.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"{name!r} cannot name a model", hint="letters, digits and underscores, a letter first")
    folders = (project.model_repository / name, project.model_repository / f"{name}{NATIVE_SUFFIX}")
    for taken in (project.services / f"{name}.yaml", *folders):
        if taken.exists():
            raise InputError(
                f"{taken.relative_to(project.root)} exists already",
                hint=f"choose another name, or remove it first; `brim export {name} --force` exports it again",
            )


def recorded_path(project: Project, path: Path) -> str:
    """How the service file names an ONNX file: relative to the checkout when it lies inside."""
    return from_checkout(project, path.resolve())


def from_checkout(project: Project, whole: Path) -> str:
    """An absolute path as service files write it: relative to the checkout when it lies inside."""
    return str(whole.relative_to(project.root)) if whole.is_relative_to(project.root) else str(whole)


def bring(
    project: Project, name: str, source: Source, *, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[ExportResult, list[Path]]:
    """Add a service called ``name``. Returns the gates' answers and the files that were written: none when one refused.

    Everything is made beside and moved into place at the end, the service file last.

    Raises:
        InputError: the name is taken or unfit, the source is wrong, or the graph has a type that no service can state.
        ModelFileError: the model cannot be read.
    """
    check_name(project, name)
    project.model_repository.mkdir(parents=True, exist_ok=True)
    project.services.mkdir(parents=True, exist_ok=True)
    recorded = recorded_source(project, source)
    with work_folder(project.cache_folder(), ".adding-") as temporary:
        staged = temporary / name
        result = export(
            source, staged / VERSION, on_progress=on_progress, log_path=project.cache / "logs" / f"export-{name}.log"
        )
        if result.artifact is None:
            return result, []
        text = service_text(name, recorded, result.artifact)
        service, findings = check_text(text, f"services/{name}.yaml")
        if service is None:
            raise InputError(
                "\n".join(finding.render() for finding in findings),
                hint="change the named tensors in the model itself (their names, types or sizes), then add it again",
            )
        (staged / VERSION / "model.py").write_text(MODEL_PY, encoding="utf-8")
        write_configs(temporary, service)
        place_native(temporary, service)
        return result, put_in_place(project, name, temporary, [native_name(service), name], text)


def put_in_place(project: Project, name: str, temporary: Path, models: Sequence[str], text: str) -> list[Path]:
    """Move a service's models from ``temporary`` into the repository, then write its file: all of it or nothing.

    Returns:
        The files that are there now, the service file first.

    Raises:
        InputError: the name has been taken meanwhile.
    """
    file = project.services / f"{name}.yaml"
    places = [project.model_repository / model for model in models]
    with locked(project.model_repository):
        # While the gates ran, another process may have taken the name.
        check_name(project, name)
        try:
            for place in places:
                shutil.move(temporary / place.name, place)
            write_whole(file, text)
        except BaseException:
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
            raise
    return [file, *sorted(path for place in places for path in place.rglob("*") if path.is_file())]


def recorded_source(project: Project, source: Source) -> dict[str, str]:
    """What the service file says of the source.

    Raises:
        InputError: the ONNX file's path cannot be written in a text file.
    """
    if not isinstance(source, OnnxSource):
        return {"torch": source.factory}
    path = recorded_path(project, source.path)
    if not path.isprintable():
        raise InputError(f"the path {path!r} cannot stand in a service file", hint="rename the file or its folder")
    return {"onnx": path}


def service_text(name: str, model: Mapping[str, str], artifact: Artifact) -> str:
    """The service file for an exported graph, with the questions that only a person can answer on top."""
    variable = any(-1 in tensor.shape[1:] for tensor in artifact.inputs)
    document: dict[str, Any] = {
        "name": name,
        "model": dict(model),
        "inputs": _tensors(artifact.inputs),
        "outputs": _tensors(artifact.outputs),
        "slo": {"latency_ms": 1000, "percentile": 99, "caller_gives_up_ms": None},
        "traffic": {"rate_per_s": 10, "arrival": "steady", "size": "variable" if variable else "fixed"},
        "batching": {"max_queue_delay_ms": 0},
    }
    if artifact.batch_limit != BATCH_LIMIT:
        document["max_batch_size"] = artifact.batch_limit
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 120
    written = StringIO()
    yaml.dump(document, written)
    return QUESTIONS.format(name=name) + written.getvalue()


def _tensors(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"name": tensor.name, "dtype": tensor.datatype, "shape": tensor.shape[1:]} for tensor in tensors]
