"""Telling when an open loop's own generator, and not the server, set the figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from brim.measure.accounting import Account, Outcome
from brim.units import us_to_ms

FULL_CORE = 0.9
"""Share of one core at which the generator's event loop, which is one thread, has nothing left."""
POLL_US = 1_000
"""An event loop's timers come up to this late on an idle machine: epoll counts in milliseconds."""
USUAL_PERCENTILE = 99.0
LAG_PERCENTILE = 99


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of the generator during a run.

    Attributes:
        loop_cores: processor time of the event loop's thread per wall time; None when unknown.
        lag_us: how late the event loop's timers came, 99th percentile; answers are noticed as late as that. None when unknown.
        most_under_way: most requests under way at once.
        processes: generators that shared the schedule; the figures are of the worst of them.
        wall_us: from the beginning of the schedule until the last request had ended; None when unknown.
    """

    loop_cores: float | None
    lag_us: int | None
    most_under_way: int
    processes: int = 1
    wall_us: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as a dictionary."""
        return asdict(self)


def limits_seen(account: Account, evidence: Evidence, in_flight_limit: int) -> list[str]:
    """In what ways the generator set the figures; empty when it did not. Each rule alone is enough.

    1. Arrivals were not sent: at the bound of requests under way, or the caller's patience had ended before. From then
       on the loop was not open.
    2. More requests left late than half of those that may lie above the objective's percentile (99 without one): at that
       many, lateness of the generator could decide the percentile.
    3. The event loop's timers came late by more than what counts as late: answers were noticed late as well.
    4. The event loop's thread used a whole core.
    """
    seen = []
    unsent = account.counts[Outcome.NOT_SENT]
    if unsent:
        seen.append(
            f"{unsent} of {account.offered} arrivals were not sent: generator bound, {evidence.most_under_way} requests "
            f"were under way at most, the limit is {in_flight_limit}"
        )
    percentile = account.objective.percentile if account.objective is not None else USUAL_PERCENTILE
    allowed = (100 - percentile) / 200
    if account.late_ratio > allowed:
        seen.append(
            f"{account.late} of {account.send_delay.count} requests left more than {us_to_ms(account.late_us):g} ms late, "
            f"at most {allowed:.2%} may for p{percentile:g}"
        )
    if evidence.lag_us is not None and evidence.lag_us > account.late_us + POLL_US:
        seen.append(f"its event loop came {us_to_ms(evidence.lag_us):.1f} ms late (p{LAG_PERCENTILE})")
    if evidence.loop_cores is not None and evidence.loop_cores >= FULL_CORE:
        seen.append(f"its event loop used {evidence.loop_cores:.2f} of one core")
    return seen
