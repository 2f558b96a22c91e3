"""Messages that break the protocol: what a confused or hostile client sends while others share the server.

Left out on purpose, since a conformance suite must not end the server of somebody else: what is known to end a bare
tritonserver 24.10 (``brim.isolation.fuzz_avoid``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tritonclient.grpc import service_pb2

from brim.isolation.contract import ModelContract
from brim.isolation.request import Request
from brim.isolation.wire import HEADER_LENGTH, HttpMessage, WireTensor, http_message, tensor_bytes, wire_tensors
from brim.measure.plan import Protocol
from brim.service.samples import Row

NESTING = 500
"""Deep enough to be wrong, far from the depth that ends a server."""
OVERSIZE_BYTES = 4 << 20
HUGE_ROWS = 1 << 62
Tensors = tuple[WireTensor, ...]


def malformed_requests(contract: ModelContract, row: Row) -> list[Request]:
    """Wrong names, types, shapes, sizes and bodies, over both protocols, none of them about ``framing_requests``."""
    tensors = wire_tensors(contract, row)
    found = _both(contract, _wrong_tensors(contract, row, tensors))
    found += [
        Request(contract.name, Protocol.HTTP, what, raw=message, breaks=True)
        for what, message in _wrong_http(contract, tensors)
    ]
    found += [
        Request(contract.name, Protocol.GRPC, what, raw=message, breaks=True)
        for what, message in _wrong_grpc(contract, tensors)
    ]
    return found


def framing_requests(contract: ModelContract, row: Row) -> list[Request]:
    """Row counts and lengths of kinds that a server may notice only inside a batch.

    Measured on 24.10, before any model code runs: a BYTES length that lies fails every request of a python-backend batch;
    a request of zero rows is free for the scheduler, but the python backend counts the next size of its shape as its rows
    (``CheckIncomingRequests`` in python_be.cc), so a full batch becomes too large and fails whole.
    """
    tensors = wire_tensors(contract, row)
    found = _both(contract, _wrong_frames(contract, tensors))
    if contract.batched:
        none = tuple(_of(tensor, row[tensor.name][:0]) for tensor in tensors)
        found += [Request(contract.name, protocol, "zero rows", tensors=none, breaks=True) for protocol in Protocol]
    return found


def _both(contract: ModelContract, variants: Iterator[tuple[str, Tensors]]) -> list[Request]:
    return [
        Request(contract.name, protocol, what, tensors=tensors, breaks=True)
        for what, tensors in variants
        for protocol in Protocol
    ]


def _wrong_tensors(contract: ModelContract, row: Row, tensors: Tensors) -> Iterator[tuple[str, Tensors]]:
    first, rest = tensors[0], tensors[1:]
    array = row[first.name]

    def with_first(tensor: WireTensor) -> Tensors:
        return (tensor, *rest)

    other = "INT32" if first.datatype != "INT32" else "FP64"
    filler = np.ones(first.shape, np.int32 if other == "INT32" else np.float64)
    yield f"{other} instead of {first.datatype}", with_first(replace(first, datatype=other, data=filler.tobytes()))
    yield "a type that does not exist", with_first(replace(first, datatype="FP33"))
    yield "no type", with_first(replace(first, datatype=""))
    yield "the batch dimension missing", with_first(replace(first, shape=first.shape[1:]))
    yield "one dimension too many", with_first(replace(first, shape=(*first.shape, 1)))
    yield "a negative dimension", with_first(replace(first, shape=(-1, *first.shape[1:])))
    if array.ndim > 1:
        wider = np.repeat(array, 2, axis=-1)
        if contract.inputs[0].shape[-1:] != (-1,):
            yield "a wrong last dimension", with_first(_of(first, wider))
        empty = array[..., :0]
        yield "a row without elements", with_first(_of(first, empty))
    if contract.batched:
        many = contract.max_rows + 1
        yield (
            f"{many} rows where {contract.max_rows} are allowed",
            tuple(_of(tensor, np.repeat(row[tensor.name], many, axis=0)) for tensor in tensors),
        )
        if rest:
            yield "two rows in one input and one in the others", with_first(_of(first, np.repeat(array, 2, axis=0)))
    if first.datatype != "BYTES":
        yield "half of the bytes", with_first(replace(first, data=first.data[: len(first.data) // 2]))
        yield "twice the bytes", with_first(replace(first, data=first.data * 2))
        yield "far too many bytes", with_first(replace(first, data=bytes(OVERSIZE_BYTES)))
    yield "an input missing", rest
    yield "an unknown input beside the right ones", (*tensors, replace(first, name="NO_SUCH_INPUT"))
    yield "an unknown name for an input", with_first(replace(first, name="NO_SUCH_INPUT"))
    yield "an input twice", (first, *tensors)


def _of(tensor: WireTensor, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> WireTensor:
    return replace(tensor, shape=array.shape, data=tensor_bytes(array, tensor.datatype))


def _wrong_http(contract: ModelContract, tensors: Tensors) -> Iterator[tuple[str, HttpMessage]]:
    right = http_message(tensors, "")
    length = int(right.headers[HEADER_LENGTH])
    for what, value in (
        ("beyond the body", str(len(right.body) + 1)),
        ("inside the JSON", str(length - 1)),
        ("of 0", "0"),
        ("of -5", "-5"),
        ("that is no number", "many"),
        ("of 2^64", str(1 << 64)),
    ):
        yield f"a header length {what}", HttpMessage(right.body, {HEADER_LENGTH: value})
    yield "no header length", HttpMessage(right.body)
    yield "the body cut in half", HttpMessage(right.body[: len(right.body) // 2], right.headers)
    for what, text in (
        ("an empty body", ""),
        ("JSON that ends early", '{"inputs": [{"name": '),
        ("no JSON", "hello"),
        ("JSON null", "null"),
        ("a JSON list", "[]"),
        ("inputs that are a number", '{"inputs": 3}'),
        (f"{NESTING} nested brackets", "[" * NESTING + "]" * NESTING),
        (f"{NESTING} brackets that stay open", '{"inputs": ' + "[" * NESTING),
    ):
        yield what, HttpMessage(text.encode())
    yield "JSON that is not UTF-8", HttpMessage(b'{"id": "\xff\xfe", "inputs": []}')
    described = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors]
    for what, data in (("words for values", ["word", {}]), ("the literal NaN for data", float("nan"))):
        body = json.dumps({"inputs": [{**one, "data": data} for one in described]})
        yield what, HttpMessage(body.encode())
    head = json.loads(right.body[:length])
    for what, more in (
        ("an unknown output", {"outputs": [{"name": "NO_SUCH_OUTPUT"}]}),
        (
            "an output twice",
            {"outputs": [{"name": contract.outputs[0].name, "parameters": {"binary_data": True}}] * 2},
        ),
        ("unknown parameters", {"parameters": {"binary_data_output": True, "no_such_parameter": "x"}}),
        ("a parameter that is a list", {"parameters": {"binary_data_output": True, "no_such_parameter": [1]}}),
        ("a priority that is a text", {"parameters": {"binary_data_output": True, "priority": "high"}}),
    ):
        changed = json.dumps({**head, **more}).encode()
        yield what, HttpMessage(changed + right.body[length:], {HEADER_LENGTH: str(len(changed))})


def _wrong_grpc(contract: ModelContract, tensors: Tensors) -> Iterator[tuple[str, bytes]]:
    def message() -> service_pb2.ModelInferRequest:
        made = service_pb2.ModelInferRequest(model_name=contract.name)
        for tensor in tensors:
            made.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            made.raw_input_contents.append(tensor.data)
        return made

    right = message().SerializeToString()
    yield "an empty message", b""
    yield "bytes that are no message", b"\xff" * 64
    yield "the message cut in half", right[: len(right) // 2]
    changed = message()
    changed.model_version = "no such version"
    yield "an unknown version", changed.SerializeToString()
    changed = message()
    del changed.raw_input_contents[:]
    yield "no contents", changed.SerializeToString()
    changed = message()
    changed.raw_input_contents.append(b"\x00" * 16)
    yield "more contents than inputs", changed.SerializeToString()
    changed = message()
    changed.inputs[0].contents.fp32_contents.append(1.0)
    yield "raw and typed contents at once", changed.SerializeToString()
    changed = message()
    changed.outputs.add(name="NO_SUCH_OUTPUT")
    yield "an unknown output", changed.SerializeToString()
    changed = message()
    changed.parameters["no_such_parameter"].string_param = "x"
    yield "an unknown parameter", changed.SerializeToString()


def _wrong_frames(contract: ModelContract, tensors: Tensors) -> Iterator[tuple[str, Tensors]]:
    for number, tensor in enumerate(tensors):

        def changed(tensor: WireTensor, number: int = number) -> Tensors:
            return (*tensors[:number], tensor, *tensors[number + 1 :])

        if contract.batched:
            yield (
                f"zero rows in {tensor.name} and the bytes of one",
                changed(replace(tensor, shape=(0, *tensor.shape[1:]))),
            )
            yield (
                f"2^62 rows in {tensor.name} and the bytes of one",
                changed(replace(tensor, shape=(HUGE_ROWS, *tensor.shape[1:]))),
            )
        if tensor.datatype == "BYTES":
            one = b"\x01\x00\x00\x00a"
            for what, data in (
                ("says 1000 bytes and carries 5", b"\xe8\x03\x00\x00hello"),
                ("has no length in front", b"hello"),
                ("says 2^32-1 bytes", b"\xff\xff\xff\xffhello"),
                ("ends inside its length", b"\x05\x00"),
                ("is not there", b""),
                ("comes twice", one * 2 * int(np.prod(tensor.shape))),
            ):
                yield f"an element of {tensor.name} {what}", changed(replace(tensor, data=data))
