"""What a stream must be beside its text: the same however it is asked for, with whole characters, and free of stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from brim.isolation.bench import Account
from brim.isolation.judge import HURT, Judgement, Verdict
from brim.isolation.text.bench import TextBench
from brim.isolation.text.call import Call, alone_of
from brim.isolation.text.generate import over_http
from brim.isolation.text.judge import judge_text
from brim.isolation.text.plans import Material, good, with_stops
from brim.isolation.text.prompts import MANY_BYTES
from brim.measure.text.stream import Ask

UNFINISHED = "\ufffd"
TOKENS = 24
GOOD_ONES = 2


def streams(bench: TextBench, material: Material, prefix: str) -> Account:
    """Every text as a stream and as a whole, over gRPC and over HTTP."""
    account = Account()
    texts = [
        *(Call(Ask(prompt.encode(), {"temperature": 0, "max_tokens": TOKENS})) for prompt in MANY_BYTES),
        *(replace(call, starts_us=0) for call in good(material, min(GOOD_ONES, material.count))),
    ]
    many_bytes = 0
    for call, heard in zip(texts, bench.alone(texts), strict=False):
        judgement = judge_text(call, heard)
        if judgement.verdict not in HURT and call.ask.options == texts[0].ask.options and splits(heard.pieces):
            judgement = Judgement(Verdict.WRONG, f"a character is split between two pieces: {heard.text!r}")
        account.tally.add(judgement, f"{call.statement()}, a stream over gRPC")
        if judgement.verdict is not Verdict.RIGHT:
            continue
        many_bytes += sum(len(character.encode()) > 1 for character in heard.text)
        known = replace(call, alone=alone_of(heard))
        whole = replace(known, ask=replace(call.ask, stream=False))
        for other, how in (
            (whole, "the whole over gRPC"),
            (known, "a stream over HTTP"),
            (whole, "the whole over HTTP"),
        ):
            said = (
                bench.alone([other])[0]
                if "gRPC" in how
                else over_http(bench.endpoint, bench.model, other.ask, timeout_s=bench.options.answer_timeout_s)
            )
            account.tally.add(judge_text(other, said), f"{call.statement()}, {how}")
    account.figures = {"texts": len(texts), "characters_of_several_bytes": many_bytes}
    if not many_bytes:
        account.note = "no text had a character of several bytes, so nothing is proven about splitting one"
    return account


def splits(pieces: Sequence[tuple[int, int, str]]) -> bool:
    """Whether a character was cut in two: both halves are then unreadable, one at the end of a piece, one behind it."""
    texts = [text for _, _, text in pieces if text]
    return any(before.endswith(UNFINISHED) and after.startswith(UNFINISHED) for before, after in pairwise(texts))


def stop_strings(bench: TextBench, material: Material, prefix: str) -> Account:
    """Texts that end at parts of themselves."""
    account = Account()
    bench.company(with_stops(material), prefix, account, callers=material.callers)
    return account
