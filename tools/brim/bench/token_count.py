"""Tokens that a served model was given so far, from the server's metrics page."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass

from brim.errors import ServerFailed
from brim.runtime.token_counters import PADDED, REAL

TIMEOUT_S = 10.0
LARGEST_PAGE = 16 << 20


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Totals over all instances of a model."""

    real: int
    padded: int

    def since(self, earlier: TokenCount) -> TokenCount:
        """What came after another reading."""
        return TokenCount(self.real - earlier.real, self.padded - earlier.padded)


def parse_tokens(page: str, model: str) -> TokenCount:
    """The counts on a metrics page; zeros where the model has none."""
    totals = {REAL: 0, PADDED: 0}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", page, flags=re.MULTILINE):
        if name in totals and f'model="{model}"' in labels.split(","):
            totals[name] += round(float(value))
    return TokenCount(totals[REAL], totals[PADDED])


def read_tokens(address: str, model: str) -> TokenCount:
    """The counts at ``host:port`` of the metrics page.

    Raises:
        ServerFailed: the page does not come.
    """
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            return parse_tokens(answer.read(LARGEST_PAGE).decode("utf-8", "replace"), model)
    except (OSError, urllib.error.URLError) as error:
        raise ServerFailed(
            f"the metrics page of {address} does not come: {error}", hint="see the server's log"
        ) from error
