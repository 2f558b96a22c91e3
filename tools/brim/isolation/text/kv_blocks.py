"""The server's own count of KV blocks that callers hold, from its metrics page."""

from __future__ import annotations

import time

from brim.engine.metrics import BLOCK_TOKENS, BLOCKS_PROMISED, BLOCKS_USED, KV_USAGE, PREEMPTIONS
from brim.measure.text.server_side import Reading, gauge, read_page
from brim.units import US_PER_S, ns_to_us

HELD = ((BLOCKS_USED, BLOCKS_PROMISED), (KV_USAGE,))
"""Sets of gauges that are all 0 when nobody holds a block; the first set that the page has counts."""
USUAL_BLOCK_TOKENS = 16
POLL_S = 0.02
UNTOLD = Reading({}, {})
"""A page without a number."""


def held(reading: Reading) -> float | None:
    """What callers of the model hold, in blocks or as a share; None where the page does not tell."""
    for families in HELD:
        values = [value for family in families if (value := gauge(reading, family)) is not None]
        if len(values) == len(families):
            return sum(values)
    return None


def preemptions(reading: Reading) -> float:
    """How often a running text was sent back to wait; 0 where the page does not tell."""
    return gauge(reading, PREEMPTIONS) or 0.0


def block_tokens(reading: Reading) -> int:
    """Tokens of a KV block; ``USUAL_BLOCK_TOKENS`` where the page does not tell."""
    return round(gauge(reading, BLOCK_TOKENS) or USUAL_BLOCK_TOKENS)


def wait_until_free(metrics: str, model: str, *, timeout_s: float) -> tuple[str, int | None]:
    """Ask the page until nobody holds a block.

    Returns:
        What is wrong, and how long it took in microseconds. Without a fault and a time, the page does not tell.
    """
    began_ns = time.monotonic_ns()
    while True:
        reading = read_page(metrics, model)
        if reading is None:
            return "how many KV blocks are held cannot be told: the metrics page does not come", None
        left, took_us = held(reading), ns_to_us(time.monotonic_ns() - began_ns)
        if left is None:
            return "", None
        if left == 0:
            return "", took_us
        if took_us > timeout_s * US_PER_S:
            return f"{left:g} KV blocks are still held or promised {timeout_s:g} s after the last caller went", took_us
        time.sleep(POLL_S)
