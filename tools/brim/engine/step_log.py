"""What each step ran: the evidence that sequences join and leave at every step. Bounded; the oldest entries go first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step.

    Attributes:
        number: counted from 0 over the engine's life.
        began_us: on the scheduler's clock.
        took_us: wall time.
        prefill: request -> prompt tokens planned for it in this step, cached ones left out.
        decoded: requests with a token of their own in this step beyond their first.
        first: requests whose first token came out of this step.
        ended: requests that ended with this step.
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
    used_blocks: int
    promised_blocks: int

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens planned."""
        return sum(self.prefill.values())

    @property
    def decode_tokens(self) -> int:
        """Decoding sequences."""
        return len(self.decoded)

    @property
    def sequences(self) -> int:
        """Sequences that took part."""
        return len(self.prefill) + len(self.decoded)

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
            "used_blocks": self.used_blocks,
            "promised_blocks": self.promised_blocks,
        }


class StepLog:
    """The newest steps, in order."""

    def __init__(self, most_entries: int = DEFAULT_ENTRIES) -> None:
        """Empty."""
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

    def add(self, entry: LoggedStep) -> None:
        """One more."""
        self._entries.append(entry)
        self._steps += 1
