"""Properties of the simulator over arbitrary configurations, machines and traffic.

Hypothesis draws the seed of each example; the example is built from that by chance with the weights written here, so that
crowds, full queues and late requests are common.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.batcher.arrivals import ClosedLoop, OpenLoop, Traffic
from brim.batcher.batch_time import AffineBatchTime
from brim.batcher.machine import Machine
from brim.batcher.queue import QueuePolicy, TimeoutAction
from brim.batcher.replay import Replay
from brim.batcher.result import End, Result
from brim.batcher.rule import NEVER
from brim.batcher.settings import Settings
from brim.batcher.simulate import simulate

MS = 1_000
MOST = 60
seeds = st.integers(0, 2**48).map(Random)


def plain_settings(chance: Random) -> Settings:
    max_rows = chance.randint(1, 8)
    return Settings(
        max_rows,
        preferred=tuple(chance.sample(range(1, max_rows + 1), chance.randint(0, min(3, max_rows)))),
        delay_us=chance.choice([0, 0, 1, 3 * MS, 40 * MS, 700 * MS]),
        instances=chance.randint(1, 3),
    )


def policy(chance: Random) -> QueuePolicy:
    return QueuePolicy(
        max_queue_size=chance.choice([0, 0, 1, 5]),
        default_timeout_us=chance.choice([0, 0, 2 * MS, 30 * MS, 900 * MS]),
        allow_timeout_override=chance.random() < 0.5,
        timeout_action=chance.choice(list(TimeoutAction)),
    )


def any_settings(chance: Random) -> Settings:
    levels = chance.choice([0, 0, 1, 3])
    return replace(
        plain_settings(chance),
        batches=chance.random() < 0.9,
        priority_levels=levels,
        default_priority_level=chance.randint(1, levels) if levels else 0,
        default_policy=policy(chance),
        level_policies={level: policy(chance) for level in range(1, levels + 1) if chance.random() < 0.5},
    )


def plain_machine(chance: Random) -> Machine:
    return Machine(
        AffineBatchTime(chance.choice([1, 5 * MS, 600 * MS]), chance.choice([0, 100, 2 * MS])),
        jitter=chance.choice([0, 0, 0.5]),
        prepare_us=chance.choice([0, 0, MS]),
        prepare_row_us=chance.choice([0, 0, 50]),
        serialised=chance.random() < 0.5,
        overhead_us=chance.choice([0, 0, 300]),
        request_us=chance.choice([0, 0, 80]),
    )


def any_machine(chance: Random) -> Machine:
    return replace(
        plain_machine(chance), release_row_us=chance.choice([0, 0, 500]), lost_wakeup=chance.choice([0, 0.5, 1])
    )


def times(chance: Random) -> list[int]:
    """Crowds and pauses, in a measure that differs between examples."""
    gaps = [0, 1, 90, MS, 4 * MS, 40 * MS, 60 * MS, 1_300 * MS]
    weights = [chance.random() ** 4 for _ in gaps]
    return list(accumulate(chance.choices(gaps, weights, k=chance.randint(1, MOST))))


def closed_loop(chance: Random, think_us: int = 0) -> ClosedLoop:
    return ClosedLoop(chance.randint(1, 20), chance.randint(1, MOST), think_us)


def plain_traffic(chance: Random) -> Traffic:
    if chance.random() < 0.3:
        return closed_loop(chance)
    return OpenLoop(times(chance), held_until_us=chance.choice([None, None, 0, 20 * MS]))


def any_traffic(chance: Random, max_rows: int) -> Traffic:
    if chance.random() < 0.2:
        return closed_loop(chance, chance.choice([0, 5 * MS]))
    sent = times(chance)

    def column(values: list[int]) -> list[int] | None:
        return [chance.choice(values) for _ in sent] if chance.random() < 0.5 else None

    patience = column([0, MS, 50 * MS, 1 << 61])
    return OpenLoop(
        sent,
        rows=column(list(range(1, max_rows + 1))),
        shapes=column([0, 0, 0, 1]),
        priorities=column([0, 1, 2, 3, 4]),
        timeouts_us=column([0, MS, 20 * MS]),
        cancelled_us=patience and [at + wait for at, wait in zip(sent, patience, strict=True)],
        held_until_us=chance.choice([None, None, 10 * MS]),
    )


def same(one: Result, other: Result) -> None:
    for name in ("sent_us", "ended_us", "ends"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    for name in ("taken_us", "ended_us", "compute_us", "rows", "requests", "reasons"):
        np.testing.assert_array_equal(getattr(one.batches, name), getattr(other.batches, name), name)


@settings(max_examples=1000, deadline=None)
@given(seeds)
def test_the_short_cut_gives_what_the_general_way_gives(chance: Random) -> None:
    chosen, machine, traffic = plain_settings(chance), plain_machine(chance), plain_traffic(chance)
    chosen = replace(chosen, batches=chance.random() < 0.95)
    seed = chance.randint(0, 9)
    same(simulate(chosen, machine, traffic, seed=seed), simulate(chosen, machine, traffic, seed=seed, general=True))


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_a_batcher_that_is_fed_as_time_goes_on_does_what_one_does_that_knows_all(chance: Random) -> None:
    chosen, machine = plain_settings(chance), replace(plain_machine(chance), request_us=0)
    sent_us = times(chance)
    known = simulate(chosen, machine, OpenLoop(sent_us), seed=3, general=True)
    jitter, lost = (np.random.default_rng(child) for child in np.random.SeedSequence(3).spawn(2))
    ended: dict[int, int] = {}
    fed = Replay(chosen, machine, None, machine.execution(chosen.max_rows, jitter), lost, on_end=ended.__setitem__)
    for place, at_us in enumerate(sent_us):
        if not chance.randrange(3) or at_us != sent_us[place - 1]:
            fed.advance(at_us)
        fed.send(at_us)
        assert fed.record.in_flight == place + 1 - len(ended) and 0 <= fed.waiting <= fed.record.in_flight
    fed.advance(NEVER)
    same(fed.record.result(chosen.instances), known)
    assert [ended[place] for place in range(len(sent_us))] == known.ended_us.tolist()
    assert fed.waiting == fed.record.in_flight == 0


@settings(max_examples=1000, deadline=None)
@given(seeds)
def test_every_request_ends_once_and_no_batch_is_too_large(chance: Random) -> None:
    chosen = any_settings(chance)
    machine, traffic = any_machine(chance), any_traffic(chance, chosen.max_rows)
    result = simulate(chosen, machine, traffic, seed=1)
    offered = len(traffic.sent_us) if isinstance(traffic, OpenLoop) else traffic.requests
    assert result.offered == offered == sum(result.count(end) for end in End)
    assert np.isin(result.ends, list(End)).all()
    assert (result.ended_us >= result.sent_us).all()
    assert (result.batches.rows >= 1).all() and (result.batches.rows <= chosen.max_rows).all()
    assert int(result.batches.requests.sum()) == result.count(End.ANSWERED)
    assert sum(result.launches().values()) == len(result.batches)
    # The same again, by the same seed.
    same(result, simulate(chosen, machine, traffic, seed=1))


@settings(max_examples=500, deadline=None)
@given(seeds)
def test_first_in_first_out_within_a_level(chance: Random) -> None:
    """Without expiry requests of one level are executed in the order in which they came, whatever levels do among them."""
    levels = chance.choice([0, 3])
    chosen = replace(plain_settings(chance), instances=1, priority_levels=levels, default_priority_level=levels and 2)
    sent = times(chance)
    priorities = [chance.randint(1, 3) for _ in sent]
    result = simulate(chosen, any_machine(chance), OpenLoop(sent, priorities=priorities), seed=2)
    for level in {1, 2, 3}:
        ended = [at for at, its in zip(result.ended_us.tolist(), priorities, strict=True) if not levels or its == level]
        assert all(one <= other for one, other in pairwise(ended))


@settings(max_examples=500, deadline=None)
@given(seeds)
def test_with_delay_0_no_instance_idles_while_something_waits(chance: Random) -> None:
    """The time in which fewer than all instances are taken is time in which nothing waits, unless a wake-up is lost."""
    chosen = replace(any_settings(chance), delay_us=0, batches=True)
    machine = replace(any_machine(chance), lost_wakeup=0, release_row_us=0, request_us=0, overhead_us=0)
    sent = times(chance)
    result = simulate(chosen, machine, OpenLoop(sent), seed=3)
    batches = result.batches
    answered = result.ends == End.ANSWERED
    # Every request came in when some batch was running on every instance, or was taken at once.
    for at, ended in zip(result.sent_us[answered].tolist(), result.ended_us[answered].tolist(), strict=True):
        taken = int(batches.taken_us[(batches.ended_us == ended) & (batches.taken_us >= at)].min())
        for moment in {at, taken - 1} - {taken} if taken > at else set():
            busy = int(((batches.taken_us <= moment) & (batches.ended_us > moment)).sum())
            assert busy == chosen.instances, (at, moment, taken)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_more_load_never_has_fewer_answers(chance: Random) -> None:
    """One row a batch, a bound, a constant time, no stall: what comes on top of a traffic takes no answer from the sum."""
    chosen = Settings(1, default_policy=QueuePolicy(max_queue_size=chance.randint(1, 5)))
    machine = Machine(AffineBatchTime(chance.choice([90, 5 * MS, 600 * MS]), 0), lost_wakeup=0)
    sent = times(chance)
    fewer = [at for at in sent if chance.random() < 0.7] or sent[:1]
    answered = [simulate(chosen, machine, OpenLoop(load)).count(End.ANSWERED) for load in (fewer, sent)]
    assert answered[0] <= answered[1]
