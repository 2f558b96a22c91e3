"""Who may begin beside whom, where an engine also finds blocks that are not full."""

from __future__ import annotations

import pytest

from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits, Sampling
from brim.engine.fake import FakeEngine, MixedTexts
from brim.engine.kv_cache import block_hashes
from brim.engine.lifecycle import Delta, End, Ended, Request
from brim.engine.partial_blocks import PartialBlocks
from brim.engine.scheduler import Scheduler

LIMITS = EngineLimits(total_blocks=64, block_tokens=4, step_tokens=24, context_tokens=200, vocabulary=1000)
BEGINNING = (11, 12, 13, 14, 15, 16)
"""A block and a half."""


class Bench:
    def __init__(self, policy: Policy | None = None) -> None:
        self.engine = FakeEngine(LIMITS)
        self.scheduler = Scheduler(self.engine, policy or Policy(max_sequences=8), lambda: 0)
        self.first_step: dict[str, int] = {}
        self.ends: dict[str, End] = {}
        self.texts: dict[str, list[int]] = {}
        self.steps = 0

    def submit(self, id_: str, tokens: tuple[int, ...], most: int = 3) -> None:
        sampling = Sampling(max_tokens=most, temperature=0, ignore_eos=True)
        assert self.scheduler.submit(Request(id_, tokens, sampling)) == []

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for event in self.scheduler.step():
                if isinstance(event, Delta):
                    self.first_step.setdefault(event.request_id, self.steps)
                    self.texts.setdefault(event.request_id, []).extend(event.tokens)
                elif isinstance(event, Ended):
                    self.ends[event.request_id] = event.end
            self.steps += 1

    def finish(self) -> None:
        for _ in range(200):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("requests are left")


def alone(tokens: tuple[int, ...], most: int = 3) -> list[int]:
    bench = Bench()
    bench.submit("alone", tokens, most)
    bench.finish()
    return bench.texts["alone"]


def more(first: int, count: int = 6) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def test_two_that_go_on_behind_one_ended_prompt_begin_a_step_apart_and_others_with_them() -> None:
    bench = Bench()
    bench.submit("ended", BEGINNING, most=1)
    bench.step()
    assert bench.ends == {"ended": End.LENGTH}
    prompts = {
        "a": (*BEGINNING, *more(100)),
        "b": (*BEGINNING, *more(200)),
        "full blocks": (*BEGINNING[:4], *more(300)),
        "other": more(400),
    }
    for id_, tokens in prompts.items():
        bench.submit(id_, tokens)
    bench.finish()
    begun = sorted(bench.first_step[id_] for id_ in ("a", "b"))
    assert begun == [1, 2]
    assert bench.first_step["full blocks"] == bench.first_step["other"] == 1
    assert {id_: bench.texts[id_] for id_ in prompts} == {id_: alone(tokens) for id_, tokens in prompts.items()}


def test_two_that_go_on_behind_a_text_that_is_being_written_begin_a_step_apart() -> None:
    bench = Bench()
    bench.submit("writing", BEGINNING, most=40)
    bench.step()
    so_far = BEGINNING  # its first token is drawn, and not run
    bench.submit("a", (*so_far, *more(100)))
    bench.submit("b", (*so_far, *more(200)))
    bench.finish()
    assert sorted(bench.first_step[id_] for id_ in ("a", "b")) == [1, 2]


def test_the_same_prompt_from_many_callers_is_not_kept_apart() -> None:
    bench = Bench()
    bench.submit("first", BEGINNING, most=1)
    bench.step()
    for number in range(3):
        bench.submit(f"r{number}", BEGINNING)
    bench.finish()
    assert {bench.first_step[f"r{number}"] for number in range(3)} == {1}


@pytest.mark.parametrize("leaves", [False, True])
def test_beside_a_prompt_that_the_engine_cut_nobody_begins_who_shares_its_blocks(leaves: bool) -> None:
    """The engine forgot the first piece, so the second one is longer than a step, and ends inside a block."""
    bench = Bench(Policy(max_sequences=8, long_share=1))
    long = tuple(range(1, 61))
    bench.submit("writing", (900, 901), most=60)
    bench.step()
    bench.submit("long", long)
    bench.step()
    bench.engine._cache.clear()
    bench.step()
    assert bench.first_step.keys() == {"writing"}
    if leaves:
        bench.scheduler.cancel("long")
    bench.submit("like it", long[:24])
    bench.finish()
    assert bench.texts["like it"] == alone(long[:24])
    assert ("long" in bench.texts) is not leaves
    assert bench.engine.used_blocks() == 0


def test_what_is_known_is_bounded_and_the_oldest_tails_are_forgotten() -> None:
    partial = PartialBlocks(2, 4)
    for number in range(20):
        partial.ends((number, number), ())
    assert len(partial) == 10
    partial.begins(1, (19, 19, 1, 2, 3), block_hashes((19, 19, 1, 2, 3), 4), ())
    assert not partial.may_begin((19, 19, 5), (), ())
    assert partial.may_begin((19, 19), (), ())
    partial.stepped([1])
    assert partial.may_begin((19, 19, 5), (), ())
    partial.begins(2, (0, 0, 1, 2, 3), block_hashes((0, 0, 1, 2, 3), 4), ())
    assert partial.may_begin((0, 0, 5), (), ())


def test_without_a_prefix_cache_everybody_may_begin() -> None:
    partial = PartialBlocks(0, 4)
    partial.ends((1, 2), ())
    partial.begins(1, (1, 2, 3), (), ())
    assert partial.may_begin((1, 2, 4), (), ()) and len(partial) == 0 and not partial.is_cut(1)


def test_the_fake_engine_tells_when_texts_would_mix() -> None:
    sampling = Sampling(max_tokens=1, temperature=0, ignore_eos=True)
    engine = FakeEngine(LIMITS)
    engine.add(1, BEGINNING, sampling)
    engine.step()
    engine.add(2, (*BEGINNING, 1), sampling)
    with pytest.raises(MixedTexts, match="partly filled"):
        engine.add(3, (*BEGINNING, 2), sampling)
    cut = FakeEngine(LIMITS)
    cut.add(1, (9,), Sampling(max_tokens=9, temperature=0, ignore_eos=True))
    cut.step()
    cut.add(2, tuple(range(1, 61)), sampling)
    cut.step()
    with pytest.raises(MixedTexts, match="half filled"):
        cut.add(3, tuple(range(1, 41)), sampling)
    with pytest.raises(MixedTexts, match="in the middle"):
        cut.cancel(2)


def test_a_fake_engine_that_is_asked_the_same_for_ever_keeps_no_list_of_it() -> None:
    engine = FakeEngine(LIMITS)
    sampling = Sampling(max_tokens=1, temperature=0, ignore_eos=True)
    for number in range(400):
        engine.add(number, tuple(range(1, 20)), sampling)
        engine.step()
    assert len(engine._cache) == 5
    assert len(engine._oldest) <= 5 * LIMITS.total_blocks
