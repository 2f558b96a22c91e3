"""What the suite sends: good rows that fit, poison that is poison, and never what is known to end a server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from brim.errors import InputError
from brim.isolation.check import Material
from brim.isolation.checks import CHECKS
from brim.isolation.contract import ModelContract, TensorSpec, contract_of
from brim.isolation.judge import MARKER
from brim.isolation.malformed import framing_requests, malformed_requests
from brim.isolation.pool import Pool
from brim.isolation.request import Expected, Leaving, Request
from brim.isolation.rows import (
    LENGTHS,
    TEXTS_OF_A_LENGTH,
    has_lengths,
    marked_rows,
    poison_rows,
    random_rows,
    rows_of_lengths,
)
from brim.isolation.traffic import among, good
from brim.isolation.waiting import waiting_requests
from brim.isolation.wire import wire_tensors
from brim.measure.plan import Protocol

KINDS = ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "UINT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]


def contract(*kinds: str, max_rows: int = 100, batched: bool = True) -> ModelContract:
    inputs = tuple(TensorSpec(f"I{number}", kind, (-1, 3)) for number, kind in enumerate(kinds))
    return ModelContract("m", inputs, (TensorSpec("Y", "FP32", (2,)),), max_rows, batched)


def draw() -> np.random.Generator:
    return np.random.default_rng(0)


def material(*kinds: str, rows: int = 20, count: int = 300) -> Material:
    made = contract(*kinds)
    found = random_rows(made, rows, draw())
    answers = [{"Y": np.full((1, 2), number, np.float32)} for number in range(rows)]
    groups = [[number] for number in range(rows)]
    pool = Pool(made, found, [wire_tensors(made, row) for row in found], answers, 1_000, groups)
    return Material(pool, pool, draw(), count, 100)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", [True, False])
def test_random_rows_fit_the_contract_and_travel(kind: str, batched: bool) -> None:
    made = contract(kind, "FP32", batched=batched)
    rows = random_rows(made, 20, draw())
    assert len(rows) == 20
    for row in rows:
        assert row["I0"].dtype == made.inputs[0].numpy_type
        assert row["I0"].shape == row["I1"].shape
        assert row["I0"].ndim == (3 if batched else 2) and row["I0"].shape[-1] == 3
        (tensor, _) = wire_tensors(made, row)
        size = len(deserialize_bytes_tensor(tensor.data)) * 1 if kind == "BYTES" else len(tensor.data)
        assert size == row["I0"].size * (1 if kind == "BYTES" else row["I0"].itemsize)
    again = random_rows(made, 20, draw())
    assert all(np.array_equal(one["I0"], two["I0"]) for one, two in zip(rows, again, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_poison_differs_from_its_row_in_one_input(kind: str) -> None:
    made = contract(kind, "FP32")
    row = random_rows(made, 1, draw())[0]
    right = wire_tensors(made, row)
    found = poison_rows(made, row, draw())
    assert len({special.what for special in found}) == len(found)
    for special in found:
        changed = [one.name for one, other in zip(special.tensors, right, strict=True) if one != other]
        assert len(changed) == 1 and changed[0] in special.what
    assert {name for special in found for name in ("I0", "I1") if special.what.endswith(name)} == {"I0", "I1"}


@pytest.mark.parametrize("kind", ["INT32", "INT64", "UINT32", "FP32", "FP64", "BYTES"])
def test_every_marked_row_carries_its_own_marker_exactly(kind: str) -> None:
    made = contract(kind)
    marked = marked_rows(made, random_rows(made, 5, draw()), 40, draw())
    assert len({special.marker for special in marked}) == 40
    for special in marked:
        assert MARKER.fullmatch(special.marker)
        data = special.tensors[0].data
        if kind == "BYTES":
            assert special.marker.encode() in data
        else:
            values = np.frombuffer(data, made.inputs[0].numpy_type)
            assert float(special.marker) in np.abs(values[np.isfinite(values)])


def all_json(requests: list[Request]) -> list[str]:
    """The JSON part of every HTTP message, as far as it is one."""
    texts = []
    for request in requests:
        if request.protocol is Protocol.HTTP:
            texts.append(request.http("x").body.decode("utf-8", "replace"))
    return texts


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_a_server_is_never_sent(kind: str) -> None:
    made = contract(kind, "FP32")
    row = random_rows(made, 1, draw())[0]
    requests = malformed_requests(made, row) + framing_requests(made, row)
    assert {request.protocol for request in requests} == set(Protocol)
    deadly = {2**31, 2**32 + 1, 2**63 - 1}
    for text in all_json(requests):
        numbers = {int(number) for number in re.findall(r"\d{5,19}", text.partition("}]}")[0])}
        assert not numbers & deadly
        assert text.count("[") < 1_000 and text.count("{") < 1_000
    for request in requests:
        assert not {size for tensor in request.tensors for size in tensor.shape} & deadly


@pytest.mark.parametrize("kind", KINDS)
def test_malformed_messages_are_told_apart_and_none_is_the_right_one(kind: str) -> None:
    made = contract(kind)
    row = random_rows(made, 1, draw())[0]
    right = Request("m", Protocol.GRPC, tensors=wire_tensors(made, row))
    requests = malformed_requests(made, row) + framing_requests(made, row)
    assert len({request.name() for request in requests}) == len(requests)
    assert all(request.what and request.expected is None for request in requests)
    for request in requests:
        if request.protocol is Protocol.GRPC:
            assert request.grpc("") != right.grpc("")
        else:
            assert request.http("") != replace(right, protocol=Protocol.HTTP).http("")


def test_a_good_message_is_what_a_client_library_would_read() -> None:
    made = contract("FP32", "BYTES")
    row = random_rows(made, 1, draw())[0]
    request = Request("m", Protocol.HTTP, tensors=wire_tensors(made, row))
    message = request.http("id-1")
    length = int(message.headers["Inference-Header-Content-Length"])
    head = json.loads(message.body[:length])
    sizes = [one["parameters"]["binary_data_size"] for one in head["inputs"]]
    assert head["id"] == "id-1" and length + sum(sizes) == len(message.body)
    sent = service_pb2.ModelInferRequest.FromString(request.grpc("id-2"))
    assert (sent.model_name, sent.id, len(sent.raw_input_contents)) == ("m", "id-2", 2)
    assert np.array_equal(
        np.frombuffer(sent.raw_input_contents[0], np.float32).reshape(tuple(sent.inputs[0].shape)), row["I0"]
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("FP16", "BF16")])
def test_json_carries_the_same_values(kind: str) -> None:
    made = contract(kind)
    row = random_rows(made, 1, draw())[0]
    request = Request("m", Protocol.HTTP, tensors=wire_tensors(made, row), as_json=True)
    body = json.loads(request.http("id-3").body)
    (tensor,) = body["inputs"]
    assert body["id"] == "id-3" and tuple(tensor["shape"]) == row["I0"].shape
    sent = [value.encode() for value in tensor["data"]] if kind == "BYTES" else tensor["data"]
    assert np.array_equal(np.array(sent, made.inputs[0].numpy_type), row["I0"].ravel())


@pytest.mark.parametrize(("kind", "some"), [("FP32", True), ("BYTES", True), ("FP16", False)])
def test_some_good_requests_travel_as_json_where_json_can_carry_them(kind: str, some: bool) -> None:
    requests = good(material(kind).pool, 300, draw())
    assert any(request.as_json for request in requests) is some
    assert not all(request.as_json for request in requests)


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.procedure], ids=lambda check: check.id)
def test_a_check_sends_the_same_for_the_same_seed_and_enough(check: Any) -> None:
    first = check.make(material("FP32"))
    again = check.make(material("FP32"))
    assert [replace(one, expected=None) for one in first] == [replace(one, expected=None) for one in again]
    usual = [
        request
        for request in first
        if request.expected is not None or request.marker or request.what.startswith("length ")
    ]
    rows = sum(request.tensors[0].shape[0] for request in usual)
    assert rows >= 250
    assert check.needless(material("FP32")) == ""


def test_good_requests_use_every_row_and_both_protocols() -> None:
    pool = material("FP32").pool
    requests = good(pool, 300, draw())
    assert len(requests) == 300 and {request.protocol for request in requests} == set(Protocol)
    assert {request.tensors for request in requests} == set(pool.tensors)
    order = [pool.tensors.index(request.tensors) for request in requests[:20]]
    assert sorted(order) == list(range(20)) != order


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_bad_requests_are_the_share_that_was_asked_for(share: float) -> None:
    pool = material("FP32").pool
    bad = [Request("m", Protocol.HTTP, what=f"bad {number}") for number in range(7)]
    mixed = among(good(pool, 1_000, draw()), bad, share, draw())
    wrong = [request for request in mixed if request.what]
    assert len(mixed) - len(wrong) == 1_000
    assert len(wrong) / len(mixed) == pytest.approx(share, rel=0.06)
    assert len({request.what for request in wrong}) == min(7, len(wrong))


def test_mixtures_hold_every_kind_of_harm_and_a_few_percent_first() -> None:
    (check,) = [check for check in CHECKS if check.id == "poison_neighbours"]
    made = material("FP32", count=1_000)
    requests = check.make(made)
    kinds = {special.what for special in poison_rows(made.pool.contract, made.pool.rows[0], draw())}
    assert {request.what for request in requests if request.what} == kinds
    first = requests[: len(requests) // 3]
    assert 0 < sum(bool(request.what) for request in first) / len(first) < 0.05


def test_leavers_leave_in_every_way_and_the_last_wave_is_good() -> None:
    (check,) = [check for check in CHECKS if check.id == "caller_gone"]
    requests = check.make(material("FP32"))
    assert {request.leaving for request in requests} == {None, *Leaving}
    assert all(request.leaves_after_us > 0 for request in requests if request.leaving)
    assert all(request.leaving is None and not request.what for request in requests[-100:])


def test_contract_from_configuration_and_from_metadata_alone() -> None:
    metadata = {
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 4]}, {"name": "B", "datatype": "INT8", "shape": [-1, 1]}],
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": [-1, 2]}],
    }  # fmt: skip
    config = {"max_batch_size": 64, "input": [{"name": "B", "optional": True}]}
    made = contract_of("m", metadata, config)
    assert made.inputs == (TensorSpec("A", "FP32", (4,)),) and (made.max_rows, made.batched) == (64, True)
    assert contract_of("m", metadata, None).batched
    fixed = contract_of("m", metadata, {"max_batch_size": 0})
    assert (fixed.batched, fixed.max_rows, fixed.inputs[0].shape) == (False, 1, (-1, 4))
    with pytest.raises(InputError, match="FP33"):
        contract_of("m", {"inputs": [{"name": "A", "datatype": "FP33", "shape": [1]}]}, None)
    with pytest.raises(InputError, match="no required input"):
        contract_of("m", {"inputs": []}, None)


def test_waiting_requests_of_one_model() -> None:
    page = (
        'nv_inference_pending_request_count{model="m",version="1"} 2\n'
        'nv_inference_pending_request_count{model="m",version="2"} 1\n'
        'nv_inference_pending_request_count{model="mm",version="1"} 7\n'
    )
    assert waiting_requests(page, "m") == 3


def test_rows_of_all_lengths_for_texts_and_variable_axes() -> None:
    made = ModelContract(
        "m",
        (TensorSpec("T", "BYTES", (1,)), TensorSpec("V", "INT32", (-1,)), TensorSpec("F", "FP32", (2,))),
        (),
        100,
        True,
    )
    row = random_rows(made, 1, draw())[0]
    found = rows_of_lengths(made, row, draw())
    assert [special.what for special in found] == [f"length {length}" for length in LENGTHS] * TEXTS_OF_A_LENGTH
    for special, length in zip(found, LENGTHS * TEXTS_OF_A_LENGTH, strict=True):
        text, values, fixed = special.tensors
        (words,) = deserialize_bytes_tensor(text.data)
        assert len(words.split()) == length and values.shape == (1, length)
        assert fixed.data == row["F"].tobytes()
    assert has_lengths(made) and not has_lengths(replace(made, inputs=(made.inputs[2],)))


def known(what: str, status: str) -> Request:
    return Request("m", Protocol.HTTP, what, expected=Expected(None if status else {}, status))


def test_only_poison_that_makes_a_run_fail_is_sent_in_whole_batch_failure() -> None:
    (check,) = [check for check in CHECKS if check.id == "whole_batch_failure"]
    sent = [
        known("", ""),
        known("refused", "400"),
        known("raises", "500"),
        known("answered", ""),
        known("x", "INTERNAL"),
    ]
    kept, reason = check.narrow(sent)
    assert [one.what for one in kept] == ["", "raises", "x"] and reason == ""
    kept, reason = check.narrow([one for one in sent if one.what in ("", "refused")])
    assert kept == [] and "no poison makes a run" in reason


def test_lengths_that_are_all_refused_prove_nothing() -> None:
    (check,) = [check for check in CHECKS if check.id == "unequal_lengths"]
    few = [known("length 1", ""), known("length 2", "400"), known("", "")]
    assert check.narrow(few)[0] == [] and "1 lengths" in check.narrow(few)[1]
    enough = [*few, known("length 3", "")]
    assert check.narrow(enough) == (enough, "")
