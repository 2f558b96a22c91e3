"""``brim export``: a model past the gates and into the model repository, or the reasons why not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say
from brim.config.files import VERSION
from brim.config.generate import native_name
from brim.config.tensorrt_plan import EnginePrecision
from brim.errors import InputError
from brim.paths import find_project
from brim.service.load import find_service
from brim.service.schema import Precision
from brim_export.engine import EngineResult, export_engine
from brim_export.gates import GateResult
from brim_export.pipeline import ExportResult
from brim_export.pipeline import export as export_model
from brim_export.service_export import export_service, out_folder
from brim_export.source import OnnxSource, Source, TorchSource

TorchOption = Annotated[str | None, typer.Option("--torch", metavar="MODULE:FACTORY", help="A factory of your own.")]
OnnxOption = Annotated[Path | None, typer.Option("--onnx", metavar="FILE", help="An ONNX file of your own.")]


def one_source(torch: str | None, onnx: Path | None) -> Source:
    """The source that the options name.

    Raises:
        InputError: neither or both were given.
    """
    if (torch is None) == (onnx is None):
        raise InputError(
            "give exactly one of --torch and --onnx", hint="--torch package.module:factory, or --onnx FILE"
        )
    return OnnxSource(onnx) if onnx is not None else TorchSource(str(torch))


def put_gates(gates: Sequence[GateResult]) -> None:
    """Each gate's answer, a line each."""
    for gate in gates:
        answer = "REFUSED" if not gate.ok else "SKIPPED" if gate.skipped else "ok     "
        put(f"{answer} {gate.gate}: {gate.message}")


def export(
    name: Annotated[str | None, typer.Argument(help="A service.")] = None,
    torch: TorchOption = None,
    onnx: OnnxOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the files go; for --torch and --onnx. Gates only when absent.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32, fp16, int8, int8-rows or int8-dynamic instead of the service file's; with --tensorrt: fp32, fp16 "
            "(the usual), bf16, fp8 or int8."
        ),
    ] = None,
    tensorrt: Annotated[
        bool, typer.Option("--tensorrt", help="Build the engine of an exported service for this machine's GPU.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Export even when nothing has changed.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Export a model to ONNX, or to a TensorRT engine, and hold it against every gate. Exit 1 when one refuses; nothing is
    written then."""
    if tensorrt:
        if name is None or torch or onnx or out:
            raise InputError(
                "an engine is built of an exported service", hint="brim export NAME --tensorrt [--precision fp16]"
            )
        return _engine(name, one_of(EnginePrecision, precision or EnginePrecision.FP16.value), force, as_json)
    chosen = one_of(Precision, precision) if precision is not None else None
    if name is not None:
        if torch or onnx or out:
            raise InputError(
                "a service's source and place are in its service file", hint="leave out --torch, --onnx and --out"
            )
        project = find_project()
        service = find_service(project.services, name)
        result = export_service(project, service, precision=chosen, force=force, on_progress=say)
        where: Path | None = out_folder(project, service)
    else:
        source = one_source(torch, onnx)
        given = chosen or Precision.FP32
        if out is None:
            with tempfile.TemporaryDirectory(prefix="brim-export-") as folder:
                result = export_model(source, Path(folder) / "out", precision=given, on_progress=say)
                where = None
        else:
            place = out.resolve()
            log_path = place.parent / f"{place.name}.export.log"
            result = export_model(source, place, precision=given, on_progress=say, log_path=log_path)
            where = out
    return _report(result, where, as_json)


Choice = TypeVar("Choice", bound=StrEnum)


def one_of(kind: type[Choice], given: str) -> Choice:
    """The precision of that name.

    Raises:
        InputError: there is none.
    """
    try:
        return kind(given)
    except ValueError as error:
        raise InputError(f"--precision {given}: no such precision here", hint=f"one of {', '.join(kind)}") from error


def _engine(name: str, precision: EnginePrecision, force: bool, as_json: bool) -> int:
    project = find_project()
    service = find_service(project.services, name)
    result = export_engine(project, service, precision, force=force, on_progress=say)
    return _report(result, project.model_repository / native_name(service) / VERSION, as_json)


def _report(result: ExportResult | EngineResult | None, where: Path | None, as_json: bool) -> int:
    if result is None:
        if as_json:
            put_answer("export", {"gates": [], "up_to_date": True, "out": str(where)})
        else:
            say(f"{where} is up to date; --force exports again")
        return 0
    if as_json:
        listed = [gate.as_json() for gate in result.gates]
        kept = str(where) if result.ok and where else None
        put_answer("export", {"gates": listed, "up_to_date": False, "out": kept}, ok=result.ok)
    else:
        put_gates(result.gates)
        if result.ok:
            say(f"written to {where}" if where else "every gate passed; --out DIR keeps the files")
        else:
            say("nothing was written")
    return 0 if result.ok else 1
