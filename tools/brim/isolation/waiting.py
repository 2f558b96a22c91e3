"""The server's own count of requests that wait for a batch, from its metrics page."""

from __future__ import annotations

import re
import time
import urllib.request

from brim.errors import CouldNotTell

GAUGE = "nv_inference_pending_request_count"
TIMEOUT_S = 5.0
POLL_S = 0.05


def waiting_requests(page: str, model: str) -> int:
    """How many requests of ``model`` wait, over its versions.

    Raises:
        CouldNotTell: the page has no such count.
    """
    found = re.findall(rf'^{GAUGE}\{{[^}}]*model="{re.escape(model)}"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    if not found:
        raise CouldNotTell(f"the metrics page has no {GAUGE} of {model}", hint="is it Triton's metrics page?")
    return round(sum(float(value) for value in found))


def wait_until_none_waits(metrics: str, model: str, *, timeout_s: float) -> str:
    """Ask the page at ``host:port`` until nothing waits. Empty when that came to pass, else what stands there."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=TIMEOUT_S) as answer:
                left = waiting_requests(answer.read().decode("utf-8", "replace"), model)
        except (OSError, CouldNotTell) as error:
            return f"how many requests still wait cannot be told: {error}"
        if left == 0:
            return ""
        if time.monotonic() > deadline:
            return f"{left} requests still wait {timeout_s:g} s after the last answer, though nobody waits for them"
        time.sleep(POLL_S)
