from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import CouldNotTell, InputError
from brim.gateway.access_log import AccessLog, Passage
from brim.trace.callers import Call
from brim.trace.chrome import chrome
from brim.trace.events import ANSWERED, COMPUTED, IN_SERVER, Followed
from brim.trace.page import page
from brim.trace.run import Run, of_batches
from brim.trace.waterfall import MEANING, TENSOR_WAY, TEXT_WAY, Waterfall, Way, waterfall

WALL_AHEAD_NS = 1_700_000_000_000_000_000
US = 1_000
EVENTS = {
    name: at * US
    for name, at in zip((*IN_SERVER, ANSWERED), (130, 140, 145, 150, 200, 210, 300, 320, 310), strict=True)
}
PASSAGE = Passage("p-0", WALL_AHEAD_NS + 110 * US, 10 * US, 230 * US, 240 * US, 200, "", "-")


def followed_way(passage: Passage | None = PASSAGE, events: dict[str, int] | None = EVENTS) -> Waterfall:
    told = Followed("m", 1, "p-0", events or {}).moments()
    return waterfall(100 * US, 360 * US, passage, told, WALL_AHEAD_NS)


def took(way: Waterfall) -> list[tuple[str, int]]:
    return [(part.name, part.took_us) for part in way.parts]


def test_every_part_of_an_answered_request_is_known() -> None:
    way = followed_way()
    assert took(way) == [
        ("to_gateway", 10),
        ("gateway_in", 10),
        ("to_server", 10),
        ("receive", 10),
        ("prepare", 10),
        ("queue", 50),
        ("compute_input", 10),
        ("compute", 90),
        ("compute_output", 10),
        ("from_server", 30),
        ("gateway_out", 10),
        ("to_caller", 10),
    ]
    assert (way.took_us, way.gateway_moved_us, way.contradicted_us, way.stayed_us) == (260, 0, 0, 0)
    assert {part for _, part in (*TENSOR_WAY, *TEXT_WAY) if part} <= MEANING.keys()


def test_what_nobody_told_is_unaccounted() -> None:
    assert took(followed_way(passage=None))[0] == ("unaccounted", 30)
    assert took(followed_way(passage=None))[-1] == ("unaccounted", 50)
    untold = took(followed_way(events={}))
    assert [name for name, _ in untold] == ["to_gateway", "gateway_in", "unaccounted", "gateway_out", "to_caller"]


def test_a_refusal_ends_in_the_gateway() -> None:
    refused = Passage("p-0", WALL_AHEAD_NS + 110 * US, None, None, 20 * US, 429, "queue_full", "UO")
    assert took(followed_way(refused, None)) == [("to_gateway", 10), ("refused", 20), ("to_caller", 230)]


def test_who_was_given_up_may_still_be_computed() -> None:
    late = Passage("p-0", WALL_AHEAD_NS + 110 * US, 10 * US, None, 240 * US, 504, "deadline", "UT")
    way = followed_way(late, {**EVENTS, "COMPUTE_OUTPUT_START": 900 * US, "COMPUTE_END": 950 * US, ANSWERED: 940 * US})
    assert took(way)[-2:] == [("given_up", 140), ("to_caller", 10)]
    assert way.stayed_us == 580


@pytest.mark.parametrize(("off_us", "moved_us"), [(-25, 15), (-10, 0), (0, 0), (9, 0), (30, -20)])
def test_the_gateways_clock_is_moved_no_further_than_needed(off_us: int, moved_us: int) -> None:
    shifted = Passage(**{**_as_dict(PASSAGE), "began_ns": PASSAGE.began_ns + off_us * US})
    way = followed_way(shifted)
    assert way.gateway_moved_us == moved_us
    assert way.contradicted_us == 0
    assert sum(part.took_us for part in way.parts) == way.took_us


def test_a_gateway_that_contradicts_the_others_is_said_to() -> None:
    way = followed_way(Passage(**{**_as_dict(PASSAGE), "back_ns": 100 * US}))
    assert way.contradicted_us > 0
    assert sum(part.took_us for part in way.parts) == way.took_us


def _as_dict(passage: Passage) -> dict[str, object]:
    return {name: getattr(passage, name) for name in Passage.__slots__}


@given(
    st.integers(0, 10**9),
    st.dictionaries(
        st.sampled_from([*IN_SERVER, COMPUTED, "first_step", "first_token", "last_step"]), st.integers(0, 2 * 10**9)
    ),
    st.none()
    | st.builds(
        Passage,
        st.just("p-0"),
        st.integers(WALL_AHEAD_NS - 10**9, WALL_AHEAD_NS + 10**9),
        *(st.none() | st.integers(0, 10**9) for _ in range(3)),
        st.just(200),
        st.just(""),
        st.just(""),
    ),
    st.sampled_from([TENSOR_WAY, TEXT_WAY]),
)
def test_parts_follow_each_other_and_add_up(
    took_ns: int, told: dict[str, int], passage: Passage | None, moments: Way
) -> None:
    way = waterfall(5, 5 + took_ns, passage, told, WALL_AHEAD_NS, moments)
    assert sum(part.took_us for part in way.parts) == way.took_us
    assert all(part.took_us >= 0 for part in way.parts)
    ends = [part.began_us + part.took_us for part in way.parts]
    assert [part.began_us for part in way.parts] == [0, *ends[:-1]]
    assert ends[-1] == way.took_us


def run_of_three(others: int = 0) -> Run:
    """Two requests that shared a batch, one that was refused, and perhaps somebody else's in the same batch."""
    calls = [
        Call("p-0", 100 * US, 360 * US, 200, "", ""),
        Call("p-1", 100 * US, 370 * US, 200, "", ""),
        Call("p-2", 100 * US, 120 * US, 429, "queue_full", "busy"),
    ]
    members = [Followed("m", 1, name, EVENTS) for name in ("p-0", "p-1", *["theirs <secret>"] * others)]
    return of_batches("m", "p-", calls, {"p-0": PASSAGE}, members, {2: 1}, WALL_AHEAD_NS)


def test_a_run_knows_who_shared_a_batch() -> None:
    run = run_of_three()
    assert run.agrees is True
    assert run.as_json()["batches"] == [
        {"number": 0, "requests": 2, "own": ["p-0", "p-1"], "others": 0, "took_us": 120}
    ]
    assert run.as_json()["outcomes"] == {"refused": 1, "right": 2}
    assert run.as_json()["refused"] == {"queue_full": 1}
    assert run.one(None).call.request_id == "p-1"
    assert run.one("2").batches == ()
    assert run.one("p-2") == run.one("2")


def test_a_count_that_differs_is_told() -> None:
    run = run_of_three()
    calls = [one.call for one in run.traced]
    members = [Followed("m", 1, name, EVENTS) for name in ("p-0", "p-1")]
    assert of_batches("m", "p-", calls, {}, members, {1: 2}, WALL_AHEAD_NS).agrees is False


def test_of_other_callers_nothing_is_told() -> None:
    run = run_of_three(others=3)
    told = run.way_as_json(run.one("0"))
    assert (told["batches"][0]["requests"], told["batches"][0]["others"]) == (5, 3)
    assert run.agrees is None
    for text in (json.dumps(told), json.dumps(run.as_json()), json.dumps(chrome(run)), page(run, run.one("0"))):
        assert "theirs" not in text


def test_an_unknown_id_names_those_that_there_are() -> None:
    with pytest.raises(InputError, match="p-0 to p-2"):
        run_of_three().one("p-3")


def test_answers_without_a_word_of_the_servers_are_no_trace() -> None:
    with pytest.raises(CouldNotTell):
        of_batches("m", "p-", [Call("p-0", 1, 2, 200, "", "")], {}, [], {1: 1}, WALL_AHEAD_NS)


def test_perfetto_gets_every_part_and_every_batch() -> None:
    run = run_of_three()
    events = chrome(run)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    for line, one in enumerate(run.traced, start=1):
        own = [event for event in slices if (event["pid"], event["tid"]) == (1, line)]
        assert sum(event["dur"] for event in own) == one.way.took_us
        assert own[0]["ts"] == (one.call.sent_ns - 100 * US) // US
    assert [event["name"] for event in slices if event["pid"] == 2] == ["batch 0: 2"]
    assert all({"name", "ph", "pid", "args"} <= event.keys() for event in events)


def test_the_page_stands_alone_and_trusts_no_text() -> None:
    run = run_of_three()
    hostile = of_batches(
        "<script>",
        "p-",
        [one.call for one in run.traced],
        {},
        [Followed("<script>", 1, "p-0", EVENTS)],
        {},
        0,
    )
    text = page(hostile, hostile.one("0"))
    assert "<script" not in text and "http" not in text
    assert text.count("<rect") == len(hostile.one("0").way.parts) + 1


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [
        (200, "", "right"),
        (400, "", "own_error"),
        (429, "queue_full", "refused"),
        (503, "deadline_unreachable", "refused"),
        (503, "unavailable", "failed"),
        (504, "deadline", "expired"),
        (500, "", "failed"),
        (None, "", "failed"),
    ],
)
def test_outcomes(status: int | None, reason: str, outcome: str) -> None:
    assert Call("p-0", 1, 2, status, reason, "").outcome == outcome


def test_lines_that_are_not_whole_are_left_out(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    log = AccessLog(tmp_path / "gateway.log", "p-")
    assert log.passages() == {}
    line = {"request_id": "p-0", "began_ns": "17", "out_ns": None, "back_ns": "-", "done_ns": 5, "status": 429}
    whole = json.dumps({**line, "reason": "queue_full", "flags": "-"})
    log.path.write_text(whole + "\n" + whole[:20])
    assert log.passages() == {"p-0": Passage("p-0", 17, None, None, 5, 429, "queue_full", "")}
