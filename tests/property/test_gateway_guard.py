from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.isolation.wire import HEADER_LENGTH, WireTensor, grpc_message, http_json_message, http_message
from tests.unit.gateway_guard import LuaGuard

GUARD = LuaGuard()
ITEM_BYTES = {"BOOL": 1, "FP16": 2, "INT32": 4, "FP32": 4, "INT64": 8, "FP64": 8}


@st.composite
def fixed_tensors(draw: st.DrawFn) -> WireTensor:
    datatype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = draw(st.lists(st.integers(-1, 5), max_size=4).map(tuple))
    honest = int(np.prod(shape)) * ITEM_BYTES[datatype] if min(shape, default=0) >= 0 else 0
    size = draw(st.just(honest) | st.integers(0, 64))
    return WireTensor(draw(st.text(max_size=5)), datatype, shape, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def byte_tensors(draw: st.DrawFn) -> WireTensor:
    texts = draw(st.lists(st.binary(max_size=8), max_size=4))
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    data = draw(st.just(data) | st.binary(max_size=24))
    return WireTensor("T", "BYTES", draw(st.just((len(texts),)) | st.just((1, 1))), data)


def agrees(tensor: WireTensor) -> bool:
    """The rule, said once more in Python: sizes in range, and as many bytes as they make."""
    if any(size < 0 for size in tensor.shape) or tensor.shape[:1] == (0,):
        return False
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if tensor.datatype != "BYTES":
        return count * ITEM_BYTES[tensor.datatype] == len(tensor.data)
    at = found = 0
    while at < len(tensor.data):
        if at + 4 > len(tensor.data):
            return False
        at += 4 + int.from_bytes(tensor.data[at : at + 4], "little")
        found += 1
    return at == len(tensor.data) and found == count


@given(st.lists(fixed_tensors() | byte_tensors(), min_size=1, max_size=4))
def test_a_request_passes_when_all_sizes_agree_and_only_then(tensors: list[WireTensor]) -> None:
    right = all(agrees(tensor) for tensor in tensors)
    message = http_message(tensors, "1")
    verdicts = [GUARD.http(message.body, message.headers[HEADER_LENGTH]), GUARD.grpc(grpc_message("m", tensors, "1"))]
    for verdict in verdicts:
        assert (verdict.status is None) == right, verdict.text
        assert verdict.status in (None, 400)


@given(st.binary(max_size=200), st.none() | st.integers(-2, 220).map(str))
def test_no_bytes_break_the_guard(body: bytes, length: str | None) -> None:
    for verdict in (GUARD.http(body, length), GUARD.grpc(body), GUARD("/v2/models/m/generate", body)):
        assert verdict.status in (None, 400)
        assert not verdict.log


@given(st.binary(max_size=40), st.integers(0, 10_000), st.integers(0, 40))
def test_damaged_requests_do_not_break_the_guard(more: bytes, place: int, cut: int) -> None:
    tensors = [WireTensor("X", "FP32", (1, 2), b"\x00" * 8), WireTensor("T", "BYTES", (1,), b"\x01\x00\x00\x00a")]
    message, other = http_message(tensors, "1"), grpc_message("m", tensors, "1")
    for verdict in (
        GUARD.http(damaged(message.body, more, place, cut), message.headers[HEADER_LENGTH]),
        GUARD.http(damaged(http_json_message(tensors, "1").body, more, place, cut)),
        GUARD.grpc(damaged(other, more, place, cut)),
    ):
        assert verdict.status in (None, 400)
        assert not verdict.log


def damaged(text: bytes, more: bytes, place: int, cut: int) -> bytes:
    at = place % (len(text) + 1)
    return text[:at] + more + text[at + cut :]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.text(alphabet=st.characters(codec="utf-8", exclude_characters='\\"'), max_size=4), values, max_size=4
    ),
    st.booleans(),
)
def test_any_json_object_passes_where_a_model_makes_sense_of_it_itself(
    document: dict[str, object], spread: bool
) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=1 if spread else None)
    plain = all(json.dumps(key, ensure_ascii=False) == f'"{key}"' for key in document)
    # A key of the request itself is an input or a parameter, and two readers may understand one with an escape differently.
    assert GUARD("/v2/models/m/generate", text.encode()).status == (None if plain else 400)


@given(values)
def test_whatever_stands_in_a_request_is_cut_at_the_same_places(value: object) -> None:
    shape = [3]
    body = {"id": value, "outputs": value, "inputs": [{"name": "X", "data": value, "datatype": value, "shape": shape}]}
    if "\\" in json.dumps(value):
        return
    assert GUARD.http(json.dumps(body).encode()).status is None
    body["inputs"][0]["shape"] = [2**31]  # type: ignore[index]
    assert "dimension 1" in GUARD.http(json.dumps(body).encode()).text
