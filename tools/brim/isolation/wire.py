"""Requests as bytes, for both protocols. Written out here, since a client library refuses to send what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from brim.isolation.contract import ModelContract

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class WireTensor:
    """One input as it travels: nothing says that the parts agree."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """Body and headers of ``POST /v2/models/M/infer``."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def tensor_bytes(array: np.ndarray[Any, Any], datatype: str) -> bytes:
    """The binary form of KServe v2: little-endian values; every BYTES element behind its length in 4 bytes."""
    if datatype == "BYTES":
        packed = serialize_byte_tensor(array)
        return bytes(packed.item()) if packed.size else b""
    return array.tobytes()


def wire_tensors(contract: ModelContract, row: Mapping[str, np.ndarray[Any, Any]]) -> tuple[WireTensor, ...]:
    """A right request: every input of the contract with the arrays of ``row``."""
    return tuple(
        WireTensor(spec.name, spec.datatype, row[spec.name].shape, tensor_bytes(row[spec.name], spec.datatype))
        for spec in contract.inputs
    )


def http_message(tensors: Sequence[WireTensor], request_id: str) -> HttpMessage:
    """JSON header and binary tensors; the outputs are asked for in binary form, too."""
    head = {
        "id": request_id,
        "parameters": {"binary_data_output": True},
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(tensor.data)},
            }
            for tensor in tensors
        ],
    }
    text = json.dumps(head).encode()
    return HttpMessage(b"".join([text, *(tensor.data for tensor in tensors)]), {HEADER_LENGTH: str(len(text))})


def json_values(tensor: WireTensor) -> list[Any] | None:
    """The tensor's values as JSON has them, flat; None where JSON cannot carry them: half precision, text not in UTF-8."""
    if tensor.datatype in ("FP16", "BF16"):
        return None
    if tensor.datatype == "BYTES":
        try:
            return [value.decode("utf-8") for value in deserialize_bytes_tensor(tensor.data)]
        except UnicodeDecodeError:
            return None
    values: list[Any] = np.frombuffer(tensor.data, triton_to_np_dtype(tensor.datatype)).tolist()
    return values


def http_json_message(tensors: Sequence[WireTensor], request_id: str) -> HttpMessage:
    """The whole request as JSON, and so is its answer. Every tensor must have ``json_values``."""
    inputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": json_values(tensor)}
        for tensor in tensors
    ]
    return HttpMessage(json.dumps({"id": request_id, "inputs": inputs}).encode(), {"Content-Type": "application/json"})


def grpc_message(model: str, tensors: Sequence[WireTensor], request_id: str) -> bytes:
    """A serialised ``ModelInferRequest``."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.data)
    return bytes(request.SerializeToString())
