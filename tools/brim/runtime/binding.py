"""What a model's configuration declares, tied to what its graph has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.errors import InputError, ModelFileError
from brim.limits import BATCH_LIMIT
from brim.runtime.contract import Contract, TensorSpec, dtype_of, type_name
from brim.runtime.guard import InputRules
from brim.runtime.record import ExportRecord
from brim.runtime.session import GraphTensor
from brim.runtime.settings import GuardSettings, Settings


def read_contract(config: Mapping[str, Any]) -> Contract:
    """Inputs, outputs and row limit of a model configuration, as Triton hands it to the python backend.

    Raises:
        InputError: the model does not batch, batches more than the limit, or has a type that numpy lacks.
    """
    name, most = config["name"], int(config.get("max_batch_size", 0))
    if not 1 <= most <= BATCH_LIMIT:
        raise InputError(
            f"model {name}: max_batch_size is {most}, expected 1..{BATCH_LIMIT}: the GPU takes no more rows in one run",
            hint=f"set max_batch_size in config.pbtxt to 1..{BATCH_LIMIT}, or `brim config --write` to generate it",
        )
    return Contract(
        inputs=tuple(_spec(name, tensor) for tensor in config.get("input", [])),
        outputs=tuple(_spec(name, tensor) for tensor in config.get("output", [])),
        max_rows=most,
    )


def _spec(model: str, tensor: Mapping[str, Any]) -> TensorSpec:
    dims = tensor["reshape"].get("shape", []) if "reshape" in tensor else tensor["dims"]
    try:
        return TensorSpec(tensor["name"], dtype_of(tensor["data_type"]), tuple(int(size) for size in dims))
    except KeyError as error:
        raise InputError(
            f"model {model}: {tensor['name']} has type {tensor['data_type']}, which numpy cannot carry",
            hint="cast the tensor inside the graph, and configure the type that it then has",
        ) from error


def graph_names(
    role: str,
    specs: Sequence[TensorSpec],
    graph: Mapping[str, GraphTensor],
    given: Mapping[str, str],
    path: Path,
) -> dict[str, str]:
    """Triton name -> graph name, checked against the graph; every fault is reported.

    Raises:
        ModelFileError: a tensor has no counterpart, another type or another rank, a fixed batch axis, or a graph input
            is left without a tensor.
    """
    names: dict[str, str] = {}
    faults: list[str] = [
        f"{role}s names {name}, which the configuration lacks" for name in set(given) - {s.name for s in specs}
    ]
    for spec in specs:
        name = given.get(spec.name) or (next(iter(graph)) if len(specs) == len(graph) == 1 else spec.name)
        tensor = graph.get(name)
        if tensor is None:
            faults.append(f"{role} {spec.name} would be {name} in the graph, whose {role}s are {sorted(graph)}")
            continue
        names[spec.name] = name
        if tensor.dtype != spec.dtype:
            have = "an unsupported type" if tensor.dtype is None else type_name(tensor.dtype)
            faults.append(f"{role} {spec.name} is {type_name(spec.dtype)} in the configuration and {have} in the graph")
        if tensor.shape and isinstance(tensor.shape[0], int):
            faults.append(f"{role} {name} has a fixed batch axis of {tensor.shape[0]} in the graph: it cannot batch")
        if tensor.shape and not _row_shapes_agree(spec.shape, tensor.shape[1:]):
            row = [-1 if size is None else size for size in tensor.shape[1:]]
            faults.append(
                f"{role} {spec.name} has rows of {list(spec.shape)} in the configuration and {row} in the graph"
            )
    missing = sorted(set(graph) - set(names.values())) if role == "input" else []
    if missing:
        faults.append(f"graph inputs {missing} come from no input of the configuration")
    if faults:
        raise ModelFileError(
            f"{path} and its configuration disagree: {'; '.join(faults)}", hint="export or configure it again"
        )
    return names


def _row_shapes_agree(ours: tuple[int, ...], graph: tuple[int | None, ...]) -> bool:
    return len(ours) == len(graph) and all(
        size in (-1, want) or want is None for size, want in zip(ours, graph, strict=True)
    )


def guard_rules(
    contract: Contract, settings: Settings, to_graph: Mapping[str, str], record: ExportRecord
) -> dict[str, InputRules]:
    """The guard's rules by Triton input: those of the settings, and where they are silent those of the export.

    Raises:
        InputError: the settings have rules for an input that the configuration lacks.
    """
    known = [spec.name for spec in contract.inputs]
    strange = sorted(set(settings.guard) - set(known))
    if strange:
        raise InputError(
            f"guard names {strange}, the inputs are {sorted(known)}",
            hint="use the names of config.pbtxt's inputs; `brim config --write` generates both",
        )
    rules: dict[str, InputRules] = {}
    for name in known:
        own = settings.guard.get(name, GuardSettings())
        graph_name = to_graph.get(name, "")
        low, high = record.index_ranges.get(graph_name, (None, None))
        rules[name] = InputRules(
            finite=own.finite,
            minimum=low if own.minimum is None else own.minimum,
            maximum=high if own.maximum is None else own.maximum,
            longest_bytes=own.longest_bytes,
            largest_size=record.largest_size.get(graph_name) if own.largest_size is None else own.largest_size,
        )
    return rules
