"""Verdicts on texts, plans and their shrinking, and what a metrics page says about KV blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from brim.isolation.judge import Verdict
from brim.isolation.text.call import Alone, Call
from brim.isolation.text.generate import heard_of
from brim.isolation.text.judge import judge_text
from brim.isolation.text.kv_blocks import block_tokens, held, preemptions
from brim.isolation.text.plans import Material, same_ids, secret_calls, with_leavers, with_stops
from brim.isolation.text.prompts import good_asks
from brim.isolation.text.shrink import MOST_TRIES, smallest_failing, statement
from brim.isolation.text.streams import splits
from brim.measure.text.server_side import parse_page
from brim.measure.text.stream import LEFT, Ask, Heard

ALONE = Alone("one two three", "length", 3, 5)
CALL = Call(Ask(b"count:", {"max_tokens": 3}), alone=ALONE, secret="12345678")
REFUSED = replace(CALL, alone=Alone(refusal="temperature is -1, request 71"))
CHECKED = Call(Ask(b"x", request_id="b-7"), alone=Alone(refusal="[request id: alone-3] unexpected shape [2]"))


def heard(text: str = ALONE.text, **more: object) -> Heard:
    said: dict[str, object] = {"pieces": [(0, 3, text)], "finish_reason": "length", "input_tokens": 5, **more}
    return Heard(**said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "came", "verdict", "told"),
    [
        (CALL, heard(), Verdict.RIGHT, ""),
        (replace(CALL, alone=None), heard("whatever"), Verdict.RIGHT, ""),
        (CALL, heard("one two thrEE"), Verdict.WRONG, "from character 11 on 'EE', alone 'ee'"),
        (CALL, heard("one two three!"), Verdict.WRONG, "from character 13 on '!', alone ''"),
        (CALL, heard(finish_reason="stop"), Verdict.WRONG, "finish reason are stop, alone length"),
        (CALL, heard(pieces=[(0, 2, ALONE.text)]), Verdict.WRONG, "output tokens are 2, alone 3"),
        (CALL, heard(input_tokens=6), Verdict.WRONG, "input tokens are 6"),
        (CALL, heard(finish_reason=""), Verdict.WRONG, "without a finish reason"),
        (CALL, heard(strange=["two ends"]), Verdict.WRONG, "two ends"),
        (CALL, heard("one", error=LEFT), Verdict.HUNG, "no end in time; so far 'one'"),
        (CALL, heard("one", error="DEADLINE_EXCEEDED: late"), Verdict.HUNG, "no end in time"),
        (replace(CALL, leaves_us=1), heard("one", error=LEFT), Verdict.CANCELLED, ""),
        (replace(CALL, leaves_us=1), heard("two", error=LEFT), Verdict.WRONG, "before its caller left"),
        (replace(CALL, leaves_us=1), heard(), Verdict.RIGHT, ""),
        (CALL, Heard(error="too busy"), Verdict.NEIGHBOUR_ERRORS, "answered alone, in company an error: too busy"),
        (REFUSED, Heard(error="temperature is -1, request 99"), Verdict.OWN_ERROR, ""),
        (REFUSED, Heard(error="internal"), Verdict.NEIGHBOUR_ERRORS, "in company with 'internal'"),
        (CHECKED, Heard(error="[request id: b-7] unexpected shape [2]"), Verdict.OWN_ERROR, ""),
        (CHECKED, Heard(error="[request id: b-8] unexpected shape [2]"), Verdict.WRONG, "carries the id 'b-8'"),
        (REFUSED, heard(), Verdict.WRONG, "answered in company, alone it is refused"),
        (replace(CALL, alone=None), Heard(error="no"), Verdict.OWN_ERROR, ""),
        (replace(CALL, alone=None), Heard(error='File "/model.py", line 3'), Verdict.WRONG, "insides"),
        (replace(CALL, alone=None), heard("it is 87654321"), Verdict.WRONG, "shows 87654321"),
        (replace(CALL, alone=None), heard("it is 12345678"), Verdict.RIGHT, ""),
        (REFUSED, Heard(error="temperature is -1, unlike 87654321"), Verdict.WRONG, "shows 87654321"),
        (replace(CALL, leaves_us=1), heard("one 87654321", error=LEFT), Verdict.WRONG, "shows 87654321"),
    ],
)
def test_each_call_gets_one_verdict(call: Call, came: Heard, verdict: Verdict, told: str) -> None:
    judgement = judge_text(call, came, secrets=("12345678", "87654321"))
    assert judgement.verdict is verdict
    assert told in judgement.fault and bool(told) == bool(judgement.fault)


def test_a_text_of_somebody_else_names_its_owner() -> None:
    other = "the river runs under the market garden"
    judgement = judge_text(CALL, heard("one " + other[4:]), owners={other: "the other caller"})
    assert judgement.fault.endswith("what came is in the text of the other caller")
    assert "text of" not in judge_text(CALL, heard("one runs"), owners={other: "the other caller"}).fault


def material(**more: int) -> Material:
    draw = np.random.default_rng(5)
    pool = [
        Call(ask, alone=Alone(f"text {number} is ab\u00e9ab\ufffd", "length", 9, 4))
        for number, ask in enumerate(good_asks(16, draw))
    ]
    return Material(pool, draw, **{"count": 60, "callers": 8, "alone_us": 1_000, **more})


def test_good_calls_differ_and_come_again_with_the_same_seed() -> None:
    asks = good_asks(14 * 8, np.random.default_rng(1))
    pairs = {
        (ask.prompt, tuple(sorted(set(dict(ask.options)) - {"max_tokens"})), dict(ask.options).get("temperature"))
        for ask in asks
    }
    assert len(pairs) == len(asks)
    assert asks == good_asks(14 * 8, np.random.default_rng(1))
    assert asks != good_asks(14 * 8, np.random.default_rng(2))


def test_stop_strings_are_parts_of_the_text_and_leave_what_stands_before() -> None:
    calls = with_stops(material())
    assert len(calls) > 40
    for call in calls:
        stop, never = dict(call.ask.options)["stop"]
        whole = next(one.alone.text for one in material().pool if one.alone and one.ask.prompt == call.ask.prompt)
        assert call.alone is not None and call.alone.finish_reason == "stop" and never not in whole
        assert stop not in call.alone.text and "\ufffd" not in stop
    assert len({call.alone.text for call in calls if call.alone}) > 20


def test_half_of_the_callers_leave_in_both_ways() -> None:
    calls = with_leavers(material())
    ways = {(call.leaves_us is None, call.leaves_pieces is None) for call in calls}
    assert ways == {(True, True), (False, True), (True, False)}
    assert sum(call.leaves for call in calls) == len(calls) // 2


def test_secrets_are_told_once_each_and_ids_come_twice() -> None:
    calls = secret_calls(material())
    told = [call.secret for call in calls if call.secret]
    assert len(told) == len(set(told)) > 20
    assert all(call.secret.encode() in call.ask.message("m") for call in calls)
    twice = same_ids(material())
    assert set(Counter(call.ask.request_id for call in twice).values()) == {2}
    assert all(one.ask.request_id == other.ask.request_id for one, other in zip(twice[::2], twice[1::2], strict=True))


@pytest.mark.parametrize(("guilty", "size"), [((3,), 40), ((0, 31), 32), ((7, 8), 9), ((0,), 1)])
def test_a_plan_shrinks_to_those_who_are_needed(guilty: tuple[int, ...], size: int) -> None:
    calls = [replace(CALL, starts_us=number) for number in range(size)]

    def fails(some: Sequence[Call]) -> bool:
        return set(guilty) <= {call.starts_us for call in some}

    kept = smallest_failing(calls, fails, most_tries=500)
    assert kept is not None and [call.starts_us for call in kept] == list(guilty)
    assert f"fails again with {len(guilty)} of these {size} calls: " in statement(kept, size)
    tried = 0

    def counted(some: Sequence[Call]) -> bool:
        nonlocal tried
        tried += 1
        return fails(some)

    assert smallest_failing(calls, counted) is not None and tried <= MOST_TRIES


def test_a_plan_that_does_not_fail_again_is_said_to_be_timing() -> None:
    assert smallest_failing([CALL], lambda some: False) is None
    assert "a matter of timing" in statement(None, 7)


def test_only_two_unreadable_halves_are_a_split_character() -> None:
    assert splits([(0, 1, "a\ufffd"), (1, 1, "\ufffdb")])
    assert not splits([(0, 1, "a"), (1, 1, "\ufffdb"), (2, 1, "\ufffd")])
    assert not splits([(0, 1, "é"), (1, 1, "")])


PAGE = """# HELP x
brim_llm_kv_blocks_used{model="a",process="1"} 3
brim_llm_kv_blocks_promised{model="a",process="1"} 4
brim_llm_kv_blocks_used{model="b",process="1"} 0
brim_llm_kv_blocks_promised{model="b",process="1"} 0
brim_llm_kv_block_tokens{model="a",process="1"} 32
brim_llm_preemptions_total{model="a",process="1"} 2
vllm:kv_cache_usage_perc{model="a"} 0.9
vllm:kv_cache_usage_perc{model="c"} 0.5
"""


def test_the_page_says_what_is_held_under_either_name() -> None:
    assert [held(parse_page(PAGE, model)) for model in "abcd"] == [7, 0, 0.5, None]
    assert (preemptions(parse_page(PAGE, "a")), preemptions(parse_page(PAGE, "c"))) == (2, 0)
    assert (block_tokens(parse_page(PAGE, "a")), block_tokens(parse_page(PAGE, "c"))) == (32, 16)


def test_events_and_a_single_answer_are_read_alike_and_what_is_neither_is_an_error() -> None:
    one = '{"text_output": "%s", "num_output_tokens": 1, "num_input_tokens": 4, "finish_reason": "%s"}'
    stream = heard_of(f"data: {one % ('a', 'None')}\n\ndata: {one % ('b', 'stop')}\n\n", stream=True)
    assert (stream.text, stream.output_tokens, stream.input_tokens) == ("ab", 2, 4)
    assert (stream.finish_reason, stream.strange, stream.error) == ("stop", [], "")
    assert heard_of(one % ("ab", "stop"), stream=False).text == "ab"
    late = heard_of(f"data: {one % ('a', 'stop')}\ndata: {one % ('b', 'None')}\n", stream=True)
    assert late.strange == ["an event behind the one with the finish reason"]
    assert "not what the contract says" in heard_of("data: {}\n", stream=True).error
    assert "no event" in heard_of(f"{one % ('a', 'stop')}\n", stream=True).strange[0]
