"""More prompts than the engine can serve, for a minute: who is served, who is refused and how soon, what the cache holds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from brim.bench.generation_place import Place, ask, first_token_us, per_s, prompt_of
from brim.engine import metrics as m
from brim.errors import CouldNotTell, ServerFailed
from brim.measure.histogram import nearest_rank
from brim.measure.text.stream import Heard, TextCallers, clock_us
from brim.units import US_PER_S

INTERACTIVE, BATCH = "interactive", "batch"
PROMPT_WORDS = (8, 48)
TEXT_TOKENS = (16, 64)
SAMPLE_S = 0.25
"""Between two looks at the metrics page."""
DRAIN_S = 1.0
"""In which all blocks must be free after the last text."""
AT_ONCE = ("room_full", "too_long_for_context", "too_long_for_cache", "draining")
"""Reasons that are told when the request comes."""
AFTER_WAITING = ("shed", "deadline")
"""Reasons that may be told to whoever has waited before."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of the load: its class, when it was due from the beginning, and what its caller heard."""

    kind: str
    due_us: int
    heard: Heard

    @property
    def reason(self) -> str:
        """Of a refusal; empty for anything else."""
        words = self.heard.error.partition(": ")[0]
        return words if words in (*AT_ONCE, *AFTER_WAITING) else ""

    @property
    def refused_us(self) -> int:
        """From sending to the refusal."""
        return self.heard.ended_us - self.heard.sent_us


@dataclass(slots=True)
class Overload:
    """What became of the load.

    Attributes:
        capacity_per_s: requests a second that a closed loop got through.
        offered_per_s: of the open loop.
        duration_us: its length.
        sent: every request.
        most_blocks: the most KV blocks that were held, and the most that were promised, at any look.
        total_blocks: that there are.
        left_blocks: held or promised ``DRAIN_S`` after the last text.
        preemptions: seats that batch requests lost.
    """

    capacity_per_s: float
    offered_per_s: float
    duration_us: int
    sent: list[Sent] = field(default_factory=list)
    most_blocks: tuple[float, float] = (0.0, 0.0)
    total_blocks: float = 0.0
    left_blocks: float = 0.0
    preemptions: float = 0.0

    def of(self, kind: str) -> list[Sent]:
        """The requests of a class."""
        return [one for one in self.sent if one.kind == kind]

    @property
    def cut(self) -> list[Sent]:
        """Texts that had begun, and did not come to their end."""
        return [one for one in self.sent if one.heard.pieces and not one.heard.complete]

    @property
    def unexplained(self) -> list[Sent]:
        """Requests that are neither complete nor refused with a reason."""
        return [one for one in self.sent if not one.heard.complete and not one.reason]

    def ends(self, kind: str) -> dict[str, int]:
        """How those of a class ended."""
        return dict(
            Counter("complete" if one.heard.complete else one.reason or one.heard.error for one in self.of(kind))
        )


def ttft_us(sent: Sequence[Sent], percentile: float) -> int | None:
    """Of complete texts, from when they were sent; None without one."""
    return _percentile([first_token_us(one.heard) for one in sent if one.heard.complete], percentile)


def refusal_us(sent: Sequence[Sent], percentile: float) -> int | None:
    """Of refusals that were told at once; None without one."""
    return _percentile([one.refused_us for one in sent if one.reason in AT_ONCE], percentile)


def _percentile(values: list[int], percentile: float) -> int | None:
    return sorted(values)[nearest_rank(percentile, len(values)) - 1] if values else None


def measure_capacity(place: Place, *, seconds: float, callers: int, seed: int) -> float:
    """Requests a second of a closed loop with all seats taken.

    Raises:
        CouldNotTell: a request failed.
    """
    return asyncio.run(_closed_loop(place, seconds, callers, np.random.default_rng(seed)))


async def _closed_loop(place: Place, seconds: float, callers: int, rng: np.random.Generator) -> float:
    done: list[Heard] = []
    async with TextCallers(place.endpoint, place.service.name) as lines:
        began_us = clock_us()
        until_us = began_us + round(seconds * US_PER_S)

        async def go_on() -> None:
            while clock_us() < until_us:
                done.append(await lines.ask(ask(*_drawn(rng))))

        await asyncio.gather(*(go_on() for _ in range(callers)))
        elapsed_us = clock_us() - began_us
    failed = next((one.error for one in done if not one.complete), None)
    if failed is not None:
        raise CouldNotTell(f"a request of the closed loop failed: {failed}", hint="see the server's log")
    return per_s(len(done), elapsed_us)


def measure_overload(
    place: Place, capacity_per_s: float, *, factor: float, interactive: float, seconds: float, seed: int
) -> Overload:
    """An open loop at so many times the capacity.

    Args:
        place: what is served.
        capacity_per_s: requests a second.
        factor: offered over capacity.
        interactive: interactive requests over capacity; the rest is of the batch class.
        seconds: length.
        seed: of arrivals, classes and lengths.
    """
    found = Overload(capacity_per_s, factor * capacity_per_s, round(seconds * US_PER_S))
    before = place.metrics()[m.PREEMPTIONS.name]
    with _Looks(place, found):
        asyncio.run(_open_loop(place, found, interactive / factor, np.random.default_rng(seed)))
    until_s = time.monotonic() + DRAIN_S
    while True:
        now = place.metrics()
        found.left_blocks = now[m.BLOCKS_USED.name] + now[m.BLOCKS_PROMISED.name]
        if not found.left_blocks or time.monotonic() > until_s:
            break
        time.sleep(DRAIN_S / 20)
    found.preemptions = now[m.PREEMPTIONS.name] - before
    return found


async def _open_loop(place: Place, found: Overload, interactive_share: float, rng: np.random.Generator) -> None:
    count = round(found.offered_per_s * found.duration_us / US_PER_S)
    due = np.sort(rng.uniform(0, found.duration_us, count)).astype(int).tolist()
    calls = [(at_us, INTERACTIVE if rng.random() < interactive_share else BATCH, *_drawn(rng)) for at_us in due]
    async with TextCallers(place.endpoint, place.service.name) as lines:
        began_us = clock_us()

        async def send(at_us: int, kind: str, prompt: str, tokens: int) -> None:
            found.sent.append(Sent(kind, at_us, await lines.ask(ask(prompt, tokens, kind))))

        async with asyncio.TaskGroup() as group:
            for call in calls:
                await asyncio.sleep(max(0, began_us + call[0] - clock_us()) / US_PER_S)
                group.create_task(send(*call))


def _drawn(rng: np.random.Generator) -> tuple[str, int]:
    return prompt_of(rng, int(rng.integers(*PROMPT_WORDS))), int(rng.integers(*TEXT_TOKENS, endpoint=True))


class _Looks:
    """Looks at the cache from time to time, in a thread of its own."""

    def __init__(self, place: Place, found: Overload) -> None:
        self._place, self._found = place, found
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            with suppress(ServerFailed):
                now = self._place.metrics()
                held, promised = self._found.most_blocks
                self._found.most_blocks = (
                    max(held, now[m.BLOCKS_USED.name]),
                    max(promised, now[m.BLOCKS_PROMISED.name]),
                )
                self._found.total_blocks = now[m.BLOCKS_TOTAL.name]
