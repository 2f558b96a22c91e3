"""From rates and a shape, or a trace, to the runs of the open-loop driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.measure.openloop import OpenLoopPlan
from brim.measure.schedule import SEGMENTS, Arrivals, Schedule, schedules, trace_schedule

S = 1_000_000


def trace(path: Path, *offsets_us: int) -> Path:
    path.write_text("".join(json.dumps({"offset_us": at_us}) + "\n" for at_us in offsets_us), encoding="utf-8")
    return path


def segments(one: Schedule) -> int:
    return OpenLoopPlan(one.duration_us, segment_us=one.segment_us).segments


@pytest.mark.parametrize("arrivals", [Arrivals.POISSON, Arrivals.CONSTANT, Arrivals.BURSTY])
def test_a_rate_is_a_run(arrivals: Arrivals) -> None:
    found = schedules(arrivals, [50, 200, 50], 2 * S, seed=3)
    assert [(one.rates_per_s, one.rate_per_s) for one in found] == [((50,), 50), ((200,), 200)]
    for one in found:
        assert list(one.due_us) == sorted(one.due_us) and one.due_us[-1] < one.duration_us == 2 * S
        assert segments(one) == SEGMENTS
        assert {one.planned_per_s(number) for number in range(SEGMENTS)} == {one.rate_per_s}
    assert found == schedules(arrivals, [50, 200], 2 * S, seed=3)
    other = schedules(arrivals, [50], 2 * S, seed=4)[0]
    assert (other.digest == found[0].digest) == (arrivals is Arrivals.CONSTANT)
    assert found[0].digest != found[1].digest


def test_constant_gaps_are_exact() -> None:
    (one,) = schedules(Arrivals.CONSTANT, [4], S, seed=0)
    assert list(one.due_us) == [0, 250_000, 500_000, 750_000]
    assert one.in_words == "constant 4/s"


def test_a_ramp_is_one_run_through_both_rates() -> None:
    (one,) = schedules(Arrivals.RAMP, [0, 400], 12 * S, seed=1)
    assert (one.rates_per_s, one.rate_per_s, one.in_words) == ((0, 400), 200, "ramp 0 to 400/s")
    planned = [one.planned_per_s(number) for number in range(segments(one))]
    assert planned == pytest.approx([400 * (number + 0.5) / 12 for number in range(12)])
    assert sum(at_us < 6 * S for at_us in one.due_us) < len(one.due_us) / 2
    for rates in ([], [1], [1, 2, 3]):
        with pytest.raises(InputError, match=f"a ramp with {len(rates)} rates"):
            schedules(Arrivals.RAMP, rates, S, seed=0)


def test_each_step_is_a_segment() -> None:
    (one,) = schedules(Arrivals.STEPS, [100, 300, 100], 3 * S, seed=1)
    assert (segments(one), one.segment_us, one.duration_us) == (3, S, 3 * S)
    assert [one.planned_per_s(number) for number in range(3)] == [100, 300, 100]
    assert one.rate_per_s == pytest.approx(500 / 3)


def test_a_trace_is_repeated_as_it_was(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.jsonl", 0, 1_000, 1_000, 3_000)
    one = trace_schedule(path)
    assert list(one.due_us) == [0, 1_000, 1_000, 3_000]
    assert (one.duration_us, one.rate_per_s) == (4_000, 1_000), "the last arrival and one mean gap"
    cut = trace_schedule(path, 1_001)
    assert (list(cut.due_us), cut.duration_us) == ([0, 1_000, 1_000], 1_001)
    counted = sum(cut.planned_per_s(number) * min(84, 1_001 - 84 * number) / S for number in range(segments(cut)))
    assert counted == pytest.approx(3)
    (lone,) = [trace_schedule(trace(tmp_path / "lone", 5))]
    assert (list(lone.due_us), lone.duration_us) == ([5], S + 5)
    with pytest.raises(InputError, match="no arrival is due before"):
        trace_schedule(trace(tmp_path / "late", 5_000), 5_000)
    with pytest.raises(InputError, match="cannot be read"):
        trace_schedule(tmp_path / "none")


@pytest.mark.parametrize(
    ("arrivals", "rates", "length_us", "words"),
    [
        (Arrivals.POISSON, [0.0], S, "nothing is due"),
        (Arrivals.CONSTANT, [-1.0], S, "-1 a second"),
        (Arrivals.BURSTY, [1e12], S, "arrivals are expected"),
        (Arrivals.POISSON, [1.0], 0, "duration_us 0"),
        (Arrivals.STEPS, [], S, "no stretch of time"),
        (Arrivals.STEPS, [5.0, 5.0, 5.0], 2, "duration_us 0"),
        (Arrivals.RAMP, [0.0, 0.0], S, "nothing is due"),
        (Arrivals.POISSON, [0.001], 10**15, "at most a day"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(
    arrivals: Arrivals, rates: list[float], length_us: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        schedules(arrivals, rates, length_us, seed=0)
