"""A row as the bytes of one request, made once and sent many times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from brim.errors import InputError
from brim.measure.callers import Row


@dataclass(frozen=True, slots=True)
class HttpBody:
    """Body and headers of ``POST /v2/models/M/infer``: JSON header, binary tensors, and so for the answer."""

    data: bytes
    headers: Mapping[str, str]


def grpc_body(model: str, row: Row) -> bytes:
    """A serialised ``ModelInferRequest``.

    Raises:
        InputError: numpy's type of an array has no counterpart in KServe v2.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in row.items():
        request.inputs.add(name=name, datatype=_datatype(name, array.dtype), shape=array.shape)
        request.raw_input_contents.append(
            _text_bytes(array) if array.dtype.kind in "OSU" else np.ascontiguousarray(array).tobytes()
        )
    return bytes(request.SerializeToString())


def http_body(row: Row) -> HttpBody:
    """The same over HTTP.

    Raises:
        InputError: numpy's type of an array has no counterpart in KServe v2.
    """
    inputs = []
    for name, array in row.items():
        tensor = triton_http.InferInput(name, list(array.shape), _datatype(name, array.dtype))
        tensor.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(tensor)
    data, header_length = triton_http.InferenceServerClient.generate_request_body(inputs)
    length = {} if header_length is None else {"Inference-Header-Content-Length": str(header_length)}
    return HttpBody(bytes(data), length)


def _datatype(name: str, dtype: np.dtype[np.generic]) -> str:
    datatype = np_to_triton_dtype(dtype)
    if datatype is None:
        raise InputError(
            f"input {name}: numpy type {dtype} has no counterpart in Triton",
            hint="cast the array to a type of KServe v2 (docs/service-file.md lists them)",
        )
    return str(datatype)


def _text_bytes(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    packed = serialize_byte_tensor(array)
    return bytes(packed.item()) if packed.size else b""
