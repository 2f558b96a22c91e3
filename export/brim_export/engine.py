"""A TensorRT engine of a service's guarded graph: built once for a GPU, held against every gate, and put in place.

Engines are kept in ``.cache/engines`` under what they depend on: GPU, TensorRT, graph, profile and precision. The one that
is served lies in ``NAME-native/1`` as ``model.plan``, with ``profiles.json`` for the linter and ``engine.json`` beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import join

import onnx

from brim.config.files import VERSION, write_whole
from brim.config.generate import MODEL_FILES, native_name
from brim.config.shapes import OptimisationProfile
from brim.config.tensorrt_plan import (
    EnginePrecision,
    optimisation_profile,
    polygraphy_command,
    profile_document,
    trtexec_command,
)
from brim.errors import ModelFileError
from brim.lint.tensorrt import PROFILES_NAME
from brim.paths import Project
from brim.service.schema import Service
from brim_export import artifact
from brim_export.artifact import Artifact, FileRecord, GateRecord, hash_file
from brim_export.engine_gates import engine_gates
from brim_export.engine_record import RECORD_NAME, EngineRecord, read_engine_record
from brim_export.gates import GateResult
from brim_export.placement import work_folder
from brim_export.quantised import require_precision
from brim_export.service_export import out_folder
from brim_export.session import LoadFailed
from brim_export.tensorrt_tools import Toolchain, find_toolchain

CACHE_NAME = "engines"


@dataclass(frozen=True, slots=True)
class EngineKey:
    """All that an engine depends on. ``graph`` is the SHA-256 of the guarded graph, ``profile`` that of its profile."""

    service: str
    gpu: str
    tensorrt: str
    graph: str
    profile: str
    precision: EnginePrecision

    @property
    def stem(self) -> str:
        """Names the engine's file in the cache."""
        parts = (self.service, self.gpu, f"trt{self.tensorrt}", self.graph[:12], self.profile[:8], self.precision.value)
        return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in parts)

    @property
    def timing_stem(self) -> str:
        """Names the timing cache, which TensorRT reads for the same GPU and version only."""
        return "-".join(re.sub(r"[^A-Za-z0-9._]+", "_", part) for part in (self.gpu, f"trt{self.tensorrt}"))


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The gates' answers; ``plan`` is None when one refused, and nothing was put in place."""

    gates: list[GateResult]
    plan: Path | None

    @property
    def ok(self) -> bool:
        """Whether every gate passed."""
        return self.plan is not None


def profile_hash(profile: OptimisationProfile) -> str:
    """SHA-256 of the profile as the linter reads it."""
    return hashlib.sha256(json.dumps(profile_document(profile), sort_keys=True).encode()).hexdigest()


def export_engine(
    project: Project,
    service: Service,
    precision: EnginePrecision,
    *,
    force: bool = False,
    toolchain: Toolchain | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> EngineResult | None:
    """Build the engine that the profile ``tensorrt`` serves, or return None when the one in place is that.

    Args:
        project: where the exported graph lies.
        service: whose engine it is.
        precision: what it computes in.
        force: build in any case.
        toolchain: instead of this machine's.
        on_progress: told what is happening.

    Raises:
        InputError: the service is a language model, or its graph does not suit the precision.
        ModelFileError: the service is not exported, or has no guarded graph.
        MissingTool: this machine has no GPU or no TensorRT; the hint is the command for one that has.
        BuildFailed: TensorRT does not make an engine of the graph.
    """
    profile = optimisation_profile(service)
    exported = artifact.verify(out_folder(project, service))
    folder = project.model_repository / native_name(service) / VERSION
    graph = folder / MODEL_FILES["onnxruntime"]
    record = _guarded(service, exported, graph)
    require_precision(onnx.load(str(graph), load_external_data=False), precision, service.name)
    plan = folder / MODEL_FILES["tensorrt"]
    if toolchain is None:
        shown = [path.relative_to(project.root) for path in (graph, plan, folder / "timing.cache")]
        command = join(trtexec_command(profile, precision, shown[0], shown[1], shown[2]))
        toolchain = find_toolchain(_gpu(service), command)
    key = EngineKey(service.name, toolchain.gpu, toolchain.version, record.sha256, profile_hash(profile), precision)
    if not force and _in_place(folder, key):
        return None
    engines = project.cache_folder() / CACHE_NAME
    engines.mkdir(exist_ok=True)
    kept = engines / f"{key.stem}.plan"
    timings = engines / f"{key.timing_stem}.timings"
    words = _command(toolchain, profile, precision, graph, kept, timings)
    if force or not kept.is_file():
        on_progress(f"building the engine for {toolchain.gpu} with TensorRT {toolchain.version}: minutes")
        with work_folder(engines, ".building-") as beside:
            made = beside / kept.name
            toolchain.build(
                _command(toolchain, profile, precision, graph, made, timings),
                project.cache / "logs" / f"tensorrt-{service.name}.log",
            )
            if not made.is_file() or not made.stat().st_size:
                raise ModelFileError(f"{words[0]} said that all is well, and wrote no engine", hint="build it by hand")
            made.replace(kept)
    on_progress("loading the engine")
    try:
        with toolchain.opened(kept) as session:
            results = engine_gates(project, service, exported, graph, session, precision, on_progress)
    except LoadFailed as error:
        raise ModelFileError(
            f"TensorRT does not load the engine that it built: {error}", hint="--force builds it anew"
        ) from error
    if not all(result.ok for result in results):
        return EngineResult(results, None)
    _place(folder, key, kept, profile, words, results)
    return EngineResult(results, plan)


def _guarded(service: Service, exported: Artifact, graph: Path) -> FileRecord:
    if exported.guard is None:
        raise ModelFileError(
            f"{service.name} was exported without a guarded graph, and native backends serve no other",
            hint=f"`brim export {service.name} --force` says why the graph cannot be guarded",
        )
    record = exported.files[exported.guard.file]
    if not graph.is_file() or hash_file(graph) != record:
        raise ModelFileError(f"{graph} is not the guarded graph of the export", hint=f"run brim export {service.name}")
    return record


def _gpu(service: Service) -> int:
    return next((gpu for group in service.instances for gpu in group.gpus), 0)


def _command(
    toolchain: Toolchain,
    profile: OptimisationProfile,
    precision: EnginePrecision,
    graph: Path,
    plan: Path,
    timings: Path,
) -> list[str]:
    if toolchain.trtexec is None:
        return polygraphy_command(profile, precision, graph, plan, timings)
    return [str(toolchain.trtexec), *trtexec_command(profile, precision, graph, plan, timings)[1:]]


def _in_place(folder: Path, key: EngineKey) -> bool:
    record = read_engine_record(folder)
    if record is None:
        return False
    plan = folder / MODEL_FILES["tensorrt"]
    same = all(getattr(record, name) == value for name, value in _fields(key).items())
    return same and plan.is_file() and hash_file(plan) == record.plan


def _fields(key: EngineKey) -> Mapping[str, object]:
    return {name: getattr(key, name) for name in EngineKey.__dataclass_fields__}


def _place(
    folder: Path,
    key: EngineKey,
    kept: Path,
    profile: OptimisationProfile,
    words: list[str],
    results: list[GateResult],
) -> None:
    record = EngineRecord.model_validate(
        {
            **_fields(key),
            "command": join([Path(words[0]).name, *words[1:]]),
            "plan": hash_file(kept),
            "gates": [GateRecord(gate=one.gate, ok=one.ok, message=one.message) for one in results],
        }
    )
    with work_folder(folder, ".placing-") as beside:
        made = beside / MODEL_FILES["tensorrt"]
        try:
            made.hardlink_to(kept)
        except OSError:
            shutil.copyfile(kept, made)
        made.replace(folder / made.name)
    write_whole(folder / PROFILES_NAME, json.dumps(profile_document(profile), indent=2) + "\n")
    # Last: with it, the engine counts as built.
    write_whole(folder / RECORD_NAME, record.model_dump_json(indent=2) + "\n")
