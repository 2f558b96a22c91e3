"""What a caller waits for while a text comes. Each word is defined here, once, for the caller's side.

- *TTFT*, time to first token: from when the request was due until the first piece that stands for a token was there.
- *ITL*, inter-token latency: the gap between two such pieces, over all gaps of all texts. A piece that stands for several
  tokens (a character that one token does not complete is held back) ends one gap.
- *TPOT*, time per output token: (end to end - TTFT) / (tokens - 1), one value a text; none for a text of one token.
- *End to end*: from when the request was due until its last response.
- *Normalised latency*: end to end / output tokens (Kwon et al. 2023, section 6.1), which texts of all lengths share.

The server's own (``brim.engine.metrics``) begin at its scheduler and end with a step: what lies between is the way there and
back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from brim.measure.text.stream import Heard


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """One request's, in microseconds; None where there was nothing to take the time of.

    Attributes:
        ttft_us: also of a text that was cut off later.
        itl_us: gaps, in order.
        tpot_us: of a whole text of two tokens or more.
        e2e_us: of a whole text.
        normalised_us: of a whole text.
    """

    ttft_us: int | None
    itl_us: tuple[int, ...]
    tpot_us: int | None
    e2e_us: int | None
    normalised_us: int | None


def token_times(heard: Heard, due_us: int) -> TokenTimes:
    """The times of what a caller heard, from when its request was due, on the same clock."""
    came_us = [at_us for at_us, tokens, _ in heard.pieces if tokens]
    gaps_us = tuple(later - earlier for earlier, later in pairwise(came_us))
    ttft_us = came_us[0] - due_us if came_us else None
    tokens = heard.output_tokens
    if not heard.complete or ttft_us is None:
        return TokenTimes(ttft_us, gaps_us, None, None, None)
    e2e_us = heard.ended_us - due_us
    tpot_us = round((e2e_us - ttft_us) / (tokens - 1)) if tokens > 1 else None
    return TokenTimes(ttft_us, gaps_us, tpot_us, e2e_us, round(e2e_us / tokens))


@dataclass(frozen=True, slots=True)
class TokenObjective:
    """An SLO of a language model: ``percentile`` percent of the requests within both.

    Attributes:
        percentile: 0..100.
        ttft_us: longest time to first token; None for any.
        tpot_us: longest time per output token; None for any.
    """

    percentile: float
    ttft_us: int | None
    tpot_us: int | None

    def met_by(self, times: TokenTimes) -> bool:
        """Whether a request was answered in time. At exactly the limit is within; a single token has no TPOT to miss."""
        if times.e2e_us is None or times.ttft_us is None:
            return False
        return (self.ttft_us is None or times.ttft_us <= self.ttft_us) and (
            self.tpot_us is None or times.tpot_us is None or times.tpot_us <= self.tpot_us
        )
