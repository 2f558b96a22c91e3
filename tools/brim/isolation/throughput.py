"""What poison costs everybody else: good answers a second with and without some of it, in turn, in one run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from brim.isolation.bench import Account, Bench
from brim.isolation.check import Material, send_all
from brim.isolation.request import Request
from brim.isolation.rows import poison_rows
from brim.isolation.traffic import among, good, special_requests

PAIRS = 8
STRAYS = 1
"""Pairs that may lie on the other side when a loss is said. If poison cost exactly what is allowed, seven or eight of eight
pairs would lie below by chance in 9 of 256 runs."""
LEAST_RATIO = 0.9
SEGMENT_ROUNDS = 3
"""Requests of each caller in a segment, at least."""
SEGMENT_S = 1.0
SEGMENT_MOST = 10_000
FIRST_MOST = 1_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates of neighbouring segments.

    Attributes:
        pairs: good answers a second without and with poison, one pair for two neighbouring segments.
    """

    pairs: Sequence[tuple[float, float]]

    @property
    def ratios(self) -> list[float]:
        """With / without, pair by pair."""
        return [poisoned / clean for clean, poisoned in self.pairs]

    @property
    def ratio(self) -> float:
        """The median of the pairs."""
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """``kept``, ``lost`` or ``could not tell``: a slower moment of the machine is no loss."""
        if self.ratio >= LEAST_RATIO:
            return "kept"
        above = sum(ratio >= LEAST_RATIO for ratio in self.ratios)
        return "lost" if above <= STRAYS else "could not tell"

    def figures(self) -> dict[str, float]:
        """The numbers of the report."""
        return {
            "poison_throughput_ratio": round(self.ratio, 4),
            "lowest_ratio": round(min(self.ratios), 4),
            "highest_ratio": round(max(self.ratios), 4),
            "clean_per_s": round(statistics.median(clean for clean, _ in self.pairs), 1),
            "poisoned_per_s": round(statistics.median(poisoned for _, poisoned in self.pairs), 1),
            "pairs": len(self.pairs),
        }

    def words(self, share: float) -> str:
        """One sentence."""
        low, high = min(self.ratios), max(self.ratios)
        said = f"with {share:.3g} poison {self.ratio:.2f} times the good answers without ({low:.2f} to {high:.2f})"
        ends = {
            "kept": f"{LEAST_RATIO} is asked for",
            "lost": f"and {LEAST_RATIO} is asked for: of {len(self.pairs)} pairs {STRAYS} at most reaches it",
            "could not tell": f"{LEAST_RATIO} is asked for, and the spread does not allow to tell",
        }
        return f"{said}; {ends[self.verdict]}"


def poison_throughput(bench: Bench, material: Material, prefix: str) -> Account:
    """Segments of the same callers with the same good rows, without and with poison: A B B A A B B A ...

    Poison that gets an answer alone is left out: a row that is long, and not wrong, takes its time rightly.
    """
    account = Account()
    pool, draw = material.pool, material.draw
    specials = special_requests(pool, poison_rows(pool.contract, pool.rows[0], draw))
    bad = [one for one in bench.learn(specials, prefix, account) if one.expected and one.expected.outputs is None]
    if bench.dead:
        return account
    if not bad:
        account.skipped = "no poison is refused alone"
        return account
    size = max(SEGMENT_ROUNDS * material.callers, min(FIRST_MOST, material.count))

    def segment(name: str, *, poisoned: bool) -> float:
        requests = good(pool, size, draw)
        if poisoned:
            requests = among(requests, bad, material.few, draw)
        return _rate(bench, requests, f"{prefix}-{name}", account, material.callers)

    batches = bench.batches()
    # The first one opens the way, and says how many requests make a segment of a fair length.
    rate = segment("first", poisoned=False)
    size = max(SEGMENT_ROUNDS * material.callers, min(SEGMENT_MOST, round(rate * SEGMENT_S)))
    pairs: list[tuple[float, float]] = []
    for number in range(PAIRS):
        order = (False, True) if number % 2 == 0 else (True, False)
        rates = {poisoned: segment(f"{number}{'b' if poisoned else 'a'}", poisoned=poisoned) for poisoned in order}
        if account.tally.hurt:
            account.troubles.append("somebody was hurt, so that rates mean nothing")
            return account
        pairs.append((rates[False], rates[True]))
    found = Comparison(pairs)
    account.figures = found.figures()
    account.note = found.words(material.few)
    duty = bench.duty(batches)
    if duty is not None:
        account.figures["duty"] = round(duty, 4)
        account.note += f"; the model was busy {duty:.0%} of the time"
    if found.verdict == "lost":
        account.troubles.append(account.note)
    return account


def _rate(bench: Bench, requests: Sequence[Request], prefix: str, account: Account, callers: int) -> float:
    """Good answers a second."""
    flights = send_all(bench, requests, prefix, account, callers=callers)
    wanted = sum(not one.what for one in flights.requests)
    return wanted * 1e6 / max(1, flights.span_us())
