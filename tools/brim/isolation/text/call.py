"""One call of a plan: what is asked, how its caller behaves, and what it gets alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from brim.isolation.request import Came, Expected, Request
from brim.measure.plan import Protocol
from brim.measure.text.stream import LEFT, Ask, Heard
from brim.service.samples import Row
from brim.units import us_to_ms

PROMPT_SHOWN = 80
"""Characters of a prompt in a statement about it."""


@dataclass(frozen=True, slots=True)
class Alone:
    """What a call must get, whoever is beside it.

    Attributes:
        text: the whole of it.
        finish_reason: ``stop`` or ``length``.
        output_tokens: behind the text; None where only the text is known.
        input_tokens: of the prompt; None where it is not known.
        refusal: the error instead of a text; empty where there is a text.
    """

    text: str = ""
    finish_reason: str = ""
    output_tokens: int | None = None
    input_tokens: int | None = None
    refusal: str = ""


def alone_of(heard: Heard) -> Alone:
    """What a call that nobody was beside has heard."""
    if heard.error:
        return Alone(refusal=heard.error)
    return Alone(heard.text, heard.finish_reason, heard.output_tokens, heard.input_tokens)


@dataclass(frozen=True, slots=True)
class Call:
    """One caller's part in a plan.

    Attributes:
        ask: the request.
        what: what is special about it, for people; empty for a good one.
        alone: what it must get; None where any text and any refusal is its own.
        secret: a text of its prompt that nobody else has; empty where it has none.
        starts_us: how long its caller waits before it asks.
        leaves_us: when its caller goes, after asking; None for one that stays.
        leaves_pieces: after how many pieces its caller goes; None for one that stays.
        pause_s: before its caller reads each response.
    """

    ask: Ask
    what: str = ""
    alone: Alone | None = None
    secret: str = ""
    starts_us: int = 0
    leaves_us: int | None = None
    leaves_pieces: int | None = None
    pause_s: float = 0.0

    @property
    def leaves(self) -> bool:
        """Whether its caller may go before the end."""
        return self.leaves_us is not None or self.leaves_pieces is not None

    def named(self, request_id: str) -> Call:
        """The same with an id on it, unless it has one."""
        return self if self.ask.request_id else replace(self, ask=replace(self.ask, request_id=request_id))

    def statement(self) -> str:
        """What is asked, in words short enough for a message and exact enough to ask it again."""
        prompt = self.ask.prompt.decode("utf-8", "backslashreplace")
        shown = prompt if len(prompt) <= PROMPT_SHOWN else f"{prompt[:PROMPT_SHOWN]}... ({len(self.ask.prompt)} bytes)"
        options = self.ask.options
        told = options.decode("utf-8", "backslashreplace") if isinstance(options, bytes) else json.dumps(options)
        parts = [json.dumps(shown, ensure_ascii=False), told[:PROMPT_SHOWN] if self.what else told]
        if self.what:
            parts.append(self.what)
        if self.leaves_us is not None:
            parts.append(f"leaves after {us_to_ms(self.leaves_us):.0f} ms")
        if self.leaves_pieces is not None:
            parts.append(f"leaves after {self.leaves_pieces} pieces")
        return " ".join(parts)

    def request(self, model: str) -> Request:
        """How evidence shows it: the words of ``statement`` as what is special, and what it gets alone."""
        return Request(model, Protocol.GRPC, self.statement(), expected=_expected(self.alone), marker=self.secret)


def came_of(heard: Heard, *, hung: bool) -> Came:
    """How evidence shows what came."""
    if hung:
        return Came(hung=True)
    if heard.error == LEFT:
        return Came(left=True)
    if heard.error:
        return Came(error=heard.error, status=heard.error.partition(":")[0][:PROMPT_SHOWN])
    return Came(outputs=_outputs(alone_of(heard)))


def _expected(alone: Alone | None) -> Expected | None:
    if alone is None:
        return None
    return Expected(None, alone.refusal) if alone.refusal else Expected(_outputs(alone))


def _outputs(alone: Alone) -> Row:
    found: Row = {"text_output": np.array([alone.text], np.object_)}
    if alone.output_tokens is not None:
        found["num_output_tokens"] = np.array([alone.output_tokens])
    return found
