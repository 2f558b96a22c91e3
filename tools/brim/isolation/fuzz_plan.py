"""How much is fuzzed, in which order, and how a part of it is named so that it can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from brim.errors import InputError
from brim.measure.plan import Protocol

WINDOW = 50
"""Fuzzed requests between two canaries: a crash is pinned to so many."""


@dataclass(frozen=True, slots=True)
class Window:
    """Numbers ``first`` to ``last`` of a protocol's sequence, both included."""

    protocol: Protocol
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``http:150-199`` or ``grpc:7``.

        Raises:
            InputError: it is written otherwise.
        """
        protocol, _, numbers = text.partition(":")
        first, _, last = numbers.partition("-")
        last = last or first
        known = protocol in tuple(Protocol) and first.isdecimal() and last.isdecimal()
        if not known or int(first) > int(last):
            raise InputError(
                f"{text!r} is no window of fuzzed requests", hint="expected http:FIRST-LAST or grpc:NUMBER"
            )
        return cls(Protocol(protocol), int(first), int(last))

    def __str__(self) -> str:
        """As ``parse`` reads it."""
        return f"{self.protocol.value}:{self.first}" + (f"-{self.last}" if self.last > self.first else "")


@dataclass(frozen=True, slots=True)
class FuzzPlan:
    """What to send.

    Attributes:
        bodies: fuzzed requests of each protocol.
        seed: each request is a function of it, its protocol and its number.
        answer_timeout_s: longest wait for the answer to a fuzzed request, or for the end of its connection.
        stall_s: longest wait of a steady caller; or ``STALL_TIMES`` (``brim.isolation.fuzz``) its longest beside right
            requests, where that is more.
        tolerance: of a floating-point answer (``brim.isolation.judge.deviation``).
        killers: also send what is known to end or hurt a bare tritonserver 24.10 (``brim.isolation.fuzz_avoid``).
        only: just these, one at a time, with a canary after each.
        restart_s: how long a server that is gone may take to be back; 0 when nobody restarts it.
    """

    bodies: int = 5_000
    seed: int = 0
    answer_timeout_s: float = 30.0
    stall_s: float = 10.0
    tolerance: float = 1e-4
    killers: bool = False
    only: Window | None = None
    restart_s: float = 0.0

    def windows(self) -> Iterator[Window]:
        """In sending order: the protocols take turns."""
        if self.only is not None:
            for number in range(self.only.first, self.only.last + 1):
                yield Window(self.only.protocol, number, number)
            return
        for first in range(0, self.bodies, WINDOW):
            for protocol in Protocol:
                yield Window(protocol, first, min(first + WINDOW, self.bodies) - 1)
