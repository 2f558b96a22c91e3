"""What a stream must be beside its text: the same however it is asked for, with whole characters, and free of stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

from brim.isolation.bench import Account
from brim.isolation.text.bench import TextBench
from brim.isolation.text.call import Call, alone_of
from brim.isolation.text.generate import over_http
from brim.isolation.text.judge import judge_text
from brim.isolation.text.plans import Material, good, with_stops
from brim.isolation.text.prompts import MANY_BYTES
from brim.measure.text.stream import Ask, Heard

UNFINISHED = "\ufffd"
TOKENS = 24
HTTP_CALLERS = 8
GOOD_ONES = 2


def streams(bench: TextBench, material: Material, prefix: str) -> Account:
    """Every text as a stream and as a whole, over gRPC and over HTTP."""
    account = Account()
    texts = [
        *(Call(Ask(prompt.encode(), {"temperature": 0, "max_tokens": TOKENS})) for prompt in MANY_BYTES),
        *good(material, min(GOOD_ONES, material.count)),
    ]
    spoken = bench.company(texts, f"{prefix}-stream", account, callers=len(texts))
    known = [replace(call, alone=alone_of(heard)) for call, heard in spoken if heard.complete]
    whole = [replace(call, ask=replace(call.ask, stream=False)) for call in known]
    bench.company(whole, f"{prefix}-whole", account, callers=len(texts))
    _over_http(bench, [*known, *whole], account)
    account.troubles += [
        f"a character is split between two pieces: {heard.text!r}, to {call.statement()}"
        for call, heard in spoken
        if call.alone is None and splits(heard.pieces)
    ]
    many_bytes = sum(len(character.encode()) > 1 for _, heard in spoken for character in heard.text)
    account.figures = {"texts": len(texts), "characters_of_several_bytes": many_bytes}
    if not many_bytes:
        account.note = "no text had a character of several bytes, so nothing is proven about splitting one"
    return account


def _over_http(bench: TextBench, calls: Sequence[Call], account: Account) -> None:
    limit_s = bench.options.answer_timeout_s

    def ask(call: Call) -> Heard:
        return over_http(bench.endpoint, bench.model, call.ask, timeout_s=limit_s)

    with ThreadPoolExecutor(max_workers=min(HTTP_CALLERS, bench.options.callers)) as pool:
        for call, heard in zip(calls, pool.map(ask, calls), strict=True):
            how = "stream" if call.ask.stream else "whole"
            account.tally.add(judge_text(call, heard), f"{call.statement()}, a {how} over HTTP")


def splits(pieces: Sequence[tuple[int, int, str]]) -> bool:
    """Whether a character was cut in two: both halves are then unreadable, one at the end of a piece, one behind it."""
    texts = [text for _, _, text in pieces if text]
    return any(before.endswith(UNFINISHED) and after.startswith(UNFINISHED) for before, after in pairwise(texts))


def stop_strings(bench: TextBench, material: Material, prefix: str) -> Account:
    """Texts that end at parts of themselves."""
    account = Account()
    bench.company(with_stops(material), prefix, account, callers=material.callers)
    return account
