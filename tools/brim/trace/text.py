"""The way of a text: which steps computed it, and who sat in each of them, from the engine's step log.

A text is computed in many executions, and its batch is another one in each: who shared it is told step by step. The steps' times
are of the monotonic clock (``brim.engine.adapter``), as those of the callers are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.engine.step_file import MOST_BYTES, step_file
from brim.gateway.access_log import ID_HEADER, AccessLog, Passage
from brim.gateway.replies import HOST_ERRORS
from brim.measure.text.stream import Ask, Heard, TextCallers
from brim.server.endpoint import Endpoint
from brim.trace.batches import Batch
from brim.trace.callers import Call
from brim.trace.run import Run, Told, gathered, noted, put_together, wall_ahead_ns
from brim.trace.waterfall import TEXT_WAY

NS_PER_US = 1_000


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, by callers' own ids; those of callers who gave none are empty.

    Attributes:
        number: as the engine counts them.
        began_us: on the monotonic clock.
        took_us: wall time.
        members: whose prompts or texts it computed.
        first: who got a first token.
        ended: whose texts ended with it.
    """

    number: int
    began_us: int
    took_us: int
    members: tuple[str, ...]
    first: tuple[str, ...]
    ended: tuple[str, ...]


def read_steps(path: Path) -> list[Step]:
    """The steps of a log, as far as they are whole lines."""
    try:
        with path.open("rb") as file:
            lines = file.read(MOST_BYTES).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [_step(json.loads(line)) for line in lines if line.endswith(b"\n")]


def _step(said: Mapping[str, Any]) -> Step:
    """The host puts a number of its own before each id."""

    def own(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name.partition(" ")[2] for name in names)

    # Who has a prompt in a step may get its first token from it, and then stands in both.
    members = own(list(dict.fromkeys((*said["prefill"], *said["decoded"], *said["first"]))))
    return Step(
        int(said["number"]),
        int(said["began_us"]),
        int(said["took_us"]),
        members,
        own(said["first"]),
        own(said["ended"]),
    )


def told_by(steps: Sequence[Step], prefix: str) -> dict[str, Told]:
    """When each request whose id begins so had its first step, its first token and its last step."""
    found: dict[str, dict[str, int]] = {}
    for step in steps:
        began_ns, ended_ns = step.began_us * NS_PER_US, (step.began_us + step.took_us) * NS_PER_US
        for one in step.members:
            if one.startswith(prefix):
                moments = found.setdefault(one, {"first_step": began_ns})
                moments["last_step"] = ended_ns
                if one in step.first:
                    moments.setdefault("first_token", ended_ns)
    return {one: Told(moments, _in_order(moments)) for one, moments in found.items()}


def _in_order(moments: Mapping[str, int]) -> bool:
    times = [moments[name] for name, _ in TEXT_WAY if name in moments]
    return times == sorted(times)


def of_steps(
    model: str,
    prefix: str,
    calls: Sequence[Call],
    passages: Mapping[str, Passage],
    steps: Sequence[Step],
    ahead_ns: int,
) -> Run:
    """A run of texts.

    Raises:
        CouldNotTell: texts were made, and the log has none of them.
    """
    told = told_by(steps, prefix)
    batches = [
        Batch(
            step.number,
            step.began_us * NS_PER_US,
            (step.began_us + step.took_us) * NS_PER_US,
            step.members,
        )
        for step in steps
        if any(member.startswith(prefix) for member in step.members)
    ]
    traced = put_together(model, calls, passages, told, batches, ahead_ns, TEXT_WAY)
    return Run(model, prefix, traced, tuple(batches), {}, None, unit="step")


def trace_texts(
    address: str,
    model: str,
    samples: Sequence[Ask],
    *,
    requests: int,
    concurrency: int,
    timeout_s: float,
    prefix: str,
    access: AccessLog | None,
    steps_in: Path,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Send prompts and gather what is known of each; arguments and errors as for ``brim.trace.run.trace``.

    Args:
        samples: prompts with their options; taken in turn.
        steps_in: folder of the server's step logs (``BRIM_STEP_LOG``).
    """
    ids = [f"{prefix}{number}" for number in range(requests)]
    asks = [replace(sample, request_id=one) for one, sample in zip(ids, itertools.cycle(samples), strict=False)]
    ahead_ns = wall_ahead_ns()
    on_progress(f"sending {requests} prompts, {concurrency} at once, to {address}")
    calls = asyncio.run(_call_all(address, model, asks, concurrency, timeout_s))
    expected = {call.request_id for call in calls if call.outcome == "right"}
    log = step_file(steps_in, model)

    def all_ended(steps: Sequence[Step]) -> bool:
        return expected <= {one for step in steps for one in step.ended}

    steps = gathered(lambda: read_steps(log), all_ended)
    return of_steps(model, prefix, calls, noted(access, ids), steps, ahead_ns)


async def _call_all(address: str, model: str, asks: Sequence[Ask], concurrency: int, timeout_s: float) -> list[Call]:
    seats = asyncio.Semaphore(concurrency)
    async with TextCallers(Endpoint(http=address, grpc=address), model) as callers:

        async def one(ask: Ask) -> Call:
            async with seats:
                heard = await callers.ask(ask, limit_s=timeout_s, headers={ID_HEADER: ask.request_id})
            return _call(ask.request_id, heard)

        return list(await asyncio.gather(*map(one, asks)))


def _call(request_id: str, heard: Heard) -> Call:
    """As its caller saw it, with the status that an HTTP caller would have had."""
    word = heard.error.partition(":")[0]
    status = 200 if heard.complete else HOST_ERRORS.get(word)
    reason = word if word in HOST_ERRORS else ""
    return Call(request_id, heard.sent_us * NS_PER_US, heard.ended_us * NS_PER_US, status, reason, heard.error)
