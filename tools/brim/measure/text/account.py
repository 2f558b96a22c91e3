"""What became of every request of one run, how long its tokens took, and how many there were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from brim.engine.traffic import Call
from brim.measure.accounting import Account, Outcome, Reply
from brim.measure.histogram import Latencies
from brim.measure.text.outcome import reason_of
from brim.measure.text.stream import Heard
from brim.measure.text.token_times import TokenObjective, token_times

THIRDS = 3


@dataclass(frozen=True, slots=True)
class Window:
    """The time that load was offered in, on ``brim.measure.text.stream.clock_us``."""

    begin_us: int
    duration_us: int

    @property
    def end_us(self) -> int:
        """When it is over."""
        return self.begin_us + self.duration_us

    def third_of(self, due_us: int) -> int:
        """0, 1 or 2."""
        return min(max(0, due_us - self.begin_us) * THIRDS // self.duration_us, THIRDS - 1)


class TextAccount:
    """Requests of a run, or of one class in it.

    Attributes:
        window: of the run.
        outcomes: of every request; its ``since_due`` is the end-to-end latency.
        refused_by: the scheduler's reason -> refusals.
        ttft: from due, of everything that got a token.
        ttft_since_sent: the same from sending: what the connection and the server took of it.
        itl: gaps, of everything.
        tpot: of whole texts.
        normalised: of whole texts, by third of the window in which they were due.
        in_slo: whole texts within the objective; 0 without one.
        ended_in_window: whole texts that ended before the window did.
        in_slo_in_window: of those, within the objective.
        asked_tokens: of the prompts of whole texts, as wanted.
        input_tokens: of the same, as the server counted.
        output_tokens: heard, of whatever became of the text.
        output_tokens_in_window: of those, heard before the window ended.
        input_tokens_in_window: of prompts whose first token was heard before then.
    """

    def __init__(self, window: Window, objective: TokenObjective | None, *, late_us: int) -> None:
        """Empty."""
        self.window, self.objective = window, objective
        self.outcomes = Account(late_us=late_us)
        self.refused_by: Counter[str] = Counter()
        self.ttft, self.ttft_since_sent, self.itl, self.tpot = Latencies(), Latencies(), Latencies(), Latencies()
        self.normalised = tuple(Latencies() for _ in range(THIRDS))
        self.in_slo = self.ended_in_window = self.in_slo_in_window = 0
        self.asked_tokens = self.input_tokens = self.input_tokens_in_window = 0
        self.output_tokens = self.output_tokens_in_window = 0

    def add(self, call: Call, due_us: int, heard: Heard, reply: Reply) -> None:
        """Account for a request that was sent."""
        self.outcomes.add(due_us, heard.sent_us, heard.ended_us, reply)
        times = token_times(heard, due_us)
        if times.ttft_us is not None:
            self.ttft.record(max(0, times.ttft_us))
            self.ttft_since_sent.record(max(0, times.ttft_us - (heard.sent_us - due_us)))
        for gap_us in times.itl_us:
            self.itl.record(gap_us)
        self._count_tokens(heard)
        reason = reason_of(heard)
        if reason is not None:
            self.refused_by[reason.value] += 1
        if reply.outcome is not Outcome.ANSWERED:
            return
        self.asked_tokens += call.prompt_tokens
        self.input_tokens += heard.input_tokens
        if times.tpot_us is not None:
            self.tpot.record(times.tpot_us)
        if times.normalised_us is not None:
            self.normalised[self.window.third_of(due_us)].record(times.normalised_us)
        met = self.objective is not None and self.objective.met_by(times)
        in_window = heard.ended_us <= self.window.end_us
        self.in_slo += met
        self.ended_in_window += in_window
        self.in_slo_in_window += met and in_window

    def add_unsent(self) -> None:
        """Account for a request that the generator had no room for."""
        self.outcomes.add_unsent()

    def is_stable(self, percent: float) -> bool:
        """Whether the median normalised latencies of the three thirds are within so many percent of their own mean.

        Where a queue grows each third waits longer than the one before. Normalised, since texts differ in length.
        """
        known = [us for third in self.normalised if (us := third.percentile_us(50)) is not None]
        if len(known) < THIRDS:
            return False
        mean_us = sum(known) / THIRDS
        return all(abs(us - mean_us) <= percent / 100 * mean_us for us in known)

    def _count_tokens(self, heard: Heard) -> None:
        end_us = self.window.end_us
        self.output_tokens += heard.output_tokens
        self.output_tokens_in_window += sum(tokens for at_us, tokens, _ in heard.pieces if at_us <= end_us)
        if heard.first_us is not None and heard.first_us <= end_us:
            self.input_tokens_in_window += heard.input_tokens
