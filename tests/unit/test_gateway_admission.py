from __future__ import annotations

import pytest

from brim.gateway.admission import Admission, admissions, in_flight_bound
from brim.gateway.limits import RequestLimits, request_limits
from brim.service.schema import Service

TEXT = {
    "name": "text",
    "model": {"onnx": "text.onnx"},
    "inputs": [{"name": "T", "dtype": "BYTES", "shape": [1], "longest_bytes": 1000}],
    "outputs": [{"name": "Y", "dtype": "FP32", "shape": [2]}],
    "slo": {"latency_ms": 200.0, "caller_gives_up_ms": 1000.0},
}


@pytest.mark.parametrize(
    ("slo_us", "full_batch_us", "bound"), [(200_000, 50_000, 400), (199_999, 50_000, 300), (10_000, 50_000, 100)]
)
def test_the_last_one_admitted_is_still_in_time(slo_us: int, full_batch_us: int, bound: int) -> None:
    assert in_flight_bound(slo_us=slo_us, full_batch_us=full_batch_us, max_rows=100) == bound


def test_overhead_is_part_of_the_objective() -> None:
    assert in_flight_bound(slo_us=200_000, full_batch_us=50_000, max_rows=100, overhead_us=1) == 300


def test_a_service_without_a_batch_time_has_a_timeout_only() -> None:
    service = Service.model_validate(TEXT)
    assert admissions([service]) == {"text": Admission(None, 1_000_000)}
    assert admissions([service], {"text": 20_000}) == {"text": Admission(1000, 1_000_000)}


def test_a_full_request_of_any_service_fits_in_both_forms() -> None:
    limits = request_limits([Service.model_validate(TEXT)])
    assert limits.body_bytes > 6 * 100 * 1004
    image = {**TEXT, "inputs": [{"name": "I", "dtype": "FP32", "shape": [3, 224, 224]}]}
    assert request_limits([Service.model_validate(image)]).body_bytes == RequestLimits().body_bytes
    assert request_limits([]) == RequestLimits()
