"""One run: the right answers, the capacity, the steady load with its samples, and what is left when all have gone."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.errors import InputError, ServerFailed
from brim.gateway.envoy import Gateway
from brim.measure.accounting import Account, Outcome
from brim.measure.callers import Row
from brim.measure.json_lines import write_whole
from brim.measure.plan import Protocol
from brim.server.embedded import EmbeddedServer
from brim.server.logs import bound_log
from brim.server.supervise import Supervisor
from brim.soak.answers import right_answers
from brim.soak.line import WRONG, Line, line_to
from brim.soak.load import Steady, best_rate, steady_load
from brim.soak.resources import Reader
from brim.soak.sample import FILE_NAME, Resources, Sample
from brim.soak.verdict import Around, Verdict, judge
from brim.units import US_PER_S

RESULT_FILE = "soak.json"
CALLERS = (50, 100, 200)
"""Of the closed loops that look for the capacity: a half, one, and two full batches."""
MOST_SAMPLES = 86_400
"""Of a run, and lines of its file: a day of one a second. A longer run has longer samples."""
LONGEST_S = 30 * 86_400
MOST_PER_S = 100_000
LONGEST_LEAD_IN_US = 10 * US_PER_S
LEAD_IN_PART = 5
"""Load before the first sample: a fifth of the run, 10 s at most, in which connections are opened and what piles up meanwhile is
worked off."""
SETTLE_S = 5.0
"""What the gateway gets to notice that its callers have left."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What to do.

    Attributes:
        duration_s: of the steady load.
        rate_per_s: requests a second; when absent ``load`` of the capacity, which is measured first.
        load: part of the capacity.
        protocol: HTTP or gRPC.
        least_every_us: length of a sample, unless so many of them would be too many.
    """

    duration_s: float
    rate_per_s: float | None = None
    load: float = 0.9
    protocol: Protocol = Protocol.HTTP
    least_every_us: int = US_PER_S

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            InputError: with every fault at once.
        """
        faults = []
        if not 1 <= self.duration_s <= LONGEST_S:
            faults.append(f"duration {self.duration_s:g} s: must be 1 to {LONGEST_S} (30 days)")
        if self.rate_per_s is not None and not 0 < self.rate_per_s <= MOST_PER_S:
            faults.append(f"rate {self.rate_per_s:g} a second: must be above 0 and at most {MOST_PER_S}")
        if not 0 < self.load <= 2:
            faults.append(f"load {self.load:g}: must be above 0 and at most 2, as a part of the capacity")
        if faults:
            raise InputError("; ".join(faults), hint="`brim soak NAME --duration 600` is usual")

    def steady(self, rate_per_s: float) -> Steady:
        """The load, once its rate is known."""
        duration_us = round(self.duration_s * US_PER_S)
        return Steady(rate_per_s, duration_us, self.every_us, min(LONGEST_LEAD_IN_US, duration_us // LEAD_IN_PART))

    @property
    def every_us(self) -> int:
        """Length of a sample: as short as may be, or the whole seconds that keep a long run within ``MOST_SAMPLES``."""
        if self.duration_s * US_PER_S <= MOST_SAMPLES * self.least_every_us:
            return self.least_every_us
        return math.ceil(self.duration_s / MOST_SAMPLES) * US_PER_S


@dataclass(frozen=True, slots=True)
class Stack:
    """What is asked: a supervised server and the gateway in front of it, all of this process's own."""

    server: EmbeddedServer
    supervisor: Supervisor
    gateway: Gateway

    def troubles(self) -> list[str]:
        """What ended or was healed since the start; each is the end of a run."""
        ended = [self.server.how_it_ended(), self.gateway.how_it_ended()]
        failed = self.supervisor.failed
        return [
            *(f"the supervisor has healed: {event}" for event in self.supervisor.events),
            *(["the supervisor is healing the server"] if self.supervisor.healing else []),
            *([f"the supervisor gave up: {failed.message}"] if failed is not None else []),
            *(text for text in ended if text is not None),
        ]

    def bound_logs(self) -> None:
        """Keep the logs of a long run from filling the disk."""
        for one in (self.server, self.gateway):
            bound_log(one.log_file)


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a run gave.

    Attributes:
        plan: what was asked.
        model: of whom.
        capacity_per_s: best closed-loop rate; None when the rate was given.
        rate_per_s: of the steady load.
        samples: in order.
        account: what became of every request.
        verdict: what it says.
        interrupted: whether it was told to stop before its time.
        about: what else is to be known of it, for the file.
    """

    plan: SoakPlan
    model: str
    capacity_per_s: float | None
    rate_per_s: float
    samples: tuple[Sample, ...]
    account: Account
    verdict: Verdict
    interrupted: bool
    about: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The verdict's figures first; times in microseconds, rates a second."""
        account = self.account.as_json()
        kept = (
            *(outcome.value for outcome in Outcome),
            "offered",
            "p50_us",
            "p99_us",
            "p99.9_us",
            "max_us",
            "messages",
        )
        return {
            **self.verdict.as_json(),
            "model": self.model,
            "protocol": self.plan.protocol.value,
            "rate": self.rate_per_s,
            "capacity": self.capacity_per_s,
            "load": None if self.capacity_per_s is None else self.plan.load,
            "duration_us": round(self.plan.duration_s * US_PER_S),
            "ran_us": self.samples[-1].at_us if self.samples else 0,
            "interrupted": self.interrupted,
            "samples": len(self.samples),
            **{name: account[name] for name in kept},
            **self.about,
        }


def run_soak(
    stack: Stack,
    model: str,
    rows: Sequence[Row],
    plan: SoakPlan,
    *,
    folder: Path,
    truth: Sequence[Row] | None = None,
    most_callers: int | None = None,
    stopping: AbstractContextManager[Callable[[], bool]] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    on_sample: Callable[[Sample], None] = lambda _: None,
    about: Mapping[str, Any] | None = None,
) -> SoakResult:
    """Carry out the plan. The samples are in the folder's ``samples.jsonl`` as they come, the result in ``soak.json``.

    Args:
        stack: what is asked, and looked at.
        model: whom.
        rows: what requests carry in turn, with the batch dimension 1 in front.
        plan: how much, for how long.
        folder: the run folder; it exists.
        truth: the right answer to each row, where it is known without the server.
        most_callers: bound on requests in flight, above which callers are refused; None for none.
        stopping: entered when the steady load begins; what it gives is asked whether to end early, with a verdict on what
            was seen.
        on_progress: told what is happening.
        on_sample: given each sample as it ends.
        about: kept in ``soak.json`` as it is: the command, and the conditions.

    Raises:
        AnswerIsNo: a row that is alone is not answered rightly.
        ServerFailed: nothing was answered while the capacity was looked for, or a program ended before the load began.
    """
    endpoint = stack.gateway.endpoint
    on_progress(f"asking {model} {len(rows)} rows alone: the right answers")
    right = right_answers(endpoint, model, rows, truth)
    capacity = None
    rate = plan.rate_per_s
    if rate is None:
        callers = sorted({min(count, most_callers or count) for count in CALLERS})
        capacity = asyncio.run(
            _capacity(lambda: line_to(endpoint, plan.protocol, model, rows, right), callers, on_progress)
        )
        rate = plan.load * capacity
    if not rate:
        raise ServerFailed(f"{model}: no answer while its capacity was measured", hint="its log says why")
    reader = Reader(stack.server, stack.gateway, model)
    before = _settled(reader)
    on_progress(f"{rate:.1f} requests a second for {plan.duration_s:g} s over {plan.protocol.value}")
    samples: list[Sample] = []
    troubles: list[str] = []
    with (
        (folder / FILE_NAME).open("w", encoding="utf-8") as lines,
        stopping or nullcontext(lambda: False) as is_told_to_stop,
    ):

        def keep(sample: Sample) -> None:
            samples.append(sample)
            lines.write(json.dumps(sample.as_json()) + "\n")
            lines.flush()
            stack.bound_logs()
            troubles[:] = stack.troubles()
            on_sample(sample)

        account = asyncio.run(
            _load(
                lambda: line_to(endpoint, plan.protocol, model, rows, right),
                plan.steady(rate),
                reader,
                keep,
                lambda: is_told_to_stop() or bool(troubles),
            )
        )
        interrupted = is_told_to_stop()
    troubles[:] = stack.troubles()
    verdict = judge(
        samples,
        rate_per_s=rate,
        dropped=account.counts[Outcome.NOT_SENT],
        around=None if troubles else Around(before, _settled(reader)),
        troubles=[*troubles, *_failed(account)],
    )
    result = SoakResult(plan, model, capacity, rate, tuple(samples), account, verdict, interrupted, about or {})
    write_whole(folder / RESULT_FILE, json.dumps(result.as_json()) + "\n")
    return result


async def _load(
    new_line: Callable[[], Line],
    steady: Steady,
    reader: Reader,
    on_sample: Callable[[Sample], None],
    is_told_to_stop: Callable[[], bool],
) -> Account:
    line = new_line()
    try:
        return await steady_load(line, steady, read=reader.read, on_sample=on_sample, is_told_to_stop=is_told_to_stop)
    finally:
        await line.close()


async def _capacity(new_line: Callable[[], Line], callers: Sequence[int], on_progress: Callable[[str], None]) -> float:
    line = new_line()
    try:
        return await best_rate(
            line, callers, lambda count, rate: on_progress(f"{count} callers in a closed loop: {rate:.1f} answers/s")
        )
    finally:
        await line.close()


def _settled(reader: Reader) -> Resources:
    """What is held once the gateway has noticed that no caller is connected."""
    deadline = time.monotonic() + SETTLE_S
    held = reader.read()
    while held.connections and time.monotonic() < deadline:
        time.sleep(POLL_S)
        held = reader.read()
    return held


def _failed(account: Account) -> list[str]:
    wrong = account.messages.get(WRONG.message, 0)
    failed = account.counts[Outcome.FAILED]
    if not failed:
        return []
    text = f"{failed} of {account.offered} requests failed"
    return [f"{text}, {wrong} of them were answered wrongly" if wrong else text]
