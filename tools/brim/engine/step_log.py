"""What each step ran: the evidence that sequences join and leave at every step. Bounded; the oldest entries go first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from brim.engine.step_time import StepShape

DEFAULT_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step.

    Attributes:
        number: counted from 0 over the engine's life.
        began_us: on the scheduler's clock.
        took_us: wall time.
        prefill: request -> prompt tokens planned for it in this step, cached ones left out.
        decoded: requests that got tokens from their texts' going on.
        first: requests that got their first token since they were given to the engine.
        ended: requests that ended with this step.
        shape: what the step was planned to run, for ``brim.engine.step_time``.
        used_blocks: KV blocks that the engine held after it.
        promised_blocks: KV blocks promised to requests after it.
    """

    number: int
    began_us: int
    took_us: int
    prefill: Mapping[str, int]
    decoded: tuple[str, ...]
    first: tuple[str, ...]
    ended: tuple[str, ...]
    shape: StepShape
    used_blocks: int
    promised_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens that the step ran, prefilled and decoded."""
        return self.shape.prefill_tokens + self.shape.decoding

    def as_json(self) -> dict[str, Any]:
        """As a line of a log."""
        return {
            "number": self.number,
            "began_us": self.began_us,
            "took_us": self.took_us,
            "prefill": dict(self.prefill),
            "decoded": list(self.decoded),
            "first": list(self.first),
            "ended": list(self.ended),
            **asdict(self.shape),
            "used_blocks": self.used_blocks,
            "promised_blocks": self.promised_blocks,
        }


class StepLog:
    """The newest steps, in order."""

    def __init__(
        self, most_entries: int = DEFAULT_ENTRIES, *, also: Callable[[LoggedStep], None] | None = None
    ) -> None:
        """Empty.

        Args:
            most_entries: that are kept.
            also: given every entry, too.
        """
        self._also = also
        self._entries: deque[LoggedStep] = deque(maxlen=most_entries)
        self._steps = 0

    def __iter__(self) -> Iterator[LoggedStep]:
        """Oldest first."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Entries kept."""
        return len(self._entries)

    @property
    def steps(self) -> int:
        """Steps so far, those forgotten among them: the number of the next one."""
        return self._steps

    def timed_shapes(self) -> list[tuple[StepShape, float]]:
        """What ``brim.engine.step_time.fit`` takes: every step that ran something."""
        return [(entry.shape, float(entry.took_us)) for entry in self._entries if entry.tokens and entry.took_us > 0]

    def add(self, entry: LoggedStep) -> None:
        """One more."""
        self._entries.append(entry)
        self._steps += 1
        if self._also is not None:
            self._also(entry)
