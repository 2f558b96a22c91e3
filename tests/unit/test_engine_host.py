"""The host on the fake engine: every caller gets its own text, in pieces that add up, and exactly one end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brim.engine import host
from brim.engine import metrics as m
from brim.engine.admission import Policy
from brim.engine.engine import EngineLimits, Sampling, Step
from brim.engine.fake import FakeEngine
from brim.engine.host import MOST_CANARIES, Host, Piece
from brim.engine.lifecycle import End, Reason, Request
from brim.engine.scheduler import Scheduler

WAIT_S = 30.0
LIMITS = EngineLimits(total_blocks=64, block_tokens=16, step_tokens=64, context_tokens=512, vocabulary=256)
TABLE = tuple(bytes([value]) for value in range(256))
FIRST_LETTER = 97


def letters(tokens: Sequence[int], prompt_tokens: int, sampling: Sampling) -> int:
    """The n-th token of a text is the n-th letter, starting from the prompt's first token."""
    return FIRST_LETTER + (tokens[0] + len(tokens) - prompt_tokens) % 26


def expected(first: int, length: int) -> str:
    return "".join(chr(FIRST_LETTER + (first + place) % 26) for place in range(length))


class GatedEngine(FakeEngine):
    """A fake whose steps wait for permission, when that is asked for."""

    def __init__(self) -> None:
        super().__init__(LIMITS, next_token=letters)
        self.gate: threading.Semaphore | None = None
        self.fails = False
        self.steps = 0

    def step(self) -> Step:
        if self.gate is not None:
            assert self.gate.acquire(timeout=WAIT_S)
        if self.fails:
            raise RuntimeError("out of order")
        self.steps += 1
        return super().step()

    def forget(self) -> None:
        """Be like a new one."""
        self.fails = False
        for sequence in list(self._sequences):
            self.cancel(sequence)
        super().step()
        self._cache.clear()


class Listener:
    """A caller: keeps what it is sent."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.done = threading.Event()
        self.left = threading.Event()
        self.deaf = False

    def send(self, piece: Piece) -> None:
        if self.deaf:
            raise OSError("the line is dead")
        self.pieces.append(piece)
        if piece.end is not None:
            self.done.set()

    def gone(self) -> bool:
        return self.left.is_set()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def wait(self) -> Piece:
        assert self.done.wait(WAIT_S)
        assert [piece.end is None for piece in self.pieces] == [True] * (len(self.pieces) - 1) + [False]
        return self.pieces[-1]


class Bench:
    """A host, its engine, and what it complained about."""

    def __init__(self, policy: Policy) -> None:
        self.engine = GatedEngine()
        self.complaints: list[str] = []
        self.replaced = 0
        self.mends = True
        """Whether an engine that is lost can be replaced."""
        ticks = iter(range(10**9))
        self.scheduler = Scheduler(self.engine, policy, lambda: next(ticks))
        self.host = Host(self.engine, self.scheduler, TABLE, restart=self._replace, on_error=self.complaints.append)
        self._ids = 0

    def _replace(self) -> None:
        self.replaced += 1
        if not self.mends:
            raise RuntimeError("cannot be replaced")
        self.engine.forget()

    def ask(
        self,
        first: int = 0,
        tokens: int = 8,
        *,
        stream: bool = True,
        stop: tuple[str, ...] = (),
        prompt_tokens: int = 3,
        canary: bool = False,
    ) -> Listener:
        listener = Listener()
        self._ids += 1
        sampling = Sampling(max_tokens=tokens, temperature=0, ignore_eos=True, stop=stop)
        request = Request(str(self._ids), (first, *range(1, prompt_tokens)), sampling)
        self.host.submit(request, listener, stream=stream, canary=canary)
        return listener


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    give_up = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[MakeBench]:
    benches: list[Bench] = []

    def make(**policy: int) -> Bench:
        benches.append(Bench(Policy(**{"max_sequences": 8, "max_waiting": 8, **policy})))
        return benches[-1]

    yield make
    for one in benches:
        one.engine.gate = None
        one.host.close()
        assert all(not thread.is_alive() for thread in one.host._threads)


def test_many_callers_get_their_own_texts(bench: MakeBench) -> None:
    one = bench(max_waiting=64)
    callers = [(first, 3 + 5 * first, one.ask(first, 3 + 5 * first, stream=first % 2 == 0)) for first in range(20)]
    for first, length, listener in callers:
        last = listener.wait()
        assert (listener.text, last.end) == (expected(first, length), End.LENGTH)
        assert sum(piece.tokens for piece in listener.pieces) == length
        assert first % 2 == 0 or len(listener.pieces) == 1
    assert one.complaints == []
    assert one.host.living == 0


@pytest.mark.parametrize("stream", [True, False])
def test_characters_cut_in_half_arrive_whole(cases: Path, stream: bool) -> None:
    """The case of a public report, from the engine to the caller."""
    case = json.loads((cases / "32_token_bytes.json").read_text(encoding="utf-8"))
    table = [bytes.fromhex(piece) for piece in case["tokens_hex"]]
    engine = FakeEngine(
        replace(LIMITS, vocabulary=len(table)), next_token=lambda tokens, prompt, _: len(tokens) - prompt
    )
    one = Host(engine, Scheduler(engine, Policy(max_sequences=1), lambda: 0), table)
    caller = Listener()
    sampling = Sampling(max_tokens=len(table), temperature=0, ignore_eos=True)
    one.submit(Request("x", (1,), sampling), caller, stream=stream)
    assert caller.wait().end is End.LENGTH
    one.close()
    assert caller.text == case["expected_text"]
    assert sum(piece.tokens for piece in caller.pieces) == len(table) == 9
    assert len(caller.pieces) > 1 if stream else len(caller.pieces) == 1
    assert not any("\ufffd" in piece.text for piece in caller.pieces[:-1])


def test_the_end_comes_with_the_last_token(bench: MakeBench) -> None:
    listener = bench().ask(tokens=4)
    listener.wait()
    assert [piece.text for piece in listener.pieces] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_ends_the_text_and_frees_the_seat(bench: MakeBench, stream: bool) -> None:
    one = bench()
    listener = one.ask(tokens=400, stream=stream, stop=("fgh", "xyz"))
    assert (listener.wait().end, listener.text) == (End.STOP, "abcde")
    assert listener.pieces[-1].tokens >= 1
    assert one.ask(3, 2).wait().end is End.LENGTH
    assert one.engine.sequences == 0


def test_a_stop_string_with_the_very_last_token(bench: MakeBench) -> None:
    listener = bench().ask(tokens=6, stop=("def",))
    assert (listener.wait().end, listener.text) == (End.STOP, "abc")


def test_who_leaves_is_dropped_within_two_steps(bench: MakeBench) -> None:
    one = bench()
    one.engine.gate = threading.Semaphore(0)
    leaver, stayer = one.ask(tokens=400), one.ask(5, 20)
    one.engine.gate.release(2)
    leaver.left.set()
    one.engine.gate.release(3)
    assert leaver.wait().end is End.CANCELLED
    one.engine.gate.release(40)
    assert stayer.wait().end is End.LENGTH
    assert stayer.text == expected(5, 20)
    assert len(leaver.text) <= 6


@pytest.mark.parametrize(
    ("steps_before", "prompt_tokens"),
    [(0, 3), (1, 200), (3, 3), (299, 3)],
    ids=["before its first step", "between two pieces of its prompt", "decoding", "before its last step"],
)
def test_who_leaves_at_any_stage_holds_nothing_two_steps_later(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, steps_before: int, prompt_tokens: int
) -> None:
    monkeypatch.setattr(host, "LOOK_EVERY_S", 0.01)
    one = bench()
    one.engine.gate = threading.Semaphore(steps_before)
    leaver = one.ask(tokens=300, prompt_tokens=prompt_tokens)
    until(lambda: one.engine.steps == steps_before)
    leaver.left.set()
    assert leaver.wait().end is End.CANCELLED
    one.engine.gate.release(2)
    until(lambda: not one.scheduler.has_work)
    assert one.engine.steps <= steps_before + 2
    assert one.engine.sequences == one.engine.used_blocks() == one.scheduler.metrics.value(m.BLOCKS_PROMISED) == 0
    assert one.scheduler.cancel("1") == [] and one.scheduler.metrics.value(m.ENDS, "cancelled") == 1


def test_a_line_that_breaks_costs_nobody_else_anything(bench: MakeBench) -> None:
    one = bench()
    broken = Listener()
    broken.deaf = True
    one.host.submit(Request("x", (1, 2), Sampling(max_tokens=400, temperature=0, ignore_eos=True)), broken, stream=True)
    other = one.ask(4, 30)
    assert (other.wait().end, other.text) == (End.LENGTH, expected(4, 30))
    assert one.complaints and "the line is dead" in one.complaints[0]


def test_a_full_room_refuses_at_once_while_a_step_runs(bench: MakeBench) -> None:
    one = bench(max_sequences=1, max_waiting=1)
    one.engine.gate = threading.Semaphore(0)
    running = one.ask(tokens=2)
    one.engine.gate.release(1)
    while not running.pieces:
        assert not running.done.wait(0.01)
    waiting, refused = one.ask(tokens=2), one.ask(tokens=2)
    last = refused.wait()
    assert (last.end, last.reason, refused.text) == (End.REFUSED, Reason.ROOM_FULL, "")
    one.engine.gate.release(40)
    assert [running.wait().end, waiting.wait().end] == [End.LENGTH] * 2


def test_a_canary_that_finds_no_room_is_answered_once_texts_go_on(bench: MakeBench) -> None:
    one = bench(max_sequences=1, max_waiting=0)
    one.engine.gate = threading.Semaphore(0)
    running = one.ask(tokens=40)
    one.engine.gate.release(1)
    while not running.pieces:
        assert not running.done.wait(0.01)
    canaries = [one.ask(tokens=1, canary=True) for _ in range(MOST_CANARIES)]
    assert one.ask(tokens=1, canary=True).wait().reason is Reason.ROOM_FULL, "no more of them wait than that"
    assert not any(canary.done.is_set() for canary in canaries)
    one.engine.gate.release(1)
    assert {canary.wait().end for canary in canaries} == {End.STOP}
    late = one.ask(tokens=1, canary=True)
    one.engine.fails = True
    one.engine.gate.release(5)
    assert (running.wait().end, late.wait().end) == (End.FAILED, End.FAILED)


def test_a_canary_is_answered_when_the_host_closes(bench: MakeBench) -> None:
    one = bench(max_sequences=1, max_waiting=0)
    one.engine.gate = threading.Semaphore(0)
    running = one.ask(tokens=40)
    canary = one.ask(tokens=1, canary=True)
    assert not canary.done.is_set()
    one.engine.gate.release(1)
    one.engine.gate = None
    one.host.close()
    assert running.wait().end in (End.FAILED, End.LENGTH)
    assert canary.wait().end in (End.FAILED, End.STOP)


def fail(one: Bench) -> list[Piece]:
    """Three callers, one of them with a seat, when a step fails; the ends that they were told."""
    one.engine.gate = threading.Semaphore(0)
    callers = [one.ask(tokens=30) for _ in range(3)]
    one.engine.fails = True
    one.engine.gate.release(5)
    return [caller.wait() for caller in callers]


def test_an_engine_that_fails_ends_every_request_and_is_replaced(bench: MakeBench) -> None:
    one = bench(max_sequences=1)
    ends = fail(one)
    assert {(last.end, last.reason) for last in ends} == {(End.FAILED, Reason.ENGINE_LOST)}
    assert all("try again" in last.message for last in ends)
    until(lambda: one.host.takes)
    one.engine.gate = None
    assert (after := one.ask(3, 9)).wait().end is End.LENGTH and after.text == expected(3, 9)
    assert one.replaced == one.scheduler.metrics.value(m.ENGINE_RESTARTS) == 1
    assert len(one.complaints) == 1 and "out of order" in one.complaints[0]


def test_who_comes_while_the_engine_is_replaced_is_refused_at_once(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench()
    wait = threading.Event()
    replace_it = one._replace
    monkeypatch.setattr(one.host, "_restart", lambda: (wait.wait(WAIT_S), replace_it()))
    fail(one)
    last = one.ask().wait()
    assert (last.end, last.reason) == (End.REFUSED, Reason.ENGINE_LOST)
    assert not one.host.takes
    wait.set()
    until(lambda: one.host.takes)


def test_an_engine_that_cannot_be_replaced_leaves_nobody_waiting(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "RESTARTS", 2)
    one = bench()
    one.mends = False
    fail(one)
    until(lambda: one.complaints[-1] == host._DOWN)
    last = one.ask().wait()
    assert (last.end, last.reason, one.replaced) == (End.REFUSED, Reason.ENGINE_DOWN, 2)
    assert not one.host.takes and one.scheduler.metrics.value(m.ENGINE_UP) == 0


def test_metrics_are_published_while_no_step_is_made(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LOOK_EVERY_S", 0.01)
    one = bench()
    published = threading.Event()
    monkeypatch.setattr(one.host, "_on_step", published.set)
    assert published.wait(WAIT_S) and one.engine.steps == 0


def test_who_leaves_during_a_step_is_told_before_it_ends(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LOOK_EVERY_S", 0.01)
    one = bench()
    one.engine.gate = threading.Semaphore(0)
    caller = one.ask(tokens=30)
    caller.left.set()
    assert caller.wait().end is End.CANCELLED and one.engine.steps == 0
    one.engine.gate.release(1000)


@pytest.mark.parametrize(
    ("again_us", "least", "most"), [(3600 * 10**6, 1, 1), (0, 25, 10**6)], ids=["rarely", "always"]
)
def test_nobody_is_asked_more_often_than_is_of_use(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, again_us: int, least: int, most: int
) -> None:
    monkeypatch.setattr(host, "ASK_AGAIN_US", again_us)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 7200 * 10**9)
    one = bench()
    asked: list[int] = []
    monkeypatch.setattr(Listener, "gone", lambda self: bool(asked.append(1)))
    assert one.ask(tokens=30).wait().end is End.LENGTH
    assert least <= len(asked) <= most


def test_closing_ends_what_runs(bench: MakeBench) -> None:
    one = bench()
    one.engine.gate = threading.Semaphore(0)
    caller = one.ask(tokens=400)
    one.engine.gate.release(1000)
    one.host.close("enough")
    last = caller.wait()
    assert last.end in (End.FAILED, End.LENGTH)
    assert last.end is End.LENGTH or last.message == "enough"
    one.host.close("once more")
    assert one.ask(tokens=4).wait().reason is Reason.DRAINING


def test_who_goes_while_the_end_is_on_its_way_still_gets_it(bench: MakeBench) -> None:
    """Triton keeps a request for ever whose last response is missing."""
    one = bench()

    class Late(Listener):
        def gone(self) -> bool:
            deadline = time.monotonic() + WAIT_S
            while one.scheduler.has_work and time.monotonic() < deadline:
                time.sleep(0.001)
            return True

    listener = Late()
    sampling = Sampling(max_tokens=3, temperature=0, ignore_eos=True)
    one.host.submit(Request("late", (0, 1, 2), sampling), listener, stream=True)
    assert (listener.wait().end, listener.text) == (End.LENGTH, expected(0, 3))
    assert one.host.living == 0
