"""The scheduler in single situations: what is told, in which words, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import pytest

from brim.engine import metrics as m
from brim.engine.admission import SPARED_FOR_US, Pace, Policy, longest_wait_us
from brim.engine.engine import EngineLimits, Finish, Produced, Sampling, Step
from brim.engine.fake import FakeEngine
from brim.engine.lifecycle import Delta, End, Ended, Event, Reason, Request, RequestClass
from brim.engine.metrics import Metrics
from brim.engine.scheduler import Scheduler
from brim.engine.step_log import StepLog
from brim.engine.step_time import StepShape
from brim.errors import InputError

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH
LIMITS = EngineLimits(total_blocks=32, block_tokens=4, step_tokens=24, context_tokens=120, vocabulary=1000)
MS = 1_000


class Clock:
    """Moves by a millisecond a step, and by hand."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us

    def step(self, _shape: StepShape) -> int:
        self.now_us += MS
        return MS


class Bench:
    def __init__(
        self, policy: Policy | None = None, *, limits: EngineLimits = LIMITS, engine: FakeEngine | None = None
    ) -> None:
        self.clock = Clock()
        self.engine = engine or FakeEngine(
            limits, self.clock.step, lambda tokens, _prompt, _sampling: len(tokens) % 999 + 1
        )
        self.scheduler = Scheduler(self.engine, policy or Policy(max_sequences=4), self.clock)
        self.metrics = self.scheduler.metrics

    def submit(
        self, id_: str, prompt: int = 4, tokens: int = 4, kind: RequestClass = INTERACTIVE, **more: object
    ) -> list[Event]:
        sampling = Sampling(max_tokens=tokens, **{"temperature": 0, **more.pop("sampling", {})})  # type: ignore[dict-item]
        own = sum(map(ord, id_)) % 900
        return self.scheduler.submit(Request(id_, (own + 1,) * prompt, sampling, kind, **more))  # type: ignore[arg-type]

    def steps(self, count: int) -> list[Event]:
        return [event for _ in range(count) for event in self.scheduler.step()]

    def rest(self) -> dict[str, Ended]:
        events = []
        for _ in range(1000):
            if not self.scheduler.has_work:
                break
            events += self.scheduler.step()
        return {event.request_id: event for event in events if isinstance(event, Ended)}


def ends(events: Sequence[Event]) -> list[tuple[str, End, Reason | None]]:
    return [(event.request_id, event.end, event.reason) for event in events if isinstance(event, Ended)]


def test_tokens_come_step_by_step_and_then_the_end() -> None:
    bench = Bench()
    assert bench.submit("a", prompt=6, tokens=3) == []
    assert bench.steps(3) == [Delta("a", (7,)), Delta("a", (8,)), Delta("a", (9,)), Ended("a", End.LENGTH, 3)]
    assert not bench.scheduler.has_work


def test_it_counts_into_what_it_was_given() -> None:
    metrics, log = Metrics(), StepLog(2)
    clock = Clock()
    scheduler = Scheduler(FakeEngine(LIMITS, clock.step), Policy(max_sequences=4), clock, metrics=metrics, step_log=log)
    scheduler.submit(Request("a", (1, 2, 3), Sampling(max_tokens=5, temperature=0, ignore_eos=True)))
    for _ in range(5):
        scheduler.step()
    assert metrics.value(m.TOKENS_OUT) == 5
    assert [entry.number for entry in log] == [3, 4] and log.steps == 5


def test_metrics_of_one_request() -> None:
    bench = Bench()
    bench.submit("a", prompt=6, tokens=4)
    bench.clock.now_us += 2 * MS
    bench.steps(1)
    assert bench.metrics.value(m.RUNNING) == 1
    assert bench.metrics.value(m.BLOCKS_USED) == 2
    assert bench.metrics.value(m.BLOCKS_FREE) == 30
    assert bench.metrics.value(m.BLOCKS_PROMISED) == 3
    bench.steps(3)
    observed = {c.family: c.observed for c in bench.metrics.changes() if c.observed}
    assert observed == {
        m.QUEUE_WAIT: (0.002,),
        m.TTFT: (0.003,),
        m.ITL: (0.001, 0.001, 0.001),
        m.TPOT: (0.001,),
        m.E2E: (0.006,),
        m.STEP_TIME: (0.001,) * 4,
        m.STEP_TOKENS: (6.0, 1.0, 1.0, 1.0),
    }
    assert bench.metrics.value(m.TOKENS_IN) == 6
    assert bench.metrics.value(m.TOKENS_OUT) == 4
    assert bench.metrics.value(m.ENDS, "length") == 1


def test_a_full_room_refuses_at_once_and_names_the_bound() -> None:
    bench = Bench(Policy(max_sequences=1, max_waiting=2, max_waiting_batch=1))
    bench.submit("runs")
    bench.steps(1)
    assert bench.submit("b1", kind=BATCH) == []
    events = bench.submit("b2", kind=BATCH)
    assert ends(events) == [("b2", End.REFUSED, Reason.ROOM_FULL)]
    assert isinstance(events[0], Ended) and "max_waiting_batch" in events[0].message
    assert bench.submit("i1") == []
    assert ends(bench.submit("i2")) == [("b1", End.REFUSED, Reason.SHED)]
    events = bench.submit("i3")
    assert ends(events) == [("i3", End.REFUSED, Reason.ROOM_FULL)]
    assert isinstance(events[0], Ended) and "(max_waiting)" in events[0].message
    assert bench.metrics.value(m.REFUSALS, "room_full") == 2
    assert bench.metrics.value(m.REFUSALS, "shed") == 1
    assert bench.rest().keys() == {"runs", "i1", "i2"}


def test_those_for_whom_a_seat_is_free_are_not_counted_as_waiting() -> None:
    bench = Bench(Policy(max_sequences=3, max_waiting=0, max_waiting_batch=0))
    assert [ends(bench.submit(f"r{number}", kind=BATCH)) for number in range(4)] == [
        [],
        [],
        [],
        [("r3", End.REFUSED, Reason.ROOM_FULL)],
    ]


def test_the_youngest_waiting_batch_request_is_shed_and_never_one_that_has_begun() -> None:
    bench = Bench(Policy(max_sequences=1, max_waiting=2))
    bench.submit("first", tokens=20, kind=BATCH)
    bench.steps(2)
    bench.submit("taker", tokens=20)
    bench.steps(2)  # "first" was preempted, and waits
    bench.submit("second", kind=BATCH)
    assert ends(bench.submit("i1")) == [("second", End.REFUSED, Reason.SHED)]
    assert ends(bench.submit("i2")) == [("i2", End.REFUSED, Reason.ROOM_FULL)]
    assert {id_: end.end for id_, end in bench.rest().items()} == dict.fromkeys(("first", "taker", "i1"), End.LENGTH)


def test_of_two_waiting_batch_requests_the_younger_is_shed() -> None:
    bench = Bench(Policy(max_sequences=1, max_waiting=2))
    bench.submit("runs", tokens=20)
    bench.steps(1)
    bench.submit("older", kind=BATCH)
    bench.submit("younger", kind=BATCH)
    assert ends(bench.submit("i")) == [("younger", End.REFUSED, Reason.SHED)]


@pytest.mark.parametrize(
    ("prompt", "tokens", "reason", "words"),
    [
        (100, 21, Reason.TOO_LONG_FOR_CONTEXT, "the model takes 120"),
        (60, 60, Reason.TOO_LONG_FOR_CACHE, "30 KV blocks"),
    ],
)
def test_what_never_fits_is_refused_with_the_limit(prompt: int, tokens: int, reason: Reason, words: str) -> None:
    bench = Bench(limits=replace(LIMITS, total_blocks=29))
    (event,) = bench.submit("a", prompt=prompt, tokens=tokens)
    assert isinstance(event, Ended) and event.reason is reason and words in event.message
    assert bench.submit("b", prompt=60, tokens=56) == []


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    """One seat, held for 20 ms at a time; two wait already."""
    bench = Bench(Policy(max_sequences=1))
    bench.submit("history", tokens=20)
    bench.rest()
    for id_ in ("runs", "w1", "w2"):
        bench.submit(id_, tokens=20)
    bench.steps(1)
    now_us = bench.clock.now_us
    (event,) = bench.submit("late", tokens=1, prompt=8, deadline_us=now_us + 30 * MS)
    assert isinstance(event, Ended) and event.reason is Reason.DEADLINE
    assert "30 ms are left" in event.message
    assert bench.submit("in time", tokens=1, prompt=8, deadline_us=now_us + 100 * MS) == []
    assert bench.submit("shorter, so earlier", tokens=1, prompt=1, deadline_us=now_us + 30 * MS) == []


def test_the_expected_wait_counts_blocks_and_prefills_ahead() -> None:
    bench = Bench(Policy(max_sequences=4, chunk_tokens=4))
    bench.submit("history", tokens=20)
    bench.rest()
    bench.submit("prefills", prompt=24, tokens=4)
    bench.steps(1)
    now_us = bench.clock.now_us
    # 28 tokens of its own are 7 steps; the shorter rest of 20 ahead of it is 5 more.
    assert ends(bench.submit("a", prompt=28, tokens=1, deadline_us=now_us + 11 * MS)) == [
        ("a", End.REFUSED, Reason.DEADLINE)
    ]
    assert bench.submit("a", prompt=28, tokens=1, deadline_us=now_us + 12 * MS) == []
    assert bench.rest()["a"].end is End.LENGTH
    bench.submit("prefills again", prompt=20, tokens=80)
    bench.steps(1)
    now_us = bench.clock.now_us
    # A seat is free, but not the 10 blocks: they are when a seat is, after 20 ms by what was seen.
    assert ends(bench.submit("b", prompt=8, tokens=32, deadline_us=now_us + 12 * MS)) == [
        ("b", End.REFUSED, Reason.DEADLINE)
    ]


def test_a_deadline_that_passes_ends_who_waits_and_who_runs() -> None:
    bench = Bench(Policy(max_sequences=1))
    bench.submit("runs", tokens=50, deadline_us=5 * MS)
    bench.steps(1)
    bench.submit("waits", deadline_us=3 * MS)
    assert ends(bench.steps(8)) == [("waits", End.REFUSED, Reason.DEADLINE), ("runs", End.EXPIRED, None)]
    bench.steps(1)
    assert bench.engine.used_blocks() == bench.metrics.value(m.BLOCKS_PROMISED) == 0


def test_who_cannot_have_a_first_token_in_the_time_of_its_class_is_refused() -> None:
    """Four steps of a millisecond, one of which is its own prefill."""
    bench = Bench(Policy(max_sequences=1, first_token_within_us={INTERACTIVE: 4 * MS}))
    bench.submit("runs", tokens=50)
    bench.steps(1)
    bench.submit("waits")
    bench.submit("batch", kind=BATCH)
    assert ends(bench.steps(4)) == []
    assert ends(bench.steps(1)) == [("waits", End.REFUSED, Reason.DEADLINE)]


@pytest.mark.parametrize(
    ("prefill_ms", "longest_ms"), [(0, 2_000), (300, 1_700), (1_000, 1_000), (5_300, 1_000), (90_000, 1_000)]
)
def test_a_prefill_takes_its_part_of_the_time_and_half_at_most(prefill_ms: int, longest_ms: int) -> None:
    assert longest_wait_us(2_000 * MS, prefill_ms * MS) == longest_ms * MS


def test_a_slow_step_is_no_reason_to_refuse_whom_a_seat_is_free_for() -> None:
    bench = Bench(Policy(max_sequences=2, first_token_within_us={INTERACTIVE: 2 * MS}))
    bench.submit("a", tokens=8)
    bench.steps(1)
    bench.submit("b", tokens=2)
    bench.clock.now_us += 50 * MS
    assert ends(bench.steps(2)) == [("b", End.LENGTH, None)]


def test_nobody_is_refused_on_a_guess() -> None:
    """Before any request has ended, how long a seat is held is not known."""
    bench = Bench(Policy(max_sequences=1, first_token_within_us={INTERACTIVE: 0}))
    assert bench.submit("a") == bench.submit("b") == []


def test_interactive_requests_get_back_all_but_the_batch_share() -> None:
    """Two seats of four are kept by batch requests that waited long; two others had what was free, and lose it."""
    bench = Bench(Policy(max_sequences=4, batch_kept_share=0.5, ageing_us={INTERACTIVE: 90 * MS, BATCH: 0}))
    for id_ in ("b1", "b2", "b3", "b4"):
        bench.submit(id_, prompt=4, tokens=12, kind=BATCH)
    bench.steps(2)
    assert bench.metrics.value(m.RUNNING) == 4
    for id_ in ("i1", "i2", "i3"):
        bench.submit(id_, prompt=4, tokens=4)
    bench.rest()
    assert bench.metrics.value(m.PREEMPTIONS) == 2
    order = [id_ for entry in bench.scheduler.step_log for id_ in entry.ended]
    assert order[:2] == ["i1", "i2"] and set(order[2:5]) == {"b1", "b2", "i3"} and set(order[5:]) == {"b3", "b4"}


def test_batch_requests_leave_seats_free_while_interactive_ones_come() -> None:
    bench = Bench(Policy(max_sequences=4, spare_seats=1, ageing_us={INTERACTIVE: 1, BATCH: 900 * MS}))
    bench.submit("first", tokens=1)
    bench.steps(1)
    for number in range(5):
        bench.submit(f"b{number}", tokens=20, kind=BATCH)
    bench.steps(2)
    assert (bench.metrics.value(m.RUNNING), bench.metrics.value(m.WAITING)) == (3, 2)
    bench.submit("i", tokens=2)
    assert Delta("i", (5,)) in bench.steps(1) and bench.metrics.value(m.PREEMPTIONS) == 0
    bench.clock.now_us += SPARED_FOR_US
    bench.steps(3)
    assert (bench.metrics.value(m.RUNNING), bench.metrics.value(m.WAITING)) == (4, 1)


def test_who_is_aged_takes_a_spare_seat() -> None:
    bench = Bench(Policy(max_sequences=2, spare_seats=1, ageing_us={INTERACTIVE: 1, BATCH: 5 * MS}))
    bench.submit("i", tokens=1)
    for id_ in ("b1", "b2"):
        bench.submit(id_, tokens=30, kind=BATCH)
    bench.steps(4)
    assert bench.metrics.value(m.RUNNING) == 1
    bench.steps(4)
    assert bench.metrics.value(m.RUNNING) == 2


@pytest.mark.parametrize(("preempts", "running"), [(True, 3), (False, 2)])
def test_who_cannot_be_preempted_again_waits_for_a_place_in_the_share(preempts: bool, running: int) -> None:
    """A share of one seat of four: those that may lose theirs get what is free, the others wait for each other."""
    bench = Bench(
        Policy(max_sequences=4, batch_kept_share=0.25, preempts=preempts, ageing_us={INTERACTIVE: MS, BATCH: 900 * MS})
    )
    for id_ in ("b1", "b2"):
        bench.submit(id_, prompt=4, tokens=10, kind=BATCH)
    bench.submit("i", prompt=4, tokens=10)
    bench.steps(2)
    assert bench.metrics.value(m.RUNNING) == running
    assert {end.end for end in bench.rest().values()} == {End.LENGTH}


def test_a_batch_request_that_is_larger_than_the_share_is_kept_alone() -> None:
    bench = Bench(
        Policy(max_sequences=4, batch_kept_share=0.25, max_preemptions=0, ageing_us={INTERACTIVE: 1, BATCH: 900 * MS})
    )
    for id_, prompt in (("large", 40), ("small", 4)):  # 13 and 4 blocks; batch requests may keep 8
        assert bench.submit(id_, prompt=prompt, tokens=12, kind=BATCH) == []
    bench.steps(4)
    assert bench.metrics.value(m.RUNNING) == 1
    assert {id_: end.end for id_, end in bench.rest().items()} == {"large": End.LENGTH, "small": End.LENGTH}


def test_the_oldest_batch_request_is_not_passed_in_the_share() -> None:
    bench = Bench(
        Policy(max_sequences=4, batch_kept_share=0.25, max_preemptions=0, ageing_us={INTERACTIVE: 0, BATCH: 0})
    )
    bench.submit("first", prompt=4, tokens=12, kind=BATCH)
    bench.steps(1)
    bench.submit("big", prompt=12, tokens=16, kind=BATCH)
    bench.submit("small", prompt=4, tokens=4, kind=BATCH)
    bench.steps(3)
    assert bench.metrics.value(m.RUNNING) == 1
    bench.rest()
    began = [id_ for entry in bench.scheduler.step_log for id_ in entry.first]
    assert began == ["first", "big", "small"]


@pytest.mark.parametrize("preempts", [True, False])
def test_an_interactive_request_takes_the_seat_of_the_youngest_batch_text(preempts: bool) -> None:
    bench = Bench(Policy(max_sequences=2, preempts=preempts))
    for id_ in ("b1", "b2"):
        bench.submit(id_, tokens=10, kind=BATCH)
        bench.steps(1)
    bench.submit("i", tokens=2)
    heard = bench.steps(4)
    got = [event.request_id for event in heard if isinstance(event, Delta)]
    if preempts:
        # The step that drops b2 still runs b1 alone; the next one begins i.
        assert got == ["b1", "b1", "i", "b1", "i", "b1", "b2"]
    else:
        assert got == ["b1", "b2"] * 4
    assert bench.metrics.value(m.PREEMPTIONS) == preempts
    rest = bench.rest()
    assert {rest[id_].output_tokens for id_ in ("b1", "b2")} == {10}


def test_who_is_preempted_between_two_pieces_leaves_at_once() -> None:
    bench = Bench(Policy(max_sequences=1))
    bench.submit("b", prompt=96, tokens=3, kind=BATCH)
    bench.steps(2)
    bench.submit("i", tokens=1)
    assert bench.steps(1) == [Delta("i", (5,)), Ended("i", End.LENGTH, 1)]
    bench.rest()
    assert [dict(entry.prefill) for entry in bench.scheduler.step_log][:5] == [
        {"b": 24},
        {"b": 24},
        {"i": 4},
        {"b": 24},
        {"b": 24},
    ]
    assert bench.metrics.value(m.PREEMPTIONS) == 1


def test_a_preempted_text_is_not_preempted_without_end() -> None:
    bench = Bench(Policy(max_sequences=1, max_preemptions=2, max_waiting=100))
    bench.submit("b", tokens=30, kind=BATCH)
    bench.steps(1)
    heard: list[Event] = []
    for number in range(6):
        bench.submit(f"i{number}", tokens=2)
        heard += bench.steps(8)
    assert bench.metrics.value(m.PREEMPTIONS) == 2
    assert Ended("b", End.LENGTH, 30) in heard


def test_a_sampled_text_is_played_again_and_delivered_once() -> None:
    clock = Clock()
    bench = Bench(Policy(max_sequences=1), engine=FakeEngine(LIMITS, clock.step))
    bench.submit("b", tokens=12, kind=BATCH, sampling={"temperature": 1, "seed": 4, "ignore_eos": True})
    before = bench.steps(5)
    bench.submit("i", tokens=1, sampling={"ignore_eos": True})
    after = bench.steps(30)
    text = [t for e in before + after if isinstance(e, Delta) and e.request_id == "b" for t in e.tokens]
    alone = Bench(engine=FakeEngine(LIMITS, clock.step))
    alone.submit("b", tokens=12, sampling={"temperature": 1, "seed": 4, "ignore_eos": True})
    assert text == [t for e in alone.steps(12) if isinstance(e, Delta) for t in e.tokens]
    assert bench.metrics.value(m.PREEMPTIONS) == 1 and len(text) == 12


def test_an_engine_that_does_not_repeat_itself_ends_the_text_instead_of_changing_it() -> None:
    drawn = iter(range(1, 900))
    engine = FakeEngine(LIMITS, next_token=lambda _tokens, _prompt, _sampling: next(drawn))
    bench = Bench(Policy(max_sequences=1), engine=engine)
    bench.submit("b", tokens=12, kind=BATCH, sampling={"temperature": 1})
    bench.steps(3)
    bench.submit("i", tokens=1)
    rest = bench.rest()
    assert rest["b"].end is End.FAILED and rest["b"].output_tokens == 3 and "same seed" in rest["b"].message
    assert rest["i"].end is End.LENGTH
    assert bench.engine.used_blocks() == bench.metrics.value(m.BLOCKS_PROMISED) == 0


def test_texts_that_lose_nothing_are_preempted_first() -> None:
    bench = Bench(Policy(max_sequences=2))
    bench.submit("greedy", tokens=20, kind=BATCH)
    bench.steps(1)
    bench.submit("sampled", tokens=20, kind=BATCH, sampling={"temperature": 1})
    bench.steps(2)
    bench.submit("i", tokens=1)
    heard = bench.steps(2)
    assert [event.request_id for event in heard if isinstance(event, Delta)] == ["sampled", "sampled", "i"]


@pytest.mark.parametrize(
    ("option", "continues"),
    [
        ({}, True),
        ({"seed": 5, "top_k": 3, "stop": ("x",), "stop_token_ids": (4,), "ignore_eos": True}, True),
        ({"temperature": 0.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": -0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"min_tokens": 1}, False),
    ],
)
def test_only_what_depends_on_tokens_alone_continues_from_its_text(option: dict[str, object], continues: bool) -> None:
    assert replace(Sampling(temperature=0), **option).continues_from_text is continues  # type: ignore[arg-type]


def test_what_was_freed_for_one_is_not_taken_by_those_behind() -> None:
    bench = Bench(Policy(max_sequences=4))
    bench.submit("batch", prompt=4, tokens=76, kind=BATCH)  # 20 of 32 blocks
    bench.steps(1)
    bench.submit("large", prompt=20, tokens=80)  # 25: the batch text has to go
    bench.submit("behind", prompt=21, tokens=19)  # 10: free now, but not beside the large one
    bench.submit("beside", prompt=22, tokens=2)  # 6: free beside it
    bench.steps(1)
    bench.steps(1)
    log = list(bench.scheduler.step_log)
    assert dict(log[1].prefill) == {"beside": 22}
    assert dict(log[2].prefill) == {"large": 20}
    assert bench.metrics.value(m.PREEMPTIONS) == 1
    assert set(bench.rest()) == {"batch", "large", "behind"}


def test_a_long_prefill_goes_on_while_short_ones_fill_every_step() -> None:
    bench = Bench(Policy(max_sequences=4), limits=replace(LIMITS, total_blocks=200))
    bench.submit("long", prompt=100, tokens=1)
    bench.steps(1)
    for number in range(12):
        bench.submit(f"s{number}", prompt=24, tokens=1)
        bench.steps(1)
    log = list(takewhile(lambda entry: "long" not in entry.ended, bench.scheduler.step_log))
    assert len(log) > 8
    assert all(entry.prefill.get("long", 0) >= 4 for entry in log)
    assert all(entry.shape.prefill_tokens >= 20 for entry in log)
    everything = Bench(Policy(max_sequences=4, long_share=1))
    everything.submit("long", prompt=100, tokens=1)
    everything.steps(1)
    everything.submit("s", prompt=8, tokens=1)
    everything.steps(3)
    assert [dict(entry.prefill) for entry in everything.scheduler.step_log][1:4] == [{"long": 24}] * 3


def test_without_a_prefix_cache_a_long_prompt_is_the_engines_to_cut_and_nothing_is_piled_up_behind_it() -> None:
    bench = Bench(limits=replace(LIMITS, prefix_cache=False))
    bench.submit("long", prompt=96, tokens=2)
    bench.steps(1)
    bench.submit("short", prompt=4, tokens=1)
    for _ in range(2):
        assert bench.steps(1) == [] and bench.engine.sequences == 1
    assert [event.request_id for event in bench.steps(1)] == ["long"]
    assert {event.request_id for event in bench.steps(1) if isinstance(event, Delta)} == {"long", "short"}


def test_a_text_that_ends_in_the_step_in_which_its_caller_leaves_holds_nothing_after_it() -> None:
    bench = Bench()
    bench.submit("a", tokens=1)
    bench.scheduler.feed()
    step = bench.engine.step()
    bench.scheduler.cancel("a")
    assert bench.scheduler.collect(step) == []
    assert not bench.scheduler.has_work and bench.metrics.value(m.BLOCKS_PROMISED) == 0


def test_a_seat_is_waited_for_at_the_rate_at_which_seats_come_free() -> None:
    pace = Pace()
    assert pace.seat_wait_us(9, 0, 4) == pace.prefill_us(100, 10) == 0
    pace.saw_seat(8 * MS)
    pace.saw_step(MS)
    assert pace.seat_wait_us(0, 1, 4) == 0
    assert pace.seat_wait_us(0, 0, 4) == 2 * MS
    assert pace.seat_wait_us(3, 2, 4) == 4 * MS
    assert pace.prefill_us(101, 10) == 11 * MS
    pace.saw_step(6 * MS)
    assert pace.prefill_us(1, 10) == pytest.approx(2 * MS)


def test_a_stop_string_ends_a_text_as_complete_and_frees_its_blocks() -> None:
    bench = Bench()
    bench.submit("a", tokens=50)
    bench.steps(3)
    assert bench.scheduler.stop("a") == [Ended("a", End.STOP, 3)]
    assert bench.scheduler.stop("a") == bench.scheduler.cancel("a") == bench.scheduler.cancel("never was") == []
    assert bench.scheduler.has_work
    assert bench.steps(1) == []
    assert bench.engine.used_blocks() == bench.metrics.value(m.BLOCKS_PROMISED) == 0
    assert bench.metrics.count(m.E2E) == 1


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("prompt", [10, 500])
def test_blocks_of_a_caller_who_left_serve_the_next(steps: int, prompt: int) -> None:
    """64 blocks of 16 tokens; whoever leaves them while waiting, prefilling or decoding, a request for 60 begins at once."""
    limits = EngineLimits(64, 16, 64, 2048, 1000)
    bench = Bench(limits=limits)
    bench.submit("leaver", prompt=prompt, tokens=500)
    bench.steps(steps)
    bench.scheduler.cancel("leaver")
    bench.scheduler.cancel("leaver")
    bench.submit("next", prompt=59 * 16, tokens=16)
    bench.steps(2)
    assert bench.metrics.value(m.BLOCKS_PROMISED) == 60
    assert bench.metrics.value(m.RUNNING) == 1
    assert bench.rest()["next"].output_tokens == 16


def test_submit_and_cancel_touch_no_engine() -> None:
    bench = Bench()
    bench.submit("a", tokens=9)
    assert bench.engine.sequences == 0
    bench.steps(1)
    bench.scheduler.cancel("a")
    assert bench.engine.sequences == 1
    bench.scheduler.feed()
    assert bench.engine.sequences == 0


class Picky(FakeEngine):
    """Does not take prompts that begin with token 1, and never runs those that begin with token 2."""

    def add(self, sequence_id: int, tokens: Sequence[int], sampling: Sampling) -> None:
        if tokens[0] == 1:
            raise RuntimeError("not that one")
        super().add(sequence_id, tokens, sampling)
        if tokens[0] == 2:
            self.ignored = sequence_id

    ignored: int | None = None

    def step(self) -> Step:
        if self.ignored is None:
            return super().step()
        ignored, self.ignored = self.ignored, None
        self.cancel(ignored)
        step = super().step()
        return replace(step, produced=(*step.produced, Produced(ignored, (), Finish.IGNORED)))


@pytest.mark.parametrize(("first", "words"), [(1, "not that one"), (2, "fault of the server")])
@pytest.mark.parametrize("length", [5, 80])
def test_what_an_engine_will_not_run_fails_alone(first: int, words: str, length: int) -> None:
    bench = Bench(engine=Picky(LIMITS))
    bench.submit("good", prompt=3, tokens=5)
    sampling = Sampling(max_tokens=3, temperature=0)
    bench.scheduler.submit(Request("bad", (first,) * length, sampling))
    rest = bench.rest()
    assert rest["bad"].end is End.FAILED and words in rest["bad"].message
    assert rest["good"].end is End.LENGTH or rest["good"].end is End.STOP
    assert bench.engine.used_blocks() == bench.metrics.value(m.BLOCKS_PROMISED) == bench.metrics.value(m.RUNNING) == 0


def test_a_lost_engine_ends_everyone_once_and_nothing_more_is_taken() -> None:
    bench = Bench(Policy(max_sequences=2))
    for id_ in ("a", "b", "c"):
        bench.submit(id_, tokens=20)
    bench.steps(2)
    bench.scheduler.cancel("b")
    assert ends(bench.scheduler.abandon(Reason.ENGINE_LOST, "gone")) == [
        ("a", End.FAILED, Reason.ENGINE_LOST),
        ("c", End.FAILED, Reason.ENGINE_LOST),
    ]
    assert not bench.scheduler.has_work and bench.scheduler.abandon(Reason.ENGINE_DOWN, "again") == []
    assert (
        bench.metrics.value(m.BLOCKS_PROMISED) == bench.metrics.value(m.RUNNING) == bench.metrics.value(m.WAITING) == 0
    )
    assert ends(bench.submit("d")) == [("d", End.REFUSED, Reason.ENGINE_DOWN)]
    assert bench.metrics.value(m.ENGINE_UP) == bench.metrics.value(m.BLOCKS_USED) == 0


@pytest.mark.parametrize("in_a_step", [False, True])
def test_an_engine_in_place_of_the_lost_one_begins_with_nothing(in_a_step: bool) -> None:
    bench = Bench(Policy(max_sequences=2))
    for id_ in ("a", "b", "c"):
        bench.submit(id_, prompt=16, tokens=20)
    bench.steps(2)
    bench.scheduler.cancel("b")
    if in_a_step:
        bench.scheduler.feed()
    bench.scheduler.abandon(Reason.ENGINE_LOST, "gone")
    bench.scheduler._engine = bench.engine = FakeEngine(LIMITS, bench.clock.step)
    bench.scheduler.resume()
    assert bench.scheduler.takes and bench.metrics.value(m.ENGINE_RESTARTS) == bench.metrics.value(m.ENGINE_UP) == 1
    assert bench.submit("a", prompt=16, tokens=20, sampling={"ignore_eos": True}) == []
    assert bench.metrics.value(m.BLOCKS_USED) == bench.metrics.value(m.BLOCKS_PROMISED) == 0
    assert bench.rest()["a"].end is End.LENGTH
    last = list(bench.scheduler.step_log)[-20:]
    assert last[0].prefill == {"a": 16}, "nothing of its prompt is cached"
    assert [entry.promised_blocks for entry in last] == [9] * 19 + [0]
    assert bench.engine.shapes == [entry.shape for entry in last]


def test_draining_finishes_what_is_here() -> None:
    bench = Bench(Policy(max_sequences=1))
    bench.submit("a")
    bench.submit("b")
    bench.scheduler.drain()
    assert ends(bench.submit("c")) == [("c", End.REFUSED, Reason.DRAINING)]
    assert {id_: end.end for id_, end in bench.rest().items()} == dict.fromkeys(("a", "b"), End.LENGTH)


def test_the_log_shows_two_texts_together_and_a_third_in_the_freed_seat() -> None:
    bench = Bench(Policy(max_sequences=2))
    for id_, tokens in (("eight", 8), ("sixty-four", 64), ("third", 2)):
        bench.submit(id_, prompt=4, tokens=tokens)
    bench.rest()
    log = list(bench.scheduler.step_log)
    assert dict(log[0].prefill) == {"eight": 4, "sixty-four": 4} and log[0].first == ("eight", "sixty-four")
    assert log[7].ended == ("eight",)
    assert dict(log[8].prefill) == {"third": 4} and log[8].decoded == ("sixty-four",) and log[8].first == ("third",)
    assert log[8].as_json()["prefill_tokens"] == 4 and log[8].tokens == 5
    assert len(log) == 64
    shapes = bench.scheduler.step_log.timed_shapes()
    assert [shape.decoding for shape, _ in shapes] == [0, *[2] * 7, 1, 2, *[1] * 54]
    bench.steps(1)
    assert bench.scheduler.step_log.timed_shapes() == shapes


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(max_sequences=0), "max_sequences is 0"),
        (Policy(max_sequences=22), "max_sequences is 22"),
        (Policy(max_sequences=4, max_waiting=-1), "max_waiting is -1"),
        (Policy(max_sequences=4, long_share=float("nan")), "long_share is nan"),
        (Policy(max_sequences=4, chunk_tokens=3), "chunk_tokens is 3"),
        (Policy(max_sequences=4, batch_kept_share=0), "batch_kept_share is 0"),
        (Policy(max_sequences=4, batch_kept_share=float("nan")), "batch_kept_share is nan"),
        (Policy(max_sequences=4, batch_kept_share=0.01), "of 32 KV blocks it leaves none"),
        (Policy(max_sequences=4, ageing_us={INTERACTIVE: 1}), "ageing_us lacks"),
        (Policy(max_sequences=4, spare_seats=4), "spare_seats is 4; of 4 seats"),
        (Policy(max_sequences=4, spare_seats=-1), "spare_seats is -1"),
        (Policy(max_sequences=4, first_token_within_us={BATCH: -1}), "first_token_within_us of batch is -1"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(policy: Policy, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Bench(policy)
    Bench(Policy(max_sequences=21, chunk_tokens=4))
