"""What is sent, made once, and what the answer has to be. Rows and answers travel to the generator as KServe v2 messages."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, serialize_byte_tensor

from brim.errors import InputError
from brim.isolation.judge import deviation
from brim.measure.callers import Row
from brim.measure.openloop_wire import HttpBody, grpc_body, http_body

MOST_BYTES = 32 << 20
"""Of all rows that are sent, over one protocol: they are held in memory by every process."""
Outputs = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Payload:
    """Rows as whole messages, and the reference answer to each.

    Attributes:
        http: bodies of ``POST /v2/models/M/infer``.
        grpc: serialised ``ModelInferRequest``.
        references: serialised ``ModelInferResponse``, one a row.
        tolerance: how far an answer may be from its reference (``brim.isolation.judge.deviation``).
    """

    http: tuple[HttpBody, ...]
    grpc: tuple[bytes, ...]
    references: tuple[bytes, ...]
    tolerance: float

    def as_json(self) -> dict[str, Any]:
        """The same as a dictionary of what JSON has."""
        return {
            "http": [{"data": _text(one.data), "headers": dict(one.headers)} for one in self.http],
            "grpc": [_text(one) for one in self.grpc],
            "references": [_text(one) for one in self.references],
            "tolerance": self.tolerance,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` gave."""
        return cls(
            tuple(HttpBody(base64.b64decode(one["data"]), one["headers"]) for one in document["http"]),
            tuple(base64.b64decode(one) for one in document["grpc"]),
            tuple(base64.b64decode(one) for one in document["references"]),
            float(document["tolerance"]),
        )


def make_payload(model: str, rows: Sequence[Row], answers: Sequence[Outputs], tolerance: float) -> Payload:
    """Messages of the rows; of many large ones the first that fit into ``MOST_BYTES``.

    Raises:
        InputError: there is no row, or numpy's type of one has no counterpart in KServe v2.
    """
    if not rows:
        raise InputError("no row to send", hint="give the service real rows under `samples:`")
    kept, size = 0, 0
    for row in rows:
        size += sum(len(grpc_body(model, {name: array})) for name, array in row.items())
        if kept and size > MOST_BYTES:
            break
        kept += 1
    return Payload(
        tuple(http_body(row) for row in rows[:kept]),
        tuple(grpc_body(model, row) for row in rows[:kept]),
        tuple(_reference(answer) for answer in answers[:kept]),
        tolerance,
    )


def outputs_over_http(body: bytes, header_length: str | None) -> Outputs:
    """The tensors of an answer.

    Raises:
        ValueError: it is no answer of KServe v2.
    """
    try:
        result = triton_http.InferResult.from_response_body(
            body, header_length=None if header_length is None else int(header_length)
        )
        names = [tensor["name"] for tensor in result.get_response()["outputs"]]
        return {name: result.as_numpy(name) for name in names}
    except (InferenceServerException, LookupError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def outputs_over_grpc(message: bytes) -> Outputs:
    """The tensors of an answer.

    Raises:
        ValueError: it is no answer of KServe v2.
    """
    try:
        response = service_pb2.ModelInferResponse.FromString(message)
        result = triton_grpc.InferResult(response)
        return {tensor.name: result.as_numpy(tensor.name) for tensor in response.outputs}
    # protobuf's own error is an Exception and nothing narrower.
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class References:
    """The reference answers, ready to be compared with."""

    def __init__(self, payload: Payload) -> None:
        """Decode them once."""
        self._answers = [outputs_over_grpc(one) for one in payload.references]
        self._tolerance = payload.tolerance

    def fault(self, row: int, got: Outputs) -> str:
        """What is wrong with an answer to that row; empty when nothing is."""
        off, fault = deviation(got, self._answers[row])
        if fault or off > self._tolerance:
            return fault or f"off by {off:.3g} from the reference, tolerance {self._tolerance:g}"
        return ""


def _reference(answer: Outputs) -> bytes:
    response = service_pb2.ModelInferResponse()
    for name, array in answer.items():
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise InputError(
                f"output {name}: numpy type {array.dtype} has no counterpart in Triton",
                hint="cast the reference to a type of KServe v2 (docs/service-file.md lists them)",
            )
        response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        packed = serialize_byte_tensor(array) if datatype == "BYTES" else None
        response.raw_output_contents.append(
            np.ascontiguousarray(array).tobytes() if packed is None else packed.item() if packed.size else b""
        )
    return bytes(response.SerializeToString())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
