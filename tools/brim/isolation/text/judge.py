"""The verdict on one call. Pure: what was asked and what its caller heard go in."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from brim.isolation.judge import INSIDES, Judgement, Verdict
from brim.isolation.text.call import Alone, Call
from brim.measure.text.stream import LEFT, Heard

DEADLINE = "DEADLINE_EXCEEDED"
SHOWN = 40
"""Characters of a text that a fault quotes."""
TELLING = 20
"""Characters of a text that show whose it is; fewer can be the same by chance."""
_VARIES = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""Numbers and ids in a refusal, which differ from one time to the next."""
_ID = re.compile(r"\[request id: (.*?)\] ?")
"""With which Triton's core begins some of its refusals."""


def is_hung(call: Call, heard: Heard) -> bool:
    """Whether a caller that wanted an answer waited to its bound; one that would have left has waited for nothing."""
    return heard.error.startswith(DEADLINE) or (heard.error == LEFT and not call.leaves)


def judge_text(
    call: Call, heard: Heard, *, secrets: Collection[str] = (), owners: Mapping[str, str] | None = None
) -> Judgement:
    """Exactly one verdict.

    Args:
        call: what was asked.
        heard: what came.
        secrets: of all callers; none but its own may show.
        owners: texts of others, each with a word for whose it is, so that a fault can name them.
    """
    if is_hung(call, heard):
        return Judgement(Verdict.HUNG, f"no end in time; so far {_shown(heard.text)}")
    said = heard.text + heard.error
    leaked = [secret for secret in secrets if secret != call.secret and secret in said]
    if leaked:
        return Judgement(Verdict.WRONG, f"shows {leaked[0]}, which stands in another caller's prompt: {_shown(said)}")
    if heard.strange:
        return Judgement(Verdict.WRONG, "; ".join(heard.strange[:2]))
    told = _ID.match(heard.error)
    if told and call.ask.request_id and told[1] != call.ask.request_id:
        return Judgement(
            Verdict.WRONG, f"its error carries the id {told[1]!r}, the request had {call.ask.request_id!r}"
        )
    alone = call.alone
    if heard.error == LEFT:
        if alone is not None and not alone.text.startswith(heard.text):
            return Judgement(
                Verdict.WRONG, f"before its caller left: {_difference(heard.text, alone.text, owners or {})}"
            )
        return Judgement(Verdict.CANCELLED)
    if heard.error:
        return _judge_error(alone, heard.error)
    if not heard.finish_reason:
        return Judgement(Verdict.WRONG, "the text ended without a finish reason")
    if alone is None:
        return Judgement(Verdict.RIGHT)
    if alone.refusal:
        return Judgement(Verdict.WRONG, f"answered in company, alone it is refused: {alone.refusal[:SHOWN]}")
    return _judge_answer(alone, heard, owners or {})


def _judge_error(alone: Alone | None, error: str) -> Judgement:
    if any(words in error for words in INSIDES):
        return Judgement(Verdict.WRONG, f"its error shows the server's insides: {error}")
    if alone is None:
        return Judgement(Verdict.OWN_ERROR)
    if not alone.refusal:
        return Judgement(Verdict.NEIGHBOUR_ERRORS, f"answered alone, in company an error: {error}")
    if _same_each_time(alone.refusal) != _same_each_time(error):
        return Judgement(Verdict.NEIGHBOUR_ERRORS, f"alone refused with {alone.refusal!r}, in company with {error!r}")
    return Judgement(Verdict.OWN_ERROR)


def _same_each_time(error: str) -> str:
    return _VARIES.sub("#", _ID.sub("", error, count=1))


def _judge_answer(alone: Alone, heard: Heard, owners: Mapping[str, str]) -> Judgement:
    if heard.text != alone.text:
        return Judgement(Verdict.WRONG, _difference(heard.text, alone.text, owners))
    for name, want, have in (
        ("finish reason", alone.finish_reason, heard.finish_reason),
        ("output tokens", alone.output_tokens, heard.output_tokens),
        ("input tokens", alone.input_tokens, heard.input_tokens),
    ):
        if want is not None and want != have:
            return Judgement(Verdict.WRONG, f"the text is its own, but {name} are {have}, alone {want}")
    return Judgement(Verdict.RIGHT)


def _difference(have: str, want: str, owners: Mapping[str, str]) -> str:
    """Where the texts part, and whose text it is from there on, where that can be told."""
    place = next(
        (number for number, (one, other) in enumerate(zip(have, want, strict=False)) if one != other),
        min(len(have), len(want)),
    )
    told = f"from character {place} on {_shown(have[place:])}, alone {_shown(want[place:])}"
    piece = have[place : place + TELLING]
    if len(piece) == TELLING and piece not in want:
        owner = next((whose for text, whose in owners.items() if piece in text), None)
        if owner is not None:
            told += f"; what came is in the text of {owner}"
    return told


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
