"""Real prompts to a running language model, alone and all at once, streamed and whole; every text is compared."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from brim.cli.self_check import Verdict
from brim.errors import CouldNotTell
from brim.isolation.text.generate import over_http
from brim.measure.plan import Protocol
from brim.measure.text.stream import Ask, Heard, TextCallers
from brim.server.endpoint import Endpoint
from brim.service.schema import Service
from brim_export.language_model_record import KnownText, LanguageModelRecord

ANSWER_TIMEOUT_S = 120.0
LONGEST_SHOWN = 60
"""Characters of a wrong text."""

AskAll = Callable[[Sequence[Ask], int], list[Heard]]
"""Asks all of them, so many at a time at most, and tells what was heard, in their order."""


def text_self_check(endpoint: Endpoint, service: Service, record: LanguageModelRecord) -> list[Verdict]:
    """Ask for the beginnings of texts that the record knows: one by one, then all at once, over both protocols.

    Over HTTP every second text is streamed, and the others come whole: both must be the text of the record.

    Args:
        endpoint: of the server.
        service: the language model's.
        record: of its export.

    Raises:
        CouldNotTell: the record knows no texts.
    """
    if not record.answers:
        raise CouldNotTell(
            f"{service.name}: its export recorded no texts to compare with",
            hint=f"`brim export {service.name} --force` records them",
        )
    verdicts = []
    for protocol, ask_all in _ways(endpoint, service):
        asks = [_ask(known, stream) for known, stream in zip(record.answers, _streamed(protocol), strict=False)]
        for callers in (1, len(asks)):
            heard = ask_all(asks, callers)
            faults = [text for one, known in zip(heard, record.answers, strict=True) if (text := fault(one, known))]
            right = len(asks) - len(faults)
            verdicts.append(
                Verdict(service.name, protocol.value, callers, len(asks), right, faults[:3], {}, record.reference)
            )
    return verdicts


def fault(heard: Heard, known: KnownText) -> str | None:
    """What is wrong with what was heard, or None."""
    if heard.error:
        return f"{known.prompt!r}: {heard.error}"
    if heard.text != known.text:
        return f"{known.prompt!r}: {heard.text[:LONGEST_SHOWN]!r}, expected {known.text[:LONGEST_SHOWN]!r}"
    if heard.strange or heard.finish_reason != "length" or heard.output_tokens != known.tokens:
        ends = f"{heard.output_tokens} tokens and {heard.finish_reason!r}, expected {known.tokens} and 'length'"
        return f"{known.prompt!r}: {'; '.join(heard.strange) or ends}"
    return None


def _ask(known: KnownText, stream: bool) -> Ask:
    options = {"temperature": 0, "max_tokens": known.tokens, "ignore_eos": True}
    return Ask(known.prompt.encode(), options, stream=stream)


def _streamed(protocol: Protocol) -> Iterable[bool]:
    return itertools.repeat(True) if protocol is Protocol.GRPC else itertools.cycle((True, False))


def _ways(endpoint: Endpoint, service: Service) -> list[tuple[Protocol, AskAll]]:
    def over_grpc(asks: Sequence[Ask], callers: int) -> list[Heard]:
        return asyncio.run(_over_grpc(endpoint, service.name, asks, callers))

    def one_over_http(ask: Ask) -> Heard:
        return over_http(endpoint, service.name, ask, timeout_s=ANSWER_TIMEOUT_S)

    def all_over_http(asks: Sequence[Ask], callers: int) -> list[Heard]:
        with ThreadPoolExecutor(callers) as pool:
            return list(pool.map(one_over_http, asks))

    return [(Protocol.HTTP, all_over_http), (Protocol.GRPC, over_grpc)]


async def _over_grpc(endpoint: Endpoint, model: str, asks: Sequence[Ask], callers: int) -> list[Heard]:
    seats = asyncio.Semaphore(callers)
    async with TextCallers(endpoint, model) as talking:

        async def one(ask: Ask) -> Heard:
            async with seats:
                return await talking.ask(ask, limit_s=ANSWER_TIMEOUT_S)

        answers: list[Awaitable[Heard]] = [one(ask) for ask in asks]
        return await asyncio.gather(*answers)
