"""Every clause of the launch rule, on queues of a few requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brim.batcher.rule import NEVER, Launch, LaunchRule, Reason, Sleep, Waiting


def rule(*preferred: int, delay_us: int = 0, max_rows: int = 100) -> LaunchRule:
    return LaunchRule(max_rows, preferred or (max_rows,), delay_us)


def singles(count: int, entered_us: int = 0) -> list[Waiting]:
    return [Waiting(1, None, entered_us, NEVER)] * count


def rows(*sizes: int) -> list[Waiting]:
    return [Waiting(size, None, 0, NEVER) for size in sizes]


def test_delay_0_launches_everything_that_waits() -> None:
    assert rule().decide(singles(7), 0) == Launch(7, 7, Reason.DRAINED, False)


def test_a_full_batch_is_closed_and_no_more_is_read() -> None:
    read = []

    def queue() -> Iterator[Waiting]:
        for waiting in singles(150):
            read.append(waiting)
            yield waiting

    assert rule().decide(queue(), 0) == Launch(100, 100, Reason.FULL, True)
    assert len(read) == 101


@pytest.mark.parametrize(("count", "size"), [(32, 32), (63, 32), (64, 64), (150, 64)])
def test_the_largest_preferred_size_that_waits_is_launched(count: int, size: int) -> None:
    assert rule(32, 64).decide(singles(count), 0) == Launch(size, size, Reason.PREFERRED, True)


def test_a_preferred_size_goes_though_delay_is_left_and_stays_open() -> None:
    assert rule(32, 64, delay_us=1000).decide(singles(40), 0) == Launch(32, 32, Reason.PREFERRED, False)


def test_once_the_delay_is_exceeded_preferred_sizes_do_not_count() -> None:
    assert rule(32, 64, delay_us=1000).decide(singles(40), 1000) == Launch(40, 40, Reason.DELAY, False)
    assert rule(32, 64, delay_us=1000).decide(singles(70), 1000) == Launch(70, 70, Reason.DELAY, True)
    assert rule(32, 64, delay_us=1000).decide(singles(150), 1000) == Launch(100, 100, Reason.FULL, True)


def test_too_few_sleep_until_the_delay_of_the_oldest_or_the_next_preferred_size() -> None:
    queue = [*singles(1, entered_us=300), *singles(9, entered_us=100)]
    assert rule(32, 64, delay_us=1000).decide(queue, 400) == Sleep(1100, 32)


def test_a_queue_timeout_ends_the_sleep_earlier() -> None:
    queue = [Waiting(1, None, 0, 700), *singles(3)]
    assert rule(32, delay_us=1000).decide(queue, 0) == Sleep(700, 32)


@pytest.mark.parametrize("delay_us", [0, 1000])
def test_the_size_before_a_jump_past_the_largest_preferred_size_counts(delay_us: int) -> None:
    assert rule(4, delay_us=delay_us).decide(rows(3, 3), 0) == Launch(1, 3, Reason.PREFERRED, True)


def test_a_remembered_size_beats_a_jump() -> None:
    assert rule(2, 4).decide(rows(2, 1, 3), 0) == Launch(1, 2, Reason.PREFERRED, True)


def test_rows_are_never_split() -> None:
    assert rule(max_rows=8).decide(rows(5, 2, 3), 0) == Launch(2, 7, Reason.PREFERRED, True)
    assert rule(max_rows=8).decide(rows(5, 3, 3), 0) == Launch(2, 8, Reason.FULL, True)


def test_one_request_above_every_preferred_size_goes_alone() -> None:
    assert rule(2, delay_us=1000).decide(rows(5), 0) == Launch(1, 5, Reason.PREFERRED, True)


def test_another_shape_sends_what_is_before_it() -> None:
    queue = [Waiting(1, shape, 0, NEVER) for shape in "AAB"]
    assert rule(delay_us=1000).decide(queue, 0) == Launch(2, 2, Reason.SHAPE, True, sealed=True)


def test_another_shape_than_the_open_payload_has_to_wait_for_its_end() -> None:
    queue = [Waiting(1, "B", 0, NEVER)]
    assert rule().decide(queue, 0, open_rows=3, open_shape="A") == Launch(0, 0, None, False, sealed=True)


def test_an_open_payload_grows_to_the_next_preferred_size() -> None:
    assert rule(32, 64).decide(singles(20), 0, open_rows=22) == Launch(10, 10, Reason.PREFERRED, True)
    assert rule().decide(singles(20), 0, open_rows=22) == Launch(20, 20, Reason.DRAINED, False)


def test_with_a_delay_an_open_payload_of_no_preferred_size_takes_what_waits() -> None:
    decision = rule(32, delay_us=1000).decide(singles(5), 0, open_rows=10)
    assert decision == Launch(5, 5, None, False, wanted=22)


def test_with_a_delay_an_open_payload_of_a_preferred_size_waits_for_the_next() -> None:
    assert rule(32, 64, delay_us=1000).decide(singles(5), 0, open_rows=32) == Sleep(1000, 32)


def test_a_payload_of_the_largest_preferred_size_takes_one_more_and_closes() -> None:
    """That is where the 65 of the measured batches 65, 65, 20 comes from."""
    assert rule(32, 64, delay_us=1000).decide(singles(86), 0, open_rows=64) == Launch(1, 1, Reason.PREFERRED, True)
    assert rule(32, 64, delay_us=1000).decide(singles(1), 0, open_rows=64) == Launch(1, 1, Reason.PREFERRED, True)


def test_a_full_open_payload_takes_nothing_and_closes() -> None:
    assert rule(delay_us=1000).decide(singles(3), 0, open_rows=100) == Launch(0, 0, None, True)


def test_an_empty_scan_launches_nothing() -> None:
    assert rule(delay_us=1000).decide([], 5000) == Launch(0, 0, None, False)
