"""The way of one request as parts that follow each other without a gap and add up to what its caller waited.

Pure: three clocks' readings in, parts out. The caller's clock and Triton's are the same monotonic one. The gateway's times are
durations from a moment of wall time; that moment is moved by as little as brings what it saw between what the others saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from brim.gateway.access_log import Passage
from brim.trace.events import COMPUTED
from brim.units import ns_to_us

Way: TypeAlias = tuple[tuple[str, str], ...]
"""Moments in their order, each with the name of the part that ends there; the first ends none."""
TENSOR_WAY: Way = (
    ("sent", ""),
    ("gateway_in", "to_gateway"),
    ("gateway_out", "gateway_in"),
    ("HTTP_RECV_START", "to_server"),
    ("HTTP_RECV_END", "receive"),
    ("QUEUE_START", "prepare"),
    ("COMPUTE_START", "queue"),
    ("COMPUTE_INPUT_END", "compute_input"),
    ("COMPUTE_OUTPUT_START", "compute"),
    (COMPUTED, "compute_output"),
    ("gateway_back", "from_server"),
    ("gateway_done", "gateway_out"),
    ("answered", "to_caller"),
)
"""Of a request that is computed in one batch."""
TEXT_WAY: Way = (
    ("sent", ""),
    ("gateway_in", "to_gateway"),
    ("gateway_out", "gateway_in"),
    ("first_step", "room"),
    ("first_token", "prefill"),
    ("last_step", "generate"),
    ("answered", "last_piece"),
)
"""Of a text, which is computed in many steps; its first pieces are with the caller before the last ones are made, and its stream
is open until the caller closes it, so what the gateway sees of its end is later than the answer."""
MEANING = {
    "to_gateway": "from the caller to the gateway",
    "gateway_in": "in the gateway: read, checked and let in",
    "to_server": "from the gateway to Triton",
    "receive": "Triton reads it from the connection",
    "prepare": "Triton takes it apart and puts it into the queue",
    "queue": "waits in Triton's queue for its batch and a free instance",
    "compute_input": "the batch is handed to the model",
    "compute": "the model computes the batch",
    "compute_output": "the answer is taken from the batch",
    "from_server": "Triton answers the gateway",
    "gateway_out": "the gateway hands the answer on",
    "to_caller": "from the gateway to the caller",
    "room": "to Triton, and in the waiting room until a step takes it",
    "prefill": "the prompt is computed, in one step or more",
    "generate": "the text goes on, a step for each of its next tokens",
    "last_piece": "the end of the text goes through Triton and the gateway to the caller",
    "refused": "in the gateway, which answered by itself",
    "given_up": "with Triton, until the gateway answered in its place",
    "unaccounted": "nobody has told what happened meanwhile",
}
"""Part -> what it is, for people."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the way, in microseconds from the sending."""

    name: str
    began_us: int
    took_us: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The parts in order; together they took ``took_us``.

    Attributes:
        parts: without a gap; those that took nothing stay.
        took_us: what the caller waited.
        gateway_moved_us: by how much the gateway's clock was moved; None when the gateway told nothing.
        contradicted_us: how far the gateway's times are outside of the others' even so; 0 when the clocks agree.
        stayed_us: how much longer the server worked on it after its caller had an answer; 0 when it did not.
    """

    parts: tuple[Part, ...]
    took_us: int
    gateway_moved_us: int | None
    contradicted_us: int
    stayed_us: int


def waterfall(
    sent_ns: int,
    answered_ns: int,
    passage: Passage | None,
    told: Mapping[str, int],
    wall_ahead_ns: int,
    way: Way = TENSOR_WAY,
) -> Waterfall:
    """Parts of the way.

    Args:
        sent_ns: by the caller, on the monotonic clock.
        answered_ns: likewise, when the last byte of the answer was there.
        passage: what the gateway noted; None when it noted nothing.
        told: moments that the server noted, on the monotonic clock; none when the request did not reach it.
        wall_ahead_ns: wall time minus monotonic time on this machine.
        way: which moments there are.
    """
    order = [name for name, _ in way]
    server = {name: at for name, at in told.items() if name in order}
    stayed_ns = max(0, max(server.values(), default=0) - answered_ns)
    before_the_end = {name: at for name, at in server.items() if at <= answered_ns}
    moments = {"sent": sent_ns, "answered": answered_ns, **before_the_end}
    moved_ns = contradicted_ns = 0
    if passage is not None:
        seen = {name: at for name, at in _in_gateway(passage, wall_ahead_ns).items() if name in order}
        moved_ns, contradicted_ns = _move(seen, moments, order)
        moments |= {name: at + moved_ns for name, at in seen.items()}
    return Waterfall(
        _parts(moments, passage, way),
        ns_to_us(answered_ns - sent_ns),
        None if passage is None else ns_to_us(moved_ns),
        ns_to_us(contradicted_ns),
        ns_to_us(stayed_ns),
    )


def _in_gateway(passage: Passage, wall_ahead_ns: int) -> dict[str, int]:
    began_ns = passage.began_ns - wall_ahead_ns
    after = {
        "gateway_in": 0,
        "gateway_out": passage.out_ns,
        "gateway_back": passage.back_ns,
        "gateway_done": passage.done_ns,
    }
    return {name: began_ns + time_ns for name, time_ns in after.items() if time_ns is not None}


def _move(seen: Mapping[str, int], others: Mapping[str, int], order: Sequence[str]) -> tuple[int, int]:
    """By how much the gateway's moments are moved, and how far they stay outside of the others'. The nearest wins."""
    least, most = -(2**62), 2**62
    for name, at in seen.items():
        before = [others[other] for other in order[: order.index(name)] if other in others]
        after = [others[other] for other in order[order.index(name) + 1 :] if other in others]
        least, most = max(least, max(before, default=least + at) - at), min(most, min(after, default=most + at) - at)
    if least > most:
        return (least + most) // 2, least - most
    return min(max(0, least), most), 0


def _parts(moments: Mapping[str, int], passage: Passage | None, way: Way) -> tuple[Part, ...]:
    """From each known moment to the next. Where one between them is not known, nobody can tell what it was."""
    began_ns = moments["sent"]
    took_us = ns_to_us(moments["answered"] - began_ns)
    found: list[Part] = []
    # Rounded as moments, so that the parts add up to the whole.
    at_us, last = 0, 0
    for index, (name, part) in enumerate(way[1:], start=1):
        if name not in moments:
            continue
        now_us = min(took_us, max(at_us, ns_to_us(moments[name] - began_ns)))
        if index - last > 1:
            part = "unaccounted"
            if name == "gateway_done" and passage is not None and passage.back_ns is None:
                part = "refused" if passage.out_ns is None else "given_up"
        found.append(Part(part, at_us, now_us - at_us))
        at_us, last = now_us, index
    return tuple(found)
