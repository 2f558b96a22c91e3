"""Replicas under an open loop: one that is slow, one that is killed, one that is drained.

All of a round is measured one after the other on the same servers: the healthy fleet first, then one whose first replica takes
several times as long, as the fleet balances it, and beside it by least request and round robin alone, whom nobody tells.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from brim.bench.comparison import Comparison, judged
from brim.bench.conditions import Watch
from brim.bench.fleet_place import MODEL, ROWS, Case, Place
from brim.bench.verdict import Target
from brim.errors import CouldNotTell
from brim.fleet.replica import State
from brim.gateway.envoy import Gateway
from brim.gateway.hosts import hosts, stat
from brim.gateway.replicas import Balance
from brim.measure.accounting import Outcome
from brim.measure.arrivals import offsets, steady
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_processes import Job, run_jobs
from brim.measure.openloop_run import messages
from brim.measure.plan import Distribution, Protocol
from brim.units import US_PER_S, us_to_ms

NAME = "fleet"
PERCENTILE = 99.0
SEGMENT_US = 250_000
LATE_US = 10_000
"""A twentieth of what an answer takes."""
NORMAL_PERCENTILE, NORMAL_RATIO = 90.0, 1.5
"""A segment is normal when nothing in it failed, and this percentile is below so many times the healthy fleet's 99th."""
SETTLED_WITHIN_S, POLL_S = 120.0, 0.05
SEARCH_S, LONGEST_SEARCH_S = 2.0, 120.0
SLOW = Target("p99 with a slow replica / healthy", most=1.5)
HUNG = Target("killed: requests without an answer", most=0)
KILLED = Target("killed: failed / in flight there", most=1)
BACK = Target("killed: seconds until normal", most=5)
DRAINED = Target("drained: errors", most=0)
SLOW_NAME = "r1"
NO_ERROR = frozenset((Outcome.ANSWERED, Outcome.NOT_SENT))


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        rounds: of everything.
        seconds: of an open loop.
        warm_s: of load before the first round, once the fleet has found out who is slow.
        act_after_s: into a loop, a replica is killed or drained.
    """

    rounds: int = 5
    seconds: float = 8.0
    warm_s: float = 5.0
    act_after_s: float = 2.0


DEFAULT_EFFORT = Effort()


def fleet(
    case: Case = Case(),  # noqa: B008 - frozen
    effort: Effort = DEFAULT_EFFORT,
    *,
    cache: Path,
    folder: Path,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Measure all of it.

    Args:
        case: what is served.
        effort: how long to look.
        cache: of the embedded servers.
        folder: run folder, which gets the servers' logs.
        seed: for arrivals.
        on_progress: told what is happening, a short sentence each.

    Raises:
        ServerFailed: a server or a gateway did not start, or ended.
        CouldNotTell: nothing was answered, or a replica did not come back.
    """
    watch = Watch()
    found = _Found()
    with (
        Place(case, cache, folder / "well", say=on_progress) as well,
        Place(case, cache, folder / "slow", {SLOW_NAME: case.slow_factor}, on_progress) as slow,
        slow.untold(Balance.LEAST_REQUEST) as least,
        slow.untold(Balance.ROUND_ROBIN) as robin,
    ):
        loop = _Loop(case, seed)
        found.add("found_slow_after_s", _found_slow_after_s(slow, loop))
        # What had queued on the slow one meanwhile is answered before anything is measured.
        loop.run(slow.gateway, effort.warm_s)
        for number in range(effort.rounds):
            healthy = loop.run(well.gateway, effort.seconds)
            p99_us = _p99_us(healthy)
            found.add("healthy_p99_ms", us_to_ms(p99_us))
            found.add("slow_p99_ms", us_to_ms(_p99_us(loop.run(slow.gateway, effort.seconds))))
            found.add("slow_least_request_p99_ms", us_to_ms(_p99_us(loop.run(least, effort.seconds))))
            found.add("slow_round_robin_p99_ms", us_to_ms(_p99_us(loop.run(robin, effort.seconds))))
            _kill(well, loop, effort, p99_us, found)
            _drain(well, loop, effort, found)
            last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in found.figures.items())
            on_progress(f"round {number + 1} of {effort.rounds}: {last}")
            watch.note()
    conditions = watch.stop()
    figures = found.figures
    ratios = [ours / theirs for ours, theirs in zip(figures["slow_p99_ms"], figures["healthy_p99_ms"], strict=True)]
    values = {
        SLOW: ratios,
        HUNG: figures["killed_hung"],
        KILLED: [
            failed / max(1.0, there)
            for failed, there in zip(figures["killed_failed"], figures["killed_in_flight"], strict=True)
        ],
        BACK: figures["killed_back_s"],
        DRAINED: figures["drained_errors"],
    }
    return Comparison(
        NAME,
        tuple(judged(target, measured, conditions) for target, measured in values.items()),
        figures,
        conditions,
        {
            "findings": loop.limits,
            "case": asdict(case),
            "rate_per_s": case.rate_per_s,
            "seed": seed,
            "effort": asdict(effort),
        },
    )


@dataclass
class _Found:
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(float(value))


class _Loop:
    """Open loops of one rate, none with the arrivals of another."""

    def __init__(self, case: Case, seed: int) -> None:
        self._rate_per_s, self._seed = case.rate_per_s, seed
        self.limits: list[str] = []
        """In what ways the generator set the figures."""

    def run(self, gateway: Gateway, seconds: float, act: Callable[[], None] | None = None) -> OpenLoopResult:
        """Send for so long, and meanwhile do something."""
        duration_us = round(seconds * US_PER_S)
        self._seed += 1
        due = list(offsets(steady(self._rate_per_s, duration_us), Distribution.POISSON, seed=self._seed))
        job = Job(
            gateway.endpoint,
            Protocol.HTTP,
            messages(gateway.endpoint, Protocol.HTTP, MODEL, ROWS),
            due,
            OpenLoopPlan(duration_us, segment_us=SEGMENT_US, late_us=LATE_US),
        )
        acting = threading.Thread(target=act) if act is not None else None
        if acting is not None:
            acting.start()
        (result,) = run_jobs([job])
        if acting is not None:
            acting.join()
        self.limits += (f"the generator: {words}" for words in result.limits)
        return result


def _found_slow_after_s(place: Place, loop: _Loop) -> float:
    """Send until the fleet has found out which replica is slow; how long that took."""
    began_s = time.monotonic()
    while not any(replica.slow for replica in place.fleet.replicas):
        if time.monotonic() - began_s > LONGEST_SEARCH_S:
            raise CouldNotTell(
                f"no replica was found slow within {LONGEST_SEARCH_S:g} s",
                hint="the machine is so busy that all of them are; see the servers' logs",
            )
        loop.run(place.gateway, SEARCH_S)
    return time.monotonic() - began_s


def _p99_us(result: OpenLoopResult) -> int:
    found = result.whole.since_due.percentile_us(PERCENTILE)
    if found is None:
        raise CouldNotTell(f"nothing was answered: {result.whole.messages}", hint="see the servers' logs")
    return found


def _errors(result: OpenLoopResult) -> int:
    return sum(count for outcome, count in result.whole.counts.items() if outcome not in NO_ERROR)


def _kill(place: Place, loop: _Loop, effort: Effort, p99_us: int, found: _Found) -> None:
    """Kill the oldest replica that serves."""
    victim = place.fleet.first
    in_flight = 0

    def kill() -> None:
        nonlocal in_flight
        _under_load(place, effort.act_after_s)
        in_flight = hosts(place.gateway.admin)[victim.server.endpoint.http].under_way
        os.kill(victim.server.pid, signal.SIGKILL)

    cluster = f"cluster.triton/{MODEL}"
    retried = stat(place.gateway.admin, f"{cluster}.upstream_rq_retry")
    result = loop.run(place.gateway, effort.seconds, kill)
    found.add("killed_in_flight", in_flight)
    found.add("killed_failed", _errors(result))
    found.add("killed_hung", result.whole.counts[Outcome.TIMED_OUT])
    found.add("killed_retried", stat(place.gateway.admin, f"{cluster}.upstream_rq_retry") - retried)
    found.add("killed_back_s", back_s(result, p99_us, round(effort.act_after_s * US_PER_S)))
    _settled(place, place.case.replicas)


def _drain(place: Place, loop: _Loop, effort: Effort, found: _Found) -> None:
    """Drain the same one, and put another in its place."""
    victim = place.fleet.first.name

    def drain() -> None:
        _under_load(place, effort.act_after_s)
        place.fleet.drain(victim, deadline_s=60.0)

    found.add("drained_errors", _errors(loop.run(place.gateway, effort.seconds, drain)))
    _settled(place, place.case.replicas - 1)
    place.fleet.scale(place.case.replicas, deadline_s=60.0)
    _settled(place, place.case.replicas)


def back_s(result: OpenLoopResult, p99_us: int, acted_us: int) -> float:
    """From the act to the end of the last segment that was not normal; 0 when all were."""
    last_us = 0
    for number, account in enumerate(result.accounts):
        begins_us = number * SEGMENT_US
        failed = any(count for outcome, count in account.counts.items() if outcome not in NO_ERROR)
        seen_us = account.since_due.percentile_us(NORMAL_PERCENTILE) or 0
        if begins_us + SEGMENT_US > acted_us and (failed or seen_us > NORMAL_RATIO * p99_us):
            last_us = begins_us + SEGMENT_US - acted_us
    return last_us / US_PER_S


def _under_load(place: Place, seconds: float) -> None:
    """Until the load has lasted so long."""
    total = f"cluster.triton/{MODEL}.upstream_rq_total"
    before, give_up_s = stat(place.gateway.admin, total), time.monotonic() + SETTLED_WITHIN_S
    while stat(place.gateway.admin, total) == before and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    time.sleep(seconds)


def _settled(place: Place, count: int) -> None:
    give_up_s = time.monotonic() + SETTLED_WITHIN_S
    while not _serving(place, count):
        if time.monotonic() > give_up_s:
            states = {replica.name: replica.state.value for replica in place.fleet.replicas}
            raise CouldNotTell(f"{count} replicas do not serve: {states}", hint="see the servers' logs")
        time.sleep(POLL_S)


def _serving(place: Place, count: int) -> bool:
    states: Sequence[State] = [replica.state for replica in place.fleet.replicas]
    return len(states) == count and set(states) == {State.SERVING}
