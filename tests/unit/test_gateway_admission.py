from __future__ import annotations

import numpy as np
import pytest

from brim.gateway.admission import Admission, ClassBounds, admissions, class_bound, in_flight_bound
from brim.gateway.limits import RequestLimits, request_limits
from brim.service.schema import BatchTime, Service

TEXT = {
    "name": "text",
    "model": {"onnx": "text.onnx"},
    "inputs": [{"name": "T", "dtype": "BYTES", "shape": [1], "longest_bytes": 1000}],
    "outputs": [{"name": "Y", "dtype": "FP32", "shape": [2]}],
    "slo": {"latency_ms": 200.0, "caller_gives_up_ms": 1000.0},
}


@pytest.mark.parametrize(
    ("slo_us", "bound"),
    [
        (210_000, 400),
        (209_999, 300),
        (110_000, 200),
        (109_999, 100),
        (60_000, 100),
        (59_999, 99),
        (50_000, 75),
        (20_800, 2),
        (20_799, 100),
    ],
)
def test_the_last_one_admitted_is_still_in_time(slo_us: int, bound: int) -> None:
    """A full batch takes 50 ms, a row alone 10.4 ms."""
    time = BatchTime(tau0_us=10_000, alpha_us=400)
    assert in_flight_bound(slo_us=slo_us + 10_800, time=time, max_rows=100, overhead_us=400) == bound


def test_a_bound_holds_with_any_number_of_rows() -> None:
    """Serve what waits, from an idle server on: the first alone, then what has come meanwhile, ever again."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        tau0_us, alpha_us = draw.uniform(0, 50_000), draw.uniform(10, 5_000)
        rows, slo_us = int(draw.integers(1, 101)), draw.uniform(1_000, 1_000_000)
        bound = in_flight_bound(slo_us=slo_us, time=BatchTime(tau0_us=tau0_us, alpha_us=alpha_us), max_rows=rows)
        if rows > 1 and 3 * tau0_us + 3 * alpha_us > slo_us:
            assert bound == rows
            continue
        waiting, executed, longest_us, now_us = [0.0] * (bound - 1), [0.0], 0.0, 0.0
        for _ in range(30):
            now_us += tau0_us + alpha_us * len(executed)
            longest_us = max(longest_us, *(now_us - since_us for since_us in executed))
            waiting += [now_us] * len(executed)  # whoever is answered is followed by another at once
            executed, waiting = waiting[:rows], waiting[rows:]
        assert longest_us <= slo_us * (1 + 1e-9)


def test_without_a_time_a_full_batch_is_let_in() -> None:
    assert in_flight_bound(slo_us=1, time=BatchTime(tau0_us=0, alpha_us=0), max_rows=100) == 100


def test_a_service_without_a_bound_has_a_timeout_only() -> None:
    assert admissions([Service.model_validate(TEXT)]) == {
        "text": Admission(None, 1_000_000, 100, objectives_us=(200_000,))
    }


def test_bounds_come_from_the_service_file() -> None:
    service = Service.model_validate(
        {
            **TEXT,
            "batching": {"in_flight_bound": 400, "batch_time": {"tau0_us": 1_000, "alpha_us": 490}},
            "tenant_rate": {"rate_per_s": 5, "burst": 10},
            "callers": [
                {"name": "nightly", "priority": 7, "share": 0.2, "deadline_ms": 5000},
                {"name": "page", "priority": 1, "share": 0.5},
                {"name": "batch", "priority": 3, "share": 0.3},
            ],
        }
    )
    found = admissions([service])["text"]
    assert found.classes == (
        ClassBounds("page", 1, 400, None),
        ClassBounds("batch", 3, 270, None),
        ClassBounds("nightly", 7, 140, 5_000_000),
    )
    assert (found.in_flight, found.batch_time, found.tenant_rate) == (
        400,
        service.batching.batch_time,
        service.tenant_rate,
    )


@pytest.mark.parametrize(("bound", "bounds"), [(400, [400, 270, 140]), (100, [100, 50, 25]), (150, [150, 75, 37])])
def test_each_class_leaves_a_full_batch_to_those_above_it(bound: int, bounds: list[int]) -> None:
    assert [class_bound(bound, 100, level) for level in range(3)] == bounds
    assert class_bound(1, 100, 5) == 1


def test_each_worker_holds_its_part() -> None:
    lua = Admission(100, None, 10, None, (ClassBounds("a", 1, 100), ClassBounds("b", 2, 1))).for_lua(threads=4)
    assert [one["in_flight"] for one in lua["classes"]] == [25, 1]


def test_a_full_request_of_any_service_fits_in_both_forms() -> None:
    limits = request_limits([Service.model_validate(TEXT)])
    assert limits.body_bytes > 6 * 100 * 1004
    image = {**TEXT, "inputs": [{"name": "I", "dtype": "FP32", "shape": [3, 224, 224]}]}
    assert request_limits([Service.model_validate(image)]).body_bytes == RequestLimits().body_bytes
    assert request_limits([]) == RequestLimits()
