"""Where the scheduler's doings become numbers: one method a happening, so that each number is counted in one place."""

from __future__ import annotations

from brim.engine import metrics as m
from brim.engine.engine import EngineLimits
from brim.engine.entry import Entry
from brim.engine.lifecycle import End, Reason
from brim.engine.metrics import Metrics
from brim.engine.step_log import LoggedStep, StepLog


class Counting:
    """Counts into metrics and a step log. Times are those of the scheduler's clock."""

    def __init__(self, metrics: Metrics, step_log: StepLog, limits: EngineLimits) -> None:
        """Count nothing yet."""
        self._metrics, self._step_log, self._limits = metrics, step_log, limits

    def seated(self, entry: Entry, now_us: int) -> None:
        """A request got a seat."""
        if not entry.began:
            self._metrics.observe_us(m.QUEUE_WAIT, now_us - entry.arrived_us)
        self._metrics.add(m.PREFIX_ASKED, len(entry.prompt))
        self._metrics.add(m.PREFIX_HIT, entry.cached_tokens)

    def preempted(self) -> None:
        """A request lost its seat."""
        self._metrics.add(m.PREEMPTIONS)

    def delivered(self, entry: Entry, tokens: int, now_us: int) -> None:
        """Tokens are about to be delivered; ``entry`` is as after those before them."""
        if entry.first_us is None:
            self._metrics.observe_us(m.TTFT, now_us - entry.arrived_us)
            self._metrics.add(m.TOKENS_IN, len(entry.request.tokens))
        else:
            self._metrics.observe_us(m.ITL, now_us - entry.last_us)
        self._metrics.add(m.TOKENS_OUT, tokens)

    def completed(self, entry: Entry, now_us: int) -> None:
        """A text is complete."""
        self._metrics.observe_us(m.E2E, now_us - entry.arrived_us)
        if entry.first_us is not None and len(entry.text) > 1:
            self._metrics.observe_us(m.TPOT, (entry.last_us - entry.first_us) / (len(entry.text) - 1))

    def ended(self, end: End, reason: Reason | None = None) -> None:
        """A request ended, refused ones with their reason."""
        self._metrics.add(m.ENDS, label=end.value)
        if reason is not None:
            self._metrics.add(m.REFUSALS, label=reason.value)

    def stepped(self, step: LoggedStep) -> None:
        """The engine made a step."""
        self._step_log.add(step)
        self._metrics.add(m.STEPS)
        self._metrics.observe_us(m.STEP_TIME, step.took_us)
        self._metrics.observe(m.STEP_TOKENS, step.tokens)

    def engine(self, *, up: bool) -> None:
        """Whether there is an engine to step."""
        self._metrics.set({m.ENGINE_UP: float(up)})

    def engine_restarted(self) -> None:
        """A lost engine has been replaced."""
        self._metrics.add(m.ENGINE_RESTARTS)

    def gauges(self, running: int, waiting: int, used_blocks: int, promised_blocks: int) -> None:
        """How things stand now."""
        total = self._limits.total_blocks
        self._metrics.set(
            {
                m.RUNNING: running,
                m.WAITING: waiting,
                m.BLOCKS_USED: used_blocks,
                m.BLOCKS_FREE: total - used_blocks,
                m.BLOCKS_TOTAL: total,
                m.BLOCK_TOKENS: self._limits.block_tokens,
                m.BLOCKS_PROMISED: promised_blocks,
                m.KV_USAGE: used_blocks / total,
            }
        )
