"""Who gets a seat when, and who loses it: short texts end first, a seat is taken at once, a preempted text stays the same."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from brim.errors import BrimError
from brim.isolation.bench import Account
from brim.isolation.text.bench import TextBench
from brim.isolation.text.call import Call
from brim.isolation.text.judge import judge_text
from brim.isolation.text.kv_blocks import UNTOLD, block_tokens, preemptions
from brim.isolation.text.plans import Material, good, shuffled
from brim.isolation.text.special import no_special, settings_of, special_server
from brim.measure.text.server_side import read_page
from brim.measure.text.stream import Ask, Heard, TextCallers

LENGTHS = tuple(range(8, 65, 8))
ROUND_CALLS = 100
"""One round of eight callers for so many calls asked for."""
SHORT_TOKENS, LONG_TOKENS = 8, 64
MOST_STEPS = 8
"""Tokens of the long text until the waiting one has its first: a step to notice, one to prefill, and what travels meanwhile."""
TRIES = 5
FEW_BLOCKS = 20
FITS = 4
"""A call of a small cache takes no more than this part of it, so that several are made side by side."""
CLASS = "brim_class"
POLL_S = 0.005


def _counted(prompt: str, tokens: int) -> Call:
    return Call(Ask(prompt.encode(), {"temperature": 0, "ignore_eos": True, "max_tokens": tokens}))


def order(bench: TextBench, material: Material, prefix: str) -> Account:
    """Eight callers of different lengths at once."""
    account = Account()
    rounds = max(1, material.count // ROUND_CALLS)
    for number in range(rounds):
        calls = shuffled([_counted(f"Story {number}.{length}", length) for length in LENGTHS], material.draw)
        spoken = bench.company(calls, f"{prefix}-{number}", account, callers=len(calls), shrinks=False)
        ended = sorted((heard.ended_us, heard.output_tokens) for _, heard in spoken if heard.complete)
        lengths = [tokens for _, tokens in ended]
        if lengths != sorted(lengths):
            account.troubles.append(f"round {number}: texts ended in the order {lengths} of their tokens")
    account.figures = {"rounds": rounds}
    return account


def free_seat(bench: TextBench, material: Material, prefix: str) -> Account:
    """Two texts decoded together on a server of two seats, and a third that waits for the first to end."""
    account = Account(skipped=no_special(bench.own, bench.model))
    if account.skipped or bench.own is None:
        return account
    calls = [
        _counted("A long one", LONG_TOKENS),
        _counted("A short one", SHORT_TOKENS),
        _counted("It waits", SHORT_TOKENS),
    ]
    try:
        with special_server(bench.own, bench.model, max_sequences=2) as server:
            there = bench.at(server.endpoint)
            calls = there.learn(calls, account)
            if len(calls) == 3:
                _ask_three(there, calls, account)
    except BrimError as error:
        account.troubles.append(error.message)
    return account


def _ask_three(bench: TextBench, calls: list[Call], account: Account) -> None:
    """Again, where the third came when the short text was more than half done: it may not have waited."""
    for _ in range(TRIES):
        heard = asyncio.run(_three(bench, calls))
        _, short, third = heard
        if sum(tokens for at_us, tokens, _ in short.pieces if at_us < third.sent_us) <= SHORT_TOKENS // 2:
            _judge_three(account, calls, heard)
            return
    account.note = f"in {TRIES} tries the third caller never came in time to wait, so nothing is proven"


async def _three(bench: TextBench, calls: list[Call]) -> list[Heard]:
    """The third asks when both others have begun."""
    heard = [Heard() for _ in calls]
    async with TextCallers(bench.endpoint, bench.model) as line:
        tasks = [asyncio.create_task(bench.speak(line, calls[number], heard[number])) for number in (0, 1)]
        deadline = time.monotonic() + bench.options.answer_timeout_s
        while not all(one.pieces or one.ended_us for one in heard[:2]) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
        tasks.append(asyncio.create_task(bench.speak(line, calls[2], heard[2])))
        await asyncio.gather(*tasks)
    return heard


def _judge_three(account: Account, calls: list[Call], heard: list[Heard]) -> None:
    for call, one in zip(calls, heard, strict=True):
        account.tally.add(judge_text(call, one), call.statement())
    long, short, third = heard
    if third.first_us is None or account.tally.hurt:
        return
    if short.ended_us > long.ended_us:
        account.troubles.append(f"the text of {SHORT_TOKENS} tokens ended after that of {LONG_TOKENS}")
    steps = sum(tokens for at_us, tokens, _ in long.pieces if short.ended_us <= at_us < third.first_us)
    account.figures = {"tokens_of_the_long_text_until_the_third_began": steps}
    if third.first_us > long.ended_us or steps > MOST_STEPS:
        account.troubles.append(
            f"the third caller's first token came {steps} tokens of the long text after a seat was free, at most {MOST_STEPS} are taken"
        )


def small_cache(bench: TextBench, material: Material, prefix: str) -> Account:
    """A KV cache for a few texts: prefixes are evicted, and running texts of the batch class make room."""
    account = Account(skipped=no_special(bench.own, bench.model))
    if account.skipped or bench.own is None:
        return account
    classes = sorted(
        settings_of(bench.own.repository, bench.model).get("classes", []), key=lambda one: int(one["priority"])
    )
    names = [one["name"] for one in classes] or [None]
    try:
        with special_server(bench.own, bench.model, kv_blocks=FEW_BLOCKS) as server:
            metrics = server.endpoint.metrics or ""
            fitting = _fitting(material, block_tokens(read_page(metrics, bench.model) or UNTOLD) * FEW_BLOCKS // FITS)
            if not fitting:
                account.skipped = f"no good call fits a {FITS}th of {FEW_BLOCKS} KV blocks"
                return account
            calls = [
                replace(call, ask=replace(call.ask, parameters={CLASS: name} if name else {}))
                for number, call in enumerate(good(replace(material, pool=fitting), material.count))
                for name in [names[-1] if number % 3 else names[0]]
            ]
            bench.at(server.endpoint).company(calls, prefix, account, callers=material.callers)
            preempted = preemptions(read_page(metrics, bench.model) or UNTOLD)
            account.figures = {"preemptions": preempted, "kv_blocks": FEW_BLOCKS, "different_calls": len(fitting)}
    except (BrimError, OSError) as error:
        account.troubles.append(str(error))
        return account
    if not account.figures["preemptions"]:
        account.note = "no running text was sent back to wait, so that is not proven"
    return account


def _fitting(material: Material, most_tokens: int) -> list[Call]:
    """Good calls with no more tokens, prompt and text together."""
    return [
        call
        for call in material.pool
        if call.alone
        and not isinstance(call.ask.options, bytes)
        and (call.alone.input_tokens or 0) + call.ask.options["max_tokens"] <= most_tokens
    ]
