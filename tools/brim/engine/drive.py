"""Run traffic through the scheduler and a real engine in one closed loop: no server, no client, no second thread.

Calls are sent by schedule from the very thread that steps, so that nothing disturbs the engine on a machine whose
processors it shares, and what is measured is what the simulator predicts. Prompts are random tokens, so that no prefix is
ever found in the cache but what a call says it shares; texts are as long as the call says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from brim.engine.admission import Policy
from brim.engine.engine import Engine, EngineLimits, Sampling
from brim.engine.lifecycle import Request
from brim.engine.replay import Clock, Replay
from brim.engine.simulated import Simulated
from brim.engine.traffic import Call
from brim.errors import CouldNotTell, InputError
from brim.units import US_PER_S

LONGEST_RUN_S = 600.0
FIRST_PLAIN_TOKEN = 1_000
"""The special tokens of usual vocabularies are among the first."""
_PROCESS_CLOCK = 2
"""Linux: of the clocks of a process, the one that the scheduler keeps (``CPUCLOCK_SCHED`` of its ``posix-timers.h``)."""


class WallClock:
    """The machine's time from now on, as long as the run may last."""

    def __init__(self, limit_s: float = LONGEST_RUN_S) -> None:
        """At 0."""
        self._began_ns = time.monotonic_ns()
        self._limit_s = limit_s

    def now_us(self) -> int:
        """Microseconds since the beginning."""
        return (time.monotonic_ns() - self._began_ns) // 1_000

    def wait_until(self, at_us: int) -> None:
        """Sleep until then."""
        time.sleep(max(0, at_us - self.now_us()) / US_PER_S)

    def stepped(self, took_us: int) -> None:
        """See whether the run may go on.

        Raises:
            CouldNotTell: it took too long.
        """
        if self.now_us() > self._limit_s * US_PER_S:
            raise CouldNotTell(
                f"a run on the engine was not over after {self._limit_s:g} s",
                hint="a machine with less else to do, a lower rate or fewer requests would do",
            )


class ProcessorClock:
    """The processor time that a process has used since now, and what was spent waiting for calls.

    On a machine that others use at the same time it shows what an engine of one thread would take if it were alone, but for
    the caches and the memory that they share.
    """

    def __init__(self, pid: int) -> None:
        """At 0.

        Args:
            pid: of the engine.
        """
        self._clock = (~pid << 3) | _PROCESS_CLOCK
        self._waited_us = 0
        self._began_ns = time.clock_gettime_ns(self._clock)

    def now_us(self) -> int:
        """Microseconds since the beginning."""
        return (time.clock_gettime_ns(self._clock) - self._began_ns) // 1_000 + self._waited_us

    def wait_until(self, at_us: int) -> None:
        """Be there."""
        self._waited_us += max(0, at_us - self.now_us())

    def stepped(self, took_us: int) -> None:
        """The time has passed by itself."""


def drive(
    engine: Engine,
    policy: Policy,
    calls: Sequence[Call],
    *,
    sent_us: Sequence[int] | None = None,
    callers: int | None = None,
    seed: int = 0,
    clock: Clock | None = None,
) -> Simulated:
    """Run calls through an engine: at their times, or by so many callers who each wait for their answer.

    Args:
        engine: without sequences; it has none afterwards, unless the run fails.
        policy: the scheduler's.
        calls: what is sent; each asks for its whole text, whatever tokens come.
        sent_us: when, ascending.
        callers: instead of it.
        seed: of the prompts' tokens.
        clock: at 0; the machine's when absent.

    Returns:
        What became of it; ``step_us`` is what a step takes the callers: the scheduler's part and the way to the engine are in
        it, so that steps that are fitted from it make predictions of what callers see.

    Raises:
        InputError: both or neither of times and callers are given, or the policy does not fit the engine.
        CouldNotTell: it took longer than the clock allows.
        ServerFailed: the engine is lost.
    """
    if (sent_us is None) == (callers is None):
        raise InputError("times and callers exclude each other, and one of them is needed", hint="give one of them")
    rng = np.random.default_rng(seed)
    limits = engine.limits
    shared = plain_tokens(limits, max((call.shared_tokens for call in calls), default=0), rng)
    prompts = [
        shared[: call.shared_tokens] + plain_tokens(limits, call.prompt_tokens - call.shared_tokens, rng)
        for call in calls
    ]

    def request(index: int) -> Request:
        sampling = Sampling(calls[index].output_tokens, temperature=0, ignore_eos=True)
        return Request(str(index), prompts[index], sampling, calls[index].kind)

    run = Replay(engine, policy, clock or WallClock(), request)
    return run.open_loop(sent_us) if sent_us is not None else run.closed_loop(len(calls), callers or 0)


def plain_tokens(limits: EngineLimits, number: int, rng: np.random.Generator) -> tuple[int, ...]:
    """So many random tokens of the engine's vocabulary, none of those that usually mean something special."""
    least = min(FIRST_PLAIN_TOKEN, limits.vocabulary - 1)
    drawn: list[int] = rng.integers(least, limits.vocabulary, number).tolist()
    return tuple(drawn)
