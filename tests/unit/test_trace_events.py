from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.trace.batches import STAMPS, batches_of, sizes
from brim.trace.events import IN_SERVER, Followed, parse

TIMES = dict(zip(IN_SERVER, range(1_000, 9_000, 1_000), strict=True))


def written(number: int, request_id: str = "", times: dict[str, int] | None = None, **head: object) -> str:
    """As Triton writes it: an event an object, the head among them, and the id as it came."""
    parts = []
    for name, at in (TIMES if times is None else times).items():
        if name == "REQUEST_START":
            said = f',"request_id":"{request_id}"' if request_id else ""
            more = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in head.items())
            parts.append(f'{{"id":{number},"model_name":"m","model_version":1{said}{more}}}')
        parts.append(json.dumps({"id": number, "timestamps": [{"name": name, "ns": at}]}, separators=(",", ":")))
    return ",".join(parts)


def test_each_request_has_its_events() -> None:
    later = {name: at + 10 for name, at in TIMES.items()}
    found = parse(f"[{written(1, 'a')},{written(2, times=later)}]")
    assert found == [Followed("m", 1, "a", TIMES), Followed("m", 1, "", later)]
    assert all(one.in_order() for one in found)


def test_what_a_model_asks_of_another_is_not_a_callers_request() -> None:
    assert [one.request_id for one in parse(f"[{written(1, 'a')},{written(2, 'b', parent_id=1)}]")] == ["a"]


@pytest.mark.parametrize("ending", ["", "]"])
def test_a_file_that_is_cut_short_keeps_what_is_whole(ending: str) -> None:
    text = f"[{written(1, 'a')},{written(2, 'b')}"
    assert [one.request_id for one in parse(text + ending)] == ["a", "b"]
    cut = parse(text[: text.rindex('{"id"') + 7])
    assert [one.request_id for one in cut] == ["a", "b"]
    assert "COMPUTE_END" not in cut[1].events


def test_an_id_that_breaks_the_json_takes_no_other_request_with_it() -> None:
    broken = written(2, 'x" y')
    found = parse(f"[{written(1, 'a')},{broken},{written(3, 'c')}]")
    assert [(one.model, one.request_id) for one in found] == [("m", "a"), ("m", "c"), ("", "")]
    assert all(one.events == TIMES for one in found)
    # Whoever it was, it was computed with the others.
    assert sizes(batches_of(found)) == {3: 1}
    assert batches_of(found[2:]) == []


@pytest.mark.parametrize(
    "forged",
    [
        '"},{"id":1,"timestamps":[{"name":"COMPUTE_START","ns":1}]},{"id":7,"x":"',
        '"},{"id":1,"model_name":"m","model_version":1,"request_id":"b',
    ],
)
def test_an_id_that_says_something_of_another_request_does_not_change_it(forged: str) -> None:
    found = {one.request_id: one for one in parse(f"[{written(1, 'a')},{written(2, forged)},{written(3, 'c')}]")}
    # It is left out rather than believed.
    assert "a" not in found
    assert found["c"].events == TIMES


@given(st.text(max_size=200))
def test_anything_can_be_read(text: str) -> None:
    assert all(isinstance(one, Followed) for one in parse(f'[{{"id":1,{text}'))


@pytest.mark.parametrize("name", IN_SERVER[:-1])
def test_an_order_that_cannot_be_is_seen(name: str) -> None:
    after_all = {**TIMES, name: 1_000_000}
    assert not Followed("m", 1, "a", after_all).in_order()


def test_an_answer_before_its_computing_is_seen() -> None:
    assert Followed("m", 1, "a", {**TIMES, "INFER_RESPONSE_COMPLETE": TIMES["COMPUTE_OUTPUT_START"]}).in_order()
    assert not Followed("m", 1, "a", {**TIMES, "INFER_RESPONSE_COMPLETE": TIMES["COMPUTE_INPUT_END"]}).in_order()


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_batch_is_who_has_all_four_times_in_common(stamp: str) -> None:
    one, other = Followed("m", 1, "a", TIMES), Followed("m", 1, "b", {**TIMES, "QUEUE_START": 4_001})
    assert [batch.members for batch in batches_of([one, other])] == [("a", "b")]
    apart = Followed("m", 1, "c", {**TIMES, stamp: TIMES[stamp] + 1})
    assert sizes(batches_of([one, other, apart])) == {1: 1, 2: 1}


def test_batches_are_numbered_as_they_began_and_need_an_execution() -> None:
    late = Followed("m", 1, "late", {name: at + 100_000 for name, at in TIMES.items()})
    queued = Followed("m", 1, "queued", {"REQUEST_START": 1, "QUEUE_START": 2})
    found = batches_of([late, queued, Followed("m", 1, "early", TIMES)])
    assert [batch.members for batch in found] == [("early",), ("late",)]
    assert [batch.number for batch in found] == [0, 1]
