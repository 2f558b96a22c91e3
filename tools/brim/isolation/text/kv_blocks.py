"""The server's own count of KV blocks that callers hold, from its metrics page."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Sequence

from brim.isolation.waiting import TIMEOUT_S

HELD = (("brim_llm_kv_blocks_used", "brim_llm_kv_blocks_promised"), ("vllm:kv_cache_usage_perc",))
"""Sets of gauges that are all 0 when nobody holds a block; the first set that the page has counts."""
PREEMPTIONS = ("brim_llm_preemptions_total", "vllm:num_preemptions_total")
USUAL_BLOCK_TOKENS = 16
POLL_S = 0.02


def metrics_page(metrics: str) -> str:
    """The page at ``host:port``.

    Raises:
        OSError: nobody answers there.
    """
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode("utf-8", "replace"))


def sum_of(page: str, names: Sequence[str], model: str) -> float | None:
    """The sum over these metrics of a model; None unless the page has each of them."""
    total = 0.0
    for name in names:
        found = re.findall(rf'^{name}\{{[^}}]*model="{re.escape(model)}"[^}}]*\}} (\S+)$', page, re.MULTILINE)
        if not found:
            return None
        total += sum(map(float, found))
    return total


def held(page: str, model: str) -> float | None:
    """What callers of the model hold, in blocks or as a share; None where the page does not tell."""
    found = (sum_of(page, names, model) for names in HELD)
    return next((value for value in found if value is not None), None)


def preemptions(page: str, model: str) -> float:
    """How often a running text was sent back to wait; 0 where the page does not tell."""
    found = (sum_of(page, [name], model) for name in PREEMPTIONS)
    return next((value for value in found if value is not None), 0.0)


def block_tokens(page: str, model: str) -> int:
    """Tokens of a KV block; ``USUAL_BLOCK_TOKENS`` where the page does not tell."""
    return round(sum_of(page, ["brim_llm_kv_block_tokens"], model) or USUAL_BLOCK_TOKENS)


def wait_until_free(metrics: str, model: str, *, timeout_s: float) -> tuple[str, int | None]:
    """Ask the page until nobody holds a block.

    Returns:
        What is wrong, and how long it took in microseconds. Without a fault and a time, the page does not tell.
    """
    began_ns = time.monotonic_ns()
    while True:
        try:
            left = held(metrics_page(metrics), model)
        except OSError as error:
            return f"how many KV blocks are held cannot be told: {error}", None
        took_us = (time.monotonic_ns() - began_ns) // 1_000
        if left is None:
            return "", None
        if left == 0:
            return "", took_us
        if took_us > timeout_s * 1e6:
            return f"{left:g} KV blocks are still held or promised {timeout_s:g} s after the last caller went", took_us
        time.sleep(POLL_S)
