"""Levels, bounds, timeouts and cancellation of the queue."""

from __future__ import annotations

import pytest

from brim.batcher.queue import Queue, QueuePolicy, TimeoutAction
from brim.batcher.rule import NEVER


def enter(queue: Queue, index: int, *, level: int = 0, now_us: int = 0, asks_us: int = 0, goes_us: int = NEVER) -> bool:
    return queue.enter(
        index, rows=1, shape=None, level=level, now_us=now_us, asked_timeout_us=asks_us, cancelled_us=goes_us
    )


def order(queue: Queue, now_us: int = 0) -> list[int]:
    """Numbers in the order of a whole scan; the queue is emptied."""
    count = len(list(queue.scan(now_us)))
    return [request.index for request in queue.take(count)]


def test_lower_levels_first_and_first_in_first_out_inside_a_level() -> None:
    queue = Queue(QueuePolicy(), {})
    for index, level in enumerate([3, 1, 2, 1, 3]):
        assert enter(queue, index, level=level)
    assert order(queue) == [1, 3, 2, 0, 4]


def test_the_bound_counts_the_requests_of_one_level() -> None:
    queue = Queue(QueuePolicy(max_queue_size=2), {2: QueuePolicy(max_queue_size=1)})
    assert [enter(queue, index, level=1) for index in range(3)] == [True, True, False]
    assert [enter(queue, index, level=2) for index in range(3, 5)] == [True, False]
    assert len(queue) == 3


def test_expired_requests_keep_their_place_in_the_bound_until_a_scan() -> None:
    queue = Queue(QueuePolicy(max_queue_size=1, default_timeout_us=10), {})
    assert enter(queue, 0)
    assert not enter(queue, 1, now_us=100)
    assert order(queue, now_us=100) == []
    assert [request.index for request in queue.gone()[0]] == [0]
    assert enter(queue, 2, now_us=100)


@pytest.mark.parametrize(("now_us", "left"), [(9, [0]), (10, [])])
def test_a_timeout_ends_at_its_time(now_us: int, left: list[int]) -> None:
    queue = Queue(QueuePolicy(default_timeout_us=10), {})
    enter(queue, 0)
    assert order(queue, now_us) == left


def test_delay_puts_the_late_behind_those_in_time() -> None:
    queue = Queue(QueuePolicy(default_timeout_us=10, timeout_action=TimeoutAction.DELAY), {})
    for index, now_us in enumerate([0, 1, 20, 21]):
        enter(queue, index, now_us=now_us)
    assert order(queue, now_us=15) == [2, 3, 0, 1]
    assert queue.gone() == ([], [])


@pytest.mark.parametrize(
    ("default_us", "override", "asks_us", "timeout_us"),
    [
        (100, True, 40, 40),
        (100, True, 400, 100),
        (100, True, 0, 100),
        (100, False, 40, 100),
        (0, True, 40, 0),
    ],
)
def test_a_request_can_only_shorten_a_timeout(default_us: int, override: bool, asks_us: int, timeout_us: int) -> None:
    policy = QueuePolicy(default_timeout_us=default_us, allow_timeout_override=override)
    assert policy.timeout_us(asks_us) == timeout_us


def test_a_cancelled_request_is_dropped_by_the_scan_that_meets_it() -> None:
    queue = Queue(QueuePolicy(), {})
    for index, goes_us in enumerate([NEVER, 5, NEVER]):
        enter(queue, index, goes_us=goes_us)
    assert len(queue) == 3
    assert order(queue, now_us=5) == [0, 2]
    assert [request.index for request in queue.gone()[1]] == [1]


def test_a_scan_that_stops_early_leaves_those_behind_alone() -> None:
    queue = Queue(QueuePolicy(), {})
    for index in range(3):
        enter(queue, index, goes_us=5)
    next(queue.scan(0))
    assert queue.gone() == ([], []) and len(queue) == 3


def test_the_half_second_tick_rejects_wherever_a_request_stands() -> None:
    queue = Queue(QueuePolicy(default_timeout_us=100, allow_timeout_override=True), {})
    for index, asks_us in enumerate([0, 10, 0]):
        enter(queue, index, asks_us=asks_us)
    queue.reject_expired(50)
    assert [request.index for request in queue.gone()[0]] == [1]
    assert order(queue, 50) == [0, 2]


def test_taking_more_than_there_is_is_refused() -> None:
    with pytest.raises(IndexError):
        Queue(QueuePolicy(), {}).take(1)
