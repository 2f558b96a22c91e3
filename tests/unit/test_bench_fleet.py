from __future__ import annotations

import pytest

from brim.bench.fleet import SEGMENT_US, back_s
from brim.measure.accounting import Account, Outcome, Reply
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_limits import Evidence

P99_US = 100_000


def result(*segments: tuple[int, Outcome]) -> OpenLoopResult:
    """A request a segment, with its latency and its end."""
    accounts = []
    for latency_us, outcome in segments:
        account = Account()
        account.add(0, 0, latency_us, Reply(outcome))
        accounts.append(account)
    plan = OpenLoopPlan(SEGMENT_US * len(segments), segment_us=SEGMENT_US)
    evidence = Evidence(loop_cores=0.1, lag_us=0, most_under_way=1, processes=1, wall_us=1)
    return OpenLoopResult(plan, tuple(accounts), evidence)


@pytest.mark.parametrize(
    ("segments", "seconds"),
    [
        ([(P99_US, Outcome.ANSWERED)] * 8, 0.0),
        ([(9 * P99_US, Outcome.ANSWERED)] * 2 + [(P99_US, Outcome.ANSWERED)] * 6, 0.0),
        ([(P99_US, Outcome.ANSWERED)] * 4 + [(0, Outcome.REFUSED)] + [(P99_US, Outcome.ANSWERED)] * 3, 0.75),
        ([(P99_US, Outcome.ANSWERED)] * 7 + [(2 * P99_US, Outcome.ANSWERED)], 1.5),
    ],
)
def test_back_to_normal_is_after_the_last_segment_that_is_not(
    segments: list[tuple[int, Outcome]], seconds: float
) -> None:
    assert back_s(result(*segments), P99_US, 2 * SEGMENT_US) == seconds
