"""What a model takes and gives, read from the server itself over KServe v2."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from brim.errors import InputError, ServerFailed
from brim.server.endpoint import Endpoint

METADATA_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a row. ``shape`` is without the batch dimension; -1 is a variable size.

    Attributes:
        name: as the server calls it.
        datatype: KServe v2 name, such as ``FP32`` or ``BYTES``.
        shape: sizes of one row.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """The numpy type; that of BF16 comes from ml_dtypes."""
        return np.dtype(triton_to_np_dtype(self.datatype))


def is_floating(kind: np.dtype[Any]) -> bool:
    """Whether values of this type are compared by distance; numpy itself counts BF16 as raw bytes."""
    return kind.kind in "fc" or kind.name == "bfloat16"


@dataclass(frozen=True, slots=True)
class ModelContract:
    """A model's required inputs, its outputs and how many rows one request may have.

    Attributes:
        name: the model.
        inputs: required inputs.
        outputs: all outputs.
        max_rows: most rows in one request; 1 where the server does not say that requests may have several.
        batched: whether tensors carry a batch dimension in front.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int
    batched: bool


def read_contract(endpoint: Endpoint, model: str) -> ModelContract:
    """Ask the server. Its configuration (a Triton extension) tells rows and optional inputs, else the metadata does.

    Raises:
        ServerFailed: nothing answers there.
        InputError: the server does not know the model, or the model has an input of a type that cannot be sent.
    """
    with closing(endpoint.http_client(timeout_s=METADATA_TIMEOUT_S)) as client:
        try:
            metadata = client.get_model_metadata(model)
        except InferenceServerException as error:
            raise InputError(
                f"{endpoint.http}: no metadata of the model {model}: {error.message()}",
                hint="--model is the name under which the server has it",
            ) from error
        except (OSError, ValueError) as error:
            raise ServerFailed(
                f"{endpoint.http}: no KServe v2 server answers over HTTP: {error}",
                hint="start one with `brim serve`, and give the HTTP address that it prints",
            ) from error
        try:
            config = client.get_model_config(model)
        except (InferenceServerException, OSError, ValueError):
            config = None
    return contract_of(model, metadata, config)


def contract_of(model: str, metadata: Mapping[str, Any], config: Mapping[str, Any] | None) -> ModelContract:
    """The contract in the server's two documents.

    Without a configuration, a model whose tensors all have a variable first size is taken to be batched.

    Raises:
        InputError: an input has a type that KServe v2 does not know.
    """
    tensors = [*metadata.get("inputs", []), *metadata.get("outputs", [])]
    if config is None:
        batched = bool(tensors) and all(_shape(tensor)[:1] == (-1,) for tensor in tensors)
        max_rows = 1
    else:
        batched = int(config.get("max_batch_size", 0)) > 0
        max_rows = max(1, int(config.get("max_batch_size", 0)))
    optional = {entry["name"] for entry in (config or {}).get("input", []) if entry.get("optional")}

    def specs(role: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(tensor["name"], tensor["datatype"], _shape(tensor)[1:] if batched else _shape(tensor))
            for tensor in metadata.get(role, [])
            if tensor["name"] not in optional
        )

    inputs = specs("inputs")
    strange = [f"{spec.name} is {spec.datatype}" for spec in inputs if triton_to_np_dtype(spec.datatype) is None]
    if strange:
        raise InputError(f"{model}: inputs that cannot be sent: {', '.join(strange)}", hint="KServe v2 types only")
    if not inputs:
        raise InputError(f"{model} has no required input, so nothing can be sent", hint="pick another model")
    return ModelContract(model, inputs, specs("outputs"), max_rows, batched)


def _shape(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor["shape"])


def other_model(endpoint: Endpoint, model: str) -> str | None:
    """The first other model that the server holds ready, by name; None where it has none or does not tell."""
    client: triton_http.InferenceServerClient
    with closing(endpoint.http_client(timeout_s=METADATA_TIMEOUT_S)) as client:
        try:
            index = client.get_model_repository_index()
        except (InferenceServerException, OSError, ValueError):
            return None
    names = sorted(entry["name"] for entry in index if entry.get("state") == "READY")
    return next((name for name in names if name != model), None)
