"""Good callers beside others: of their own kind, and of every kind that could hurt them."""

from __future__ import annotations

from dataclasses import replace

from brim.isolation.bench import Account
from brim.isolation.text.bench import TextBench
from brim.isolation.text.call import Call
from brim.isolation.text.hostile import hostile_calls
from brim.isolation.text.plans import (
    REFUSED_SHARE,
    Material,
    among,
    good,
    leaver,
    same_ids,
    secret_calls,
    shuffled,
    with_leavers,
    with_long_prompts,
)
from brim.isolation.text.prompts import words
from brim.measure.text.stream import Ask
from brim.units import US_PER_S

PREFIX_WORDS = 160
NEVER_READERS = 4
NEVER_READ_TOKENS = 512
SLOW_PAUSE_S = 0.05
SLOW_SHARE = 0.25


def identity(bench: TextBench, material: Material, prefix: str) -> Account:
    """Good calls only, every way of drawing beside every other."""
    account = Account()
    bench.company(good(material, material.count), prefix, account, callers=material.callers)
    return account


def caller_gone(bench: TextBench, material: Material, prefix: str) -> Account:
    """Half of the callers leave."""
    account = Account()
    bench.company(with_leavers(material), prefix, account, callers=material.callers)
    return account


def refused_neighbours(bench: TextBench, material: Material, prefix: str) -> Account:
    """Broken requests among good ones."""
    account = Account()
    bad = bench.learn(hostile_calls(), account)
    bench.company(among(material, bad, REFUSED_SHARE), prefix, account, callers=material.callers)
    return account


def long_prompts(bench: TextBench, material: Material, prefix: str) -> Account:
    """Long prefills beside short texts."""
    account = Account()
    bench.company(with_long_prompts(material), prefix, account, callers=material.callers)
    return account


def secrets(bench: TextBench, material: Material, prefix: str) -> Account:
    """Secrets in prompts and in refused options, and callers who fish for them."""
    account = Account()
    calls = secret_calls(material)
    known = {call.secret for call in calls if call.secret}
    spoken = bench.company(calls, prefix, account, callers=material.callers, secrets=known)
    repeated = sum(bool(call.secret) and call.secret in heard.text for call, heard in spoken)
    account.figures = {"secrets": len(known), "repeated_to_their_owners": repeated}
    if not repeated:
        account.note = "the model repeats nobody's secret to its owner, so its texts prove little here"
    return account


def shared_prefix(bench: TextBench, material: Material, prefix: str) -> Account:
    """Prompts that begin alike and then part, beside refused ones, leavers and hot ones that begin alike, too."""
    draw, account = material.draw, Account()
    base = f"List: {words(PREFIX_WORDS, draw)}"
    half = base[: len(base) // 2]
    endings = (
        base,
        f"{base} and",
        f"{base} but",
        f"{base}\n",
        half,
        f"{half}!",
        f"{half} {words(40, draw)}",
        base[:-1],
    )
    ways = ({"temperature": 0}, {"temperature": 0.9, "seed": int(draw.integers(2**31))})
    family = bench.learn(
        [Call(Ask(text.encode(), {**way, "max_tokens": 12})) for text in endings for way in ways], account
    )
    if not family:
        return account
    poison = [
        Call(Ask(base.encode(), {"temperature": float("nan")}), "the same prompt, refused"),
        Call(
            Ask(base.encode(), {"temperature": 2.0, "frequency_penalty": 2.0, "max_tokens": 24}), "the same prompt, hot"
        ),
    ]
    rounds = max(1, material.count // len(family))
    goers = [leaver(call, material.alone_us, draw) for call in family]
    calls = [*family * rounds, *poison * rounds, *goers]
    bench.company(shuffled(calls, draw), prefix, account, callers=material.callers)
    return account


def same_request_ids(bench: TextBench, material: Material, prefix: str) -> Account:
    """Two callers with one id, again and again."""
    account = Account()
    bench.company(same_ids(material), prefix, account, callers=material.callers // 2 * 2)
    return account


def slow_readers(bench: TextBench, material: Material, prefix: str) -> Account:
    """Callers who never read, and slow ones, beside those that do."""
    account = Account()
    limit_us = round(bench.options.answer_timeout_s * US_PER_S)
    never = [
        Call(
            Ask(
                f"A long tale, part {number}:".encode(),
                {"temperature": 0, "max_tokens": NEVER_READ_TOKENS, "ignore_eos": True},
            ),
            "never reads",
            leaves_us=limit_us,
            pause_s=2 * bench.options.answer_timeout_s,
        )
        for number in range(NEVER_READERS)
    ]
    calls = good(material, material.count)
    slow = max(1, round(material.count * SLOW_SHARE))
    calls[:slow] = [replace(call, what="reads slowly", pause_s=SLOW_PAUSE_S) for call in calls[:slow]]
    bench.company(shuffled(calls, material.draw), prefix, account, callers=material.callers, beside=never)
    return account
