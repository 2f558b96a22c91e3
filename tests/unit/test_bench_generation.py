"""What ``brim bench generation`` makes of what it measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.bench.conditions import Conditions
from brim.bench.generation import findings, judge_overload, overload_json
from brim.bench.generation_load import BATCH, INTERACTIVE, Overload, Sent, refusal_us, ttft_us
from brim.bench.verdict import Verdict
from brim.measure.text.stream import LEFT, Heard
from brim.units import US_PER_S

QUIET = Conditions("cpu", 2, 0.1, 0.2, 0.0, {})
WALL_US = 60 * US_PER_S
SLO_US = 2 * US_PER_S


def complete(first_us: int) -> Heard:
    return Heard(0, [(first_us, 1, "a"), (first_us + 10, 1, "b")], first_us + 10, "length")


def refused(reason: str, after_us: int) -> Heard:
    return Heard(ended_us=after_us, error=f"{reason}: every seat is taken")


def load(interactive: Heard, batch: Heard) -> Overload:
    """A request of either class a second."""
    sent = [
        Sent(kind, at_s * US_PER_S, heard)
        for at_s in range(60)
        for kind, heard in ((INTERACTIVE, interactive), (BATCH, batch))
    ]
    return Overload(0.4, 2.0, WALL_US, sent, most_blocks=(40, 60), total_blocks=64)


GOOD = load(complete(300_000), refused("room_full", 12_000))


def verdicts(found: Overload, conditions: Conditions = QUIET) -> dict[str, Verdict]:
    return {one.target.ratio: one.verdict for one in judge_overload(found, SLO_US, conditions)}


def test_what_it_should_be_is_met() -> None:
    found = verdicts(GOOD)
    assert set(found.values()) == {Verdict.MET} and len(found) == 8


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        (load(complete(3 * US_PER_S), refused("room_full", 9)), {"interactive TTFT p99 / objective"}),
        (load(refused("deadline", 9), refused("room_full", 9)), {"interactive requests answered"}),
        (load(complete(9), refused("room_full", 80_000)), {"refusals at once, p99 ms"}),
        (replace(GOOD, most_blocks=(65, 70)), {"most KV blocks held / all", "most KV blocks promised / all"}),
        (replace(GOOD, left_blocks=1), {"KV blocks not free a second later"}),
        (load(complete(9), Heard(error="UNAVAILABLE: Socket closed")), {"neither complete nor refused with a reason"}),
        (
            load(complete(9), Heard(0, [(5, 1, "a")], 9, error=LEFT)),
            {"texts cut after they had begun", "neither complete nor refused with a reason"},
        ),
    ],
)
def test_each_fault_is_seen_alone(found: Overload, missed: set[str]) -> None:
    assert {
        name.removeprefix("overload: ") for name, verdict in verdicts(found).items() if verdict is Verdict.MISSED
    } == missed


def test_a_busy_machine_excuses_what_is_slow_and_not_what_is_wrong() -> None:
    found = replace(load(complete(3 * US_PER_S), refused("room_full", 9)), left_blocks=3)
    busy = verdicts(found, replace(QUIET, other_cores=1.0))
    assert busy["overload: interactive TTFT p99 / objective"] is Verdict.UNCLEAR
    assert busy["overload: KV blocks not free a second later"] is Verdict.MISSED


def test_one_late_text_of_a_hundred_is_within_a_p99_and_two_are_not() -> None:
    def late(count: int) -> Overload:
        heard = [complete(3 * US_PER_S if number < count else 300_000) for number in range(100)]
        return replace(GOOD, sent=[Sent(INTERACTIVE, 0, one) for one in heard])

    name = "overload: interactive TTFT p99 / objective"
    assert [verdicts(late(count))[name] for count in (1, 2)] == [Verdict.MET, Verdict.MISSED]


def test_who_waited_before_it_was_refused_is_no_refusal_at_once() -> None:
    assert refusal_us(load(complete(1), refused("shed", 900_000)).sent, 99) is None
    assert refusal_us(GOOD.sent, 99) == 12_000
    assert ttft_us(GOOD.of(BATCH), 99) is None
    assert ttft_us(GOOD.of(INTERACTIVE), 50) == 300_000


def test_the_words_add_up() -> None:
    told = overload_json(GOOD)
    assert told["ends"] == {INTERACTIVE: {"complete": 60}, BATCH: {"room_full": 60}}
    assert findings(GOOD)[1:] == [
        "  interactive: 60 complete; first token p99 300 ms",
        "  batch: 60 room_full; first token p99 - ms",
    ]
