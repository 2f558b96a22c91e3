"""What language models are asked: lengths, prompts, and callers in a closed and an open loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from brim.engine.lifecycle import RequestClass
from brim.engine.traffic import SHAREGPT_PROMPTS, SHAREGPT_TEXTS, Call
from brim.errors import CouldNotTell, InputError
from brim.measure.accounting import Outcome
from brim.measure.text.lengths import Mix, mix_of, read_pairs
from brim.measure.text.prompts import LONG_WORDS, SHORT_WORDS, WORDS, Prompts, WordCount, count_words
from brim.measure.text.run import TextLoad, TextRun, run_load
from brim.measure.text.stream import LEFT, Ask, Heard, TextCallers, clock_us
from brim.server.endpoint import Endpoint
from tests.unit.text_example import CLASSES, SLO

CONTEXT = 256


def drawn(mix: Mix, count: int = 200, batch_share: float = 0.0) -> list[Call]:
    return mix.draw(count, np.random.default_rng(0), context_tokens=CONTEXT, batch_share=batch_share)


def test_a_number_is_every_length() -> None:
    assert {
        (call.prompt_tokens, call.output_tokens, call.max_tokens)
        for call in drawn(mix_of("200", "7", context_tokens=CONTEXT))
    } == {(200, 7, 7)}


def test_distributions_fit_the_context_and_follow_the_seed() -> None:
    mix = mix_of("sharegpt", "lognormal:20,0.8", context_tokens=CONTEXT)
    calls = drawn(mix, 2_000)
    assert mix.prompts is SHAREGPT_PROMPTS and mix_of("1", "sharegpt", context_tokens=CONTEXT).texts is SHAREGPT_TEXTS
    assert calls == drawn(mix, 2_000) and len({call.prompt_tokens for call in calls}) > 50
    assert all(1 <= call.output_tokens == call.max_tokens <= CONTEXT - call.prompt_tokens for call in calls)
    short = [call.output_tokens for call in drawn(mix_of("1", "lognormal:20,0.8", context_tokens=CONTEXT), 2_000)]
    assert 17 < sum(short) / len(short) < 23


def test_pairs_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        '{"prompt_tokens": 9, "output_tokens": 7, "user": "x"}\n\n{"prompt_tokens": 200, "output_tokens": 1}\n'
    )
    calls = drawn(read_pairs(path), 300, batch_share=0.5)
    assert {(call.prompt_tokens, call.output_tokens) for call in calls} == {(9, 7), (200, 1)}
    assert {call.kind for call in calls} == set(RequestClass)
    with pytest.raises(InputError, match="1 of 2 pairs have more than 200 tokens"):
        read_pairs(path).draw(1, np.random.default_rng(0), context_tokens=200, batch_share=0)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"prompt_tokens": 0, "output_tokens": 1}', '{"prompt_tokens": 1, "output_tokens": true}'],
)
def test_every_faulty_pair_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{text}\n{text}\n")
    with pytest.raises(InputError) as refused:
        read_pairs(path)
    assert str(refused.value).count(str(path)) == (2 if text else 1)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "0",
        "-1",
        "1.5",
        "256",
        "many",
        "lognormal:",
        "lognormal:20",
        "lognormal:20,x",
        "lognormal:0,1",
        "lognormal:20,nan",
        "lognormal:nan,1",
        "lognormal:9,99",
        "²",
    ],
)
def test_what_is_no_length(given: str) -> None:
    with pytest.raises(InputError):
        mix_of("1", given, context_tokens=CONTEXT)


def test_prompts_differ_from_the_first_words_on_unless_a_prefix_is_shared() -> None:
    count = WordCount(base_tokens=1, tokens_per_word=2)
    prompts = Prompts(count, "a")
    texts = [prompts.prompt(Call(101, 1, 1), number).decode() for number in range(50)]
    assert {len(text.split()) for text in texts} == {50} and len({tuple(text.split()[:8]) for text in texts}) == 50
    assert (
        texts[3]
        == prompts.prompt(Call(101, 1, 1), 3).decode()
        != Prompts(count, "b").prompt(Call(101, 1, 1), 3).decode()
    )
    shared = [Prompts(count, seed, 41, "s").prompt(Call(101, 1, 1), 0).decode().split() for seed in "ab"]
    assert shared[0][:20] == shared[1][:20] and shared[0][20:] != shared[1][20:]
    assert len(Prompts(count, "a", 41, "s").prompt(Call(21, 1, 1), 0).split()) == 10, "never longer than asked"
    assert len(set(WORDS)) == len(WORDS)


@dataclass
class Told:
    """Callers whose server is a rule: what each hears, and how long that takes."""

    tokens_per_word: float = 1.0
    base: int = 0
    after_s: float = 0.005
    refuse_every: int = 0
    asked: list[Ask] = field(default_factory=list)
    under_way: int = 0
    most: int = 0

    async def ask(
        self, ask: Ask, *, limit_s: float, heard: Heard | None = None, headers: Mapping[str, str] | None = None
    ) -> Heard:
        heard = Heard() if heard is None else heard
        heard.sent_us = clock_us()
        if not ask.prompt:
            heard.ended_us, heard.error = clock_us(), "the prompt has no tokens"
            return heard
        self.asked.append(ask)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            heard.input_tokens = round(self.base + self.tokens_per_word * len(ask.prompt.split()))
            if self.refuse_every and len(self.asked) % self.refuse_every == 0:
                heard.ended_us, heard.error = clock_us(), "room_full: no place"
                return heard
            assert isinstance(ask.options, Mapping)
            for _ in range(ask.options["max_tokens"]):
                heard.pieces.append((clock_us(), 1, "x"))
                await asyncio.sleep(self.after_s)
            heard.ended_us, heard.finish_reason = clock_us(), "length"
        except asyncio.CancelledError:
            heard.ended_us, heard.error = clock_us(), LEFT
            raise
        finally:
            self.under_way -= 1
        return heard


def callers_of(told: Any) -> TextCallers:
    return cast(TextCallers, told)


def test_the_server_says_how_words_count() -> None:
    found = asyncio.run(count_words(callers_of(Told(tokens_per_word=1.25, base=2)), "seed"))
    assert found.told and found.tokens_per_word == pytest.approx(1.25) and found.base_tokens == pytest.approx(2)
    assert [found.words(tokens) for tokens in (1, 22, 182)] == [1, SHORT_WORDS, LONG_WORDS]
    assert asyncio.run(count_words(callers_of(Told(tokens_per_word=0)), "seed")) == WordCount()
    with pytest.raises(CouldNotTell, match="room_full"):
        asyncio.run(count_words(callers_of(Told(refuse_every=1)), "seed"))


def ran(told: Told, **changes: Any) -> TextRun:
    given: dict[str, Any] = {
        "concurrency": 3,
        "due_us": (),
        "calls": [Call(8, 2, 2), Call(9, 3, 3, RequestClass.BATCH)],
        "prompts": Prompts(WordCount(told=True), "seed"),
        "classes": CLASSES,
        "duration_us": 200_000,
        "objective": SLO,
        "give_up_us": None,
        "timeout_us": 10_000_000,
        "in_flight_limit": 100,
    }
    return asyncio.run(run_load(callers_of(told), Endpoint("a:1", "a:2"), "m", TextLoad(**{**given, **changes})))


def test_a_closed_loop_has_so_many_callers_at_once_and_every_request_in_one_account() -> None:
    told = Told(refuse_every=5)
    run = ran(told)
    counts = run.whole.outcomes.counts
    assert told.most == 3 and run.whole.outcomes.offered == len(told.asked) > 5
    assert counts[Outcome.REFUSED] == len(told.asked) // 5 == run.whole.refused_by["room_full"]
    assert counts[Outcome.ANSWERED] == len(told.asked) - counts[Outcome.REFUSED]
    assert sum(account.outcomes.offered for account in run.classes.values()) == len(told.asked)
    assert {ask.parameters["brim_class"] for ask in told.asked} == {"interactive", "batch"}
    assert len({ask.prompt for ask in told.asked}) == len(told.asked)
    assert run.turnaround.count >= 1 and run.wall_us >= 200_000


def test_an_open_loop_sends_everything_and_those_who_leave_keep_what_they_heard() -> None:
    told = Told(after_s=0.03)
    due_us = [0, 0, 20_000, 40_000, 60_000]
    run = ran(told, concurrency=0, due_us=due_us, calls=[Call(8, 30, 30)] * 5, give_up_us=100_000, classes={})
    assert run.whole.outcomes.counts[Outcome.CANCELLED] == 5 == len(told.asked)
    assert 0 < run.whole.output_tokens < 5 * 30 and run.whole.ttft.count == 5
    assert not run.classes and all(not ask.parameters for ask in told.asked)


def test_an_arrival_beyond_the_bound_is_not_sent_and_the_generator_says_so() -> None:
    run = ran(
        Told(after_s=0.05), concurrency=0, due_us=[0] * 4, calls=[Call(8, 2, 2)] * 4, in_flight_limit=3, classes={}
    )
    counts = run.whole.outcomes.counts
    assert (counts[Outcome.ANSWERED], counts[Outcome.NOT_SENT]) == (3, 1)
    assert any("not sent" in limit for limit in run.limits)
