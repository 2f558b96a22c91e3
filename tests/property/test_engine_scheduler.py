"""Properties of the scheduler over arbitrary policies, engines and traffic, with callers who go at any moment.

Hypothesis draws the seed of each example; the example is built from that by chance with the weights written here, so that
full rooms, scarce blocks and preemptions are common.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine import metrics as m
from brim.engine.admission import Policy, misfit
from brim.engine.engine import EngineLimits, Finish, Sampling
from brim.engine.fake import FakeEngine
from brim.engine.lifecycle import Delta, End, Ended, Event, Reason, Request, RequestClass
from brim.engine.scheduler import Scheduler
from brim.engine.step_time import StepShape

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH
MOST_STEPS = 5_000
STEP_US = 1_000
seeds = st.integers(0, 2**48).map(Random)


def any_limits(chance: Random) -> EngineLimits:
    block = chance.choice([1, 4, 16])
    return EngineLimits(
        total_blocks=chance.choice([6, 12, 40, 200]),
        block_tokens=block,
        step_tokens=block + chance.choice([8, 24, 100]),
        context_tokens=chance.choice([60, 300]),
        vocabulary=1000,
        prefix_cache=chance.random() < 0.8,
    )


def any_policy(chance: Random, limits: EngineLimits) -> Policy:
    seats = chance.randint(1, min(8, limits.step_tokens - limits.block_tokens + 1))
    return Policy(
        max_sequences=seats,
        max_waiting=chance.choice([0, 2, 10, 100]),
        max_waiting_batch=chance.choice([0, 1, 10, 100]),
        chunk_tokens=chance.choice([None, limits.block_tokens, 3 * limits.block_tokens]),
        long_share=chance.choice([0, 0.25, 1]),
        ageing_us={
            INTERACTIVE: chance.choice([0, 20, 10_000]) * STEP_US,
            BATCH: chance.choice([0, 50, 10_000]) * STEP_US,
        },
        first_token_within_us=chance.choice([{}, {BATCH: 30 * STEP_US}, {INTERACTIVE: 0}]),
        preempts=chance.random() < 0.8,
        max_preemptions=chance.randint(0, 3),
        batch_kept_share=chance.choice([1.0, 1.0, 0.5, 0.2]),
        spare_seats=chance.choice([0, min(1, seats - 1), seats - 1]),
    )


def any_sampling(chance: Random, most: int) -> Sampling:
    return Sampling(
        max_tokens=chance.randint(1, most),
        min_tokens=chance.choice([0, 0, 0, 2]),
        temperature=chance.choice([0, 0, 0.8]),
        presence_penalty=chance.choice([0, 0, 0, 0.5]),
        seed=chance.randint(0, 3),
        ignore_eos=chance.random() < 0.3,
    )


def any_request(chance: Random, number: int, limits: EngineLimits, now_us: int = 0) -> Request:
    length = chance.choice([1, 2, 5, 20, limits.context_tokens // 2, limits.context_tokens])
    shared = [7] * chance.choice([0, 0, 8, 40])
    tokens = (shared + [chance.randint(1, 9) for _ in range(length)])[: chance.randint(1, limits.context_tokens + 5)]
    return Request(
        f"r{number}",
        tuple(tokens),
        any_sampling(chance, chance.choice([1, 4, 30])),
        chance.choice([INTERACTIVE, BATCH]),
        now_us + chance.randint(0, 100) * STEP_US if chance.random() < 0.1 else None,
    )


@dataclass
class World:
    """A scheduler, its engine, a clock that moves with the steps, and everything that was told."""

    limits: EngineLimits
    policy: Policy
    now_us: int = 0
    step_us: int = STEP_US
    texts: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, Ended] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.limits, self._tick)
        self.scheduler = Scheduler(self.engine, self.policy, lambda: self.now_us)

    def _tick(self, shape: StepShape) -> int:
        took_us = self.step_us + 10 * shape.prefill_tokens
        self.now_us += took_us
        return took_us

    def submit(self, request: Request) -> None:
        self.requests[request.id] = request
        self.texts[request.id] = []
        self.hear(self.scheduler.submit(request))

    def hear(self, events: Iterable[Event]) -> None:
        for event in events:
            assert event.request_id not in self.ends, (event, self.ends[event.request_id])
            if isinstance(event, Delta):
                assert event.tokens
                self.texts[event.request_id] += event.tokens
            else:
                assert event.output_tokens == len(self.texts[event.request_id])
                self.ends[event.request_id] = event

    def step(self) -> None:
        self.hear(self.scheduler.step())
        promised = self.scheduler.metrics.value(m.BLOCKS_PROMISED)
        assert self.engine.used_blocks() <= promised <= self.limits.total_blocks
        assert self.scheduler.metrics.value(m.RUNNING) <= self.policy.max_sequences
        seats, blocks = self.scheduler._room.share_left()
        assert seats >= 0 and (blocks >= 0 or seats == self.policy.kept_seats - 1)

    def finish(self) -> None:
        for _ in range(MOST_STEPS):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"{len(self.requests) - len(self.ends)} requests have no end after {MOST_STEPS} steps")

    def assert_empty(self) -> None:
        assert self.engine.used_blocks() == self.engine.sequences == 0
        for gauge in (m.RUNNING, m.WAITING, m.BLOCKS_USED, m.BLOCKS_PROMISED):
            assert self.scheduler.metrics.value(gauge) == 0, gauge.name
        assert self.scheduler.metrics.value(m.BLOCKS_FREE) == self.limits.total_blocks


def alone(limits: EngineLimits, request: Request) -> tuple[list[int], Finish | None]:
    """The text that an engine gives a request that has it for itself."""
    engine = FakeEngine(replace(limits, total_blocks=1000))
    engine.add(0, request.tokens, request.sampling)
    text: list[int] = []
    for _ in range(MOST_STEPS):
        for produced in engine.step().produced:
            text += produced.tokens
            if produced.finish is not None:
                return text, produced.finish
    raise AssertionError("no end")


def traffic(chance: Random, world: World, *, leavers: bool = True) -> None:
    """Crowds and quiet moments; callers go while waiting, prefilling, decoding, in the middle of a step and afterwards."""
    for number in range(chance.randint(1, 40)):
        world.submit(any_request(chance, number, world.limits, world.now_us))
        if leavers and chance.random() < 0.3:
            world.hear(world.scheduler.cancel(chance.choice(list(world.requests))))
        for _ in range(chance.choice([0, 0, 0, 1, 2, 10])):
            if leavers and chance.random() < 0.2:
                world.hear(world.scheduler.feed())
                step = world.engine.step()
                gone = chance.choice(list(world.requests))
                world.hear(world.scheduler.stop(gone) if chance.random() < 0.3 else world.scheduler.cancel(gone))
                world.hear(world.scheduler.collect(step))
            else:
                world.step()


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_every_request_has_one_end_its_own_text_and_leaves_nothing_behind(chance: Random) -> None:
    limits = any_limits(chance)
    world = World(limits, any_policy(chance, limits))
    traffic(chance, world)
    world.finish()
    assert world.ends.keys() == world.requests.keys()
    world.assert_empty()
    assert world.engine.most_used_blocks <= limits.total_blocks
    for id_, request in world.requests.items():
        end, text = world.ends[id_], world.texts[id_]
        assert end.end is not End.FAILED, end
        if end.end is End.REFUSED:
            assert end.reason is not None and end.message and not text
            continue
        whole, finish = alone(limits, request)
        if end.end is End.LENGTH or (end.end is End.STOP and len(text) == len(whole)):
            assert text == whole and finish is not None
        else:
            assert text == whole[: len(text)]


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_counts_agree_with_what_was_told(chance: Random) -> None:
    limits = any_limits(chance)
    world = World(limits, any_policy(chance, limits))
    traffic(chance, world)
    world.finish()
    metrics = world.scheduler.metrics
    assert metrics.value(m.TOKENS_OUT) == sum(map(len, world.texts.values()))
    for end in End:
        assert metrics.value(m.ENDS, end.value) == sum(e.end is end for e in world.ends.values())
    for reason in Reason:
        assert metrics.value(m.REFUSALS, reason.value) == sum(e.reason is reason for e in world.ends.values())
    began = [id_ for id_, text in world.texts.items() if text]
    assert metrics.count(m.TTFT) == len(began)
    assert metrics.value(m.TOKENS_IN) == sum(len(world.requests[id_].tokens) for id_ in began)
    assert metrics.count(m.STEP_TIME) == metrics.value(m.STEPS) == len(world.engine.shapes)
    assert all(shape.decoding + shape.prefill_tokens <= limits.step_tokens for shape in world.engine.shapes)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_cancelled_request_holds_nothing_two_steps_later(chance: Random) -> None:
    limits = any_limits(chance)
    world = World(limits, replace(any_policy(chance, limits), first_token_within_us={}))
    traffic(chance, world, leavers=False)
    in_a_step = chance.random() < 0.5
    if in_a_step:
        world.hear(world.scheduler.feed())
        step = world.engine.step()
    for id_ in list(world.requests):
        world.hear(world.scheduler.cancel(id_))
        assert world.scheduler.cancel(id_) == []
    if in_a_step:
        world.hear(world.scheduler.collect(step))
    world.step()
    world.assert_empty()
    assert not world.scheduler.has_work
    assert world.ends.keys() == world.requests.keys()


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_preempted_texts_are_those_of_an_undisturbed_run(chance: Random) -> None:
    """Batch texts under way, then interactive crowds that need every seat and block."""
    limits = EngineLimits(40, 4, 64, 200, 1000, prefix_cache=chance.random() < 0.8)
    world = World(limits, Policy(max_sequences=4, max_waiting=100, max_waiting_batch=100))
    for number in range(4):
        sampling = replace(any_sampling(chance, 20), max_tokens=chance.randint(8, 30), ignore_eos=True)
        world.submit(Request(f"b{number}", tuple(chance.choices(range(1, 99), k=8)), sampling, BATCH))
    for number in range(12):
        for _ in range(chance.randint(1, 4)):
            world.step()
        tokens = tuple(chance.choices(range(1, 99), k=chance.randint(1, 60)))
        world.submit(Request(f"i{number}", tokens, any_sampling(chance, 10), INTERACTIVE))
    world.finish()
    assert world.scheduler.metrics.value(m.PREEMPTIONS) > 0
    for id_, request in world.requests.items():
        assert world.ends[id_].end in {End.STOP, End.LENGTH}
        assert world.texts[id_] == alone(limits, request)[0]


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_nobody_starves_behind_those_who_keep_coming(chance: Random) -> None:
    """One batch request that needs most of the cache, and short interactive ones without end."""
    limits = EngineLimits(30, 4, 40, 200, 1000)
    ageing = {INTERACTIVE: 20 * STEP_US, BATCH: 60 * STEP_US}
    world = World(
        limits,
        Policy(
            max_sequences=4,
            max_waiting=6,
            ageing_us=ageing,
            preempts=chance.random() < 0.8,
            max_preemptions=chance.randint(0, 2),
            batch_kept_share=chance.choice([1.0, 0.95, 0.1]),
        ),
    )
    world.submit(
        Request("long", (5,) * chance.randint(60, 90), Sampling(max_tokens=20, temperature=0, ignore_eos=True), BATCH)
    )
    number = 0
    for _ in range(300):  # ageing, then thrice: those with a seat finish, and it goes on
        for _ in range(5 - int(world.scheduler.metrics.value(m.WAITING))):
            tokens = tuple(chance.choices(range(1, 99), k=chance.randint(1, 12)))
            world.submit(Request(f"i{number}", tokens, any_sampling(chance, 10), INTERACTIVE))
            number += 1
        world.step()
        if "long" in world.ends:
            break
    assert world.ends["long"].end is End.LENGTH
    assert world.texts["long"] == alone(limits, world.requests["long"])[0]


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_within_a_class_the_shortest_prefill_goes_first_and_interactive_before_batch(chance: Random) -> None:
    """All at once and one seat: seats are given in the order of class, prompt and arrival."""
    limits = EngineLimits(100, 4, 32, 300, 1000, prefix_cache=False)
    world = World(limits, Policy(max_sequences=1, max_waiting=100, max_waiting_batch=100))
    requests = [
        Request(
            f"r{number}",
            tuple(chance.choices(range(1, 99), k=chance.randint(1, 60))),
            Sampling(max_tokens=1),
            chance.choice([INTERACTIVE, BATCH]),
        )
        for number in range(chance.randint(2, 12))
    ]
    for request in requests:
        world.submit(request)
    world.finish()
    expected = sorted(requests, key=lambda r: (r.kind, len(r.tokens), int(r.id[1:])))
    assert list(world.ends) == [request.id for request in expected]


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_a_short_prompt_passes_a_long_prefill(chance: Random) -> None:
    """It comes in the middle of a step: its first token is there after the next one, and the long one loses no step for it."""
    limits = EngineLimits(1000, 16, 256, 4096, 1000)
    policy = Policy(max_sequences=4)
    long = Request(
        "long", tuple(chance.choices(range(1, 999), k=3000)), Sampling(max_tokens=2, temperature=0, ignore_eos=True)
    )
    short = Request("short", (1, 2, 3, 4, 5), Sampling(max_tokens=4, temperature=0, ignore_eos=True))

    def first_step(world: World, id_: str, at: int | None) -> int:
        world.submit(long)
        for number in range(MOST_STEPS):
            world.hear(world.scheduler.feed())
            step = world.engine.step()
            if number == at:
                world.submit(short)
            world.hear(world.scheduler.collect(step))
            if world.texts.get(id_):
                return number
        raise AssertionError("no token")

    undisturbed = first_step(World(limits, policy), "long", None)
    at = chance.randint(0, undisturbed - 1)
    assert first_step(World(limits, policy), "short", at) == at + 1
    assert first_step(World(limits, policy), "long", at) <= undisturbed + 1


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_the_log_says_what_the_engine_ran(chance: Random) -> None:
    """With room for every prefix, what was planned is what is run: pieces, known prompts and resumed texts."""
    limits = EngineLimits(50_000, chance.choice([1, 4, 16]), 80, 300, 1000)
    world = World(limits, replace(any_policy(chance, limits), max_sequences=8))
    for number in range(chance.randint(1, 40)):
        request = any_request(chance, number, limits)
        sampling = replace(request.sampling, temperature=0, presence_penalty=0, min_tokens=0)
        again = chance.random() < 0.3 and not world.scheduler.has_work
        tokens = (
            chance.choice([*world.requests.values()]).tokens
            if again and world.requests
            else (100 + number, *request.tokens)
        )
        world.submit(replace(request, tokens=tokens, sampling=sampling, deadline_us=None))
        for _ in range(chance.choice([0, 0, 1, 2, 60])):
            if world.scheduler.has_work:
                world.step()
    world.finish()
    log = list(world.scheduler.step_log)
    assert [entry.shape for entry in log] == world.engine.shapes
    assert [entry.number for entry in log] == list(range(len(log)))
    ended = sorted(id_ for entry in log for id_ in entry.ended)
    assert ended == sorted(id_ for id_, end in world.ends.items() if end.end in {End.STOP, End.LENGTH})


def test_a_minute_at_five_times_what_can_be_served() -> None:
    """Four seats, 32 tokens a text and 20 ms a step serve 6.25 texts a second. Interactive callers want a third of that,
    batch callers all the rest of 31.25 a second: whoever begins is finished, and it is the batch class that is shed."""
    chance = Random(5)
    slo_us, last_us, second_us = 1_000_000, 60_000_000, 1_000_000
    limits = EngineLimits(24, 16, 64, 256, 1000)
    policy = Policy(max_sequences=4, max_waiting=16, max_waiting_batch=8, first_token_within_us={INTERACTIVE: slo_us})
    world = World(limits, policy, step_us=20_000)
    arrived_us: dict[str, int] = {}
    ttfts_us: dict[str, int] = {}
    next_us = 0.0
    while world.now_us < last_us:
        while next_us <= world.now_us:
            kind = INTERACTIVE if chance.random() < 2 / 31.25 else BATCH
            tokens = tuple(chance.choices(range(1, 99), k=chance.randint(1, 60)))
            sampling = Sampling(max_tokens=chance.randint(8, 56), temperature=0, ignore_eos=True)
            request = Request(f"r{len(world.requests)}", tokens, sampling, kind)
            arrived_us[request.id] = world.now_us
            world.submit(request)
            next_us += chance.expovariate(31.25) * second_us
        world.step()
        for id_ in [id_ for id_ in arrived_us if world.texts[id_] or id_ in world.ends]:
            came_us = arrived_us.pop(id_)
            if world.texts[id_]:
                ttfts_us[id_] = world.now_us - came_us
    world.finish()
    world.assert_empty()
    assert world.engine.most_used_blocks <= limits.total_blocks
    refused = {id_ for id_, end in world.ends.items() if end.end is End.REFUSED}
    assert all(world.ends[id_].reason is not None and world.ends[id_].message for id_ in refused)
    assert {world.ends[id_].end for id_ in world.requests.keys() - refused} == {End.LENGTH}
    interactive = {id_ for id_, request in world.requests.items() if request.kind is INTERACTIVE}
    served_us = sorted(ttfts_us[id_] for id_ in interactive - refused if id_ in ttfts_us)
    assert served_us[len(served_us) * 99 // 100 - 1] <= slo_us
    assert len(interactive & refused) < len(interactive) / 20
    assert len(refused) > len(world.requests) / 2
    assert world.scheduler.metrics.value(m.PREEMPTIONS) > 0


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_what_never_fits_is_refused_at_once_and_what_fits_is_not(chance: Random) -> None:
    limits = any_limits(chance)
    world = World(limits, any_policy(chance, limits))
    request = any_request(chance, 0, limits)
    world.submit(replace(request, deadline_us=None))
    blocks = -(-request.most_tokens // limits.block_tokens)
    if request.most_tokens > limits.context_tokens:
        expected: Reason | None = Reason.TOO_LONG_FOR_CONTEXT
    else:
        expected = Reason.TOO_LONG_FOR_CACHE if blocks > limits.total_blocks else None
    assert (world.ends["r0"].reason if world.ends else None) is expected
    assert (misfit(request, limits) or (None,))[0] is expected


def test_an_id_in_use_is_an_error_and_touches_nobody() -> None:
    world = World(EngineLimits(40, 4, 64, 200, 1000), Policy())
    request = Request("same", (1, 2, 3), Sampling(max_tokens=3, temperature=0, ignore_eos=True))
    world.submit(request)
    with pytest.raises(ValueError, match="same"):
        world.scheduler.submit(request)
    world.finish()
    assert world.ends["same"].end is End.LENGTH and len(world.texts["same"]) == 3
