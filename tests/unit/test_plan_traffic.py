"""Traffic of a fleet: its file with every fault at once, its shapes, and how many requests come when."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from brim.errors import InputError
from brim.plan.shapes import Shape, shaped
from brim.plan.sizing import growth_per_s2, warm_spares
from brim.plan.traffic import Loss, Slow, Traffic, parse_traffic, read_traffic

GOOD = {
    "points": [{"at_s": 0, "rate_per_s": 200}, {"at_s": 600, "rate_per_s": 800.5}],
    "losses": [{"at_s": 300, "replicas": 2}],
    "slow": [{"at_s": 60, "until_s": 120, "replicas": 1, "factor": 4}],
}


def codes(document: object) -> list[str]:
    found, findings = parse_traffic(json.dumps(document).encode(), "t.json")
    assert (found is None) == bool(findings)
    return [finding.code for finding in findings]


def test_a_file_says_rates_losses_and_slow_replicas(tmp_path: Path) -> None:
    path = tmp_path / "evening.json"
    path.write_text(json.dumps(GOOD))
    assert read_traffic(path) == Traffic(
        "evening", (0.0, 600.0), (200.0, 800.5), (Loss(300.0, 2),), (Slow(60.0, 120.0, 1, 4.0),)
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"points": []}, ["TRACE001"]),
        ({"points": 5}, ["TRACE001"]),
        ({"points": [{"at_s": 0, "rate_per_s": 1}]}, ["TRACE001"]),
        ({"points": [{"at_s": 0, "rate_per_s": 1}, {"at_s": 0, "rate_per_s": 2}], "losses": [], "slow": []}, ["TRACE002"]),
        ({"points": [{"at_s": 1, "rate_per_s": 1}, {"at_s": 700, "rate_per_s": 2}]}, ["TRACE002"]),
        ({"points": [{"at_s": 0, "rate_per_s": 1}, {"at_s": 900, "rate_per_s": 1}, {"at_s": 800, "rate_per_s": 1}]}, ["TRACE002"]),
        ({"points": [{"at_s": 0, "rate_per_s": 0}, {"at_s": 600, "rate_per_s": 0}]}, ["TRACE005"]),
        ({"losses": [{"at_s": 600, "replicas": 1}]}, ["TRACE003"]),
        ({"losses": [{"at_s": 5, "replicas": 0}]}, ["TRACE003"]),
        ({"losses": [{"at_s": 5, "replicas": 1.5}]}, ["TRACE003"]),
        ({"slow": [{"at_s": 5, "until_s": 5, "replicas": 1, "factor": 2}]}, ["TRACE004"]),
        ({"slow": [{"at_s": 5, "until_s": 9, "replicas": 1, "factor": 0.5}]}, ["TRACE004"]),
        ({"slow": GOOD["slow"] * 5}, ["TRACE001"]),
    ],
)  # fmt: skip
def test_each_fault_has_its_code(change: dict[str, object], expected: list[str]) -> None:
    assert codes(GOOD) == []
    assert codes({**GOOD, **change}) == expected


@pytest.mark.parametrize("value", [None, "5", True, -1, 1e300, [], {}])
@pytest.mark.parametrize("place", ["points", "losses", "slow"])
def test_what_is_no_number_in_range_is_named_with_its_place(place: str, value: object) -> None:
    for key in GOOD[place][0]:
        document = json.loads(json.dumps(GOOD))
        document[place][0][key] = value
        _, findings = parse_traffic(json.dumps(document).encode(), "t.json")
        assert any(f"{place}[0].{key}" in finding.message for finding in findings), findings


def test_all_faults_come_at_once() -> None:
    document = {
        "points": [{"at_s": "now", "rate_per_s": -1}, 7, {"at_s": 5}],
        "losses": [{"at_s": 1, "replicas": "two"}],
        "slow": 3,
    }
    assert codes(document) == ["TRACE002"] * 4 + ["TRACE003", "TRACE001"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"points": NaN}', b"[" * 100_000])
def test_what_is_no_trace_at_all_is_said(data: bytes) -> None:
    found, findings = parse_traffic(data, "t.json")
    assert found is None and [finding.code for finding in findings] == ["TRACE001"]


def test_requests_are_the_area_below_the_rate() -> None:
    jump = Traffic("jump", (0, 10, 10, 20), (100, 100, 300, 0))
    assert jump.requests == pytest.approx(1000 + 1500)
    edges = np.array([0, 5, 10, 15, 20, 25.0])
    assert jump.expected(edges) == pytest.approx([500, 500, 1125, 375, 0])
    drawn = jump.arrivals(edges, np.random.default_rng(1))
    assert (drawn == jump.arrivals(edges, np.random.default_rng(1))).all()
    assert np.abs(drawn - jump.expected(edges)).max() <= 6 * np.sqrt(1125)


@pytest.mark.parametrize("shape", list(Shape))
def test_a_shape_stays_between_its_rates(shape: Shape) -> None:
    traffic = shaped(shape, 100, 900, 3600, peak_replicas=6)
    assert traffic.duration_s == 3600 and list(traffic.at_s) == sorted(traffic.at_s)
    assert min(traffic.rate_per_s) >= 100 and traffic.peak_per_s == pytest.approx(100 if shape is Shape.STEADY else 900)
    assert sum(loss.replicas for loss in traffic.losses) == (2 if shape is Shape.REPLICA_LOSS else 0)
    assert len(traffic.slow) == (shape is Shape.SLOW_REPLICA)


def test_a_shape_that_cannot_be_names_all_that_is_wrong() -> None:
    with pytest.raises(InputError) as refused:
        shaped(Shape.DIURNAL, 0, 2e9, 0)
    assert all(word in refused.value.message for word in ("rate", "peak", "duration"))


def test_spares_stand_the_steepest_growth_while_a_replica_starts_and_the_largest_loss() -> None:
    climb = Traffic("climb", (0, 100, 160, 400), (0, 0, 600, 600))
    assert growth_per_s2(climb, 30) == pytest.approx(10)
    assert growth_per_s2(climb, 120) == pytest.approx(5)
    assert growth_per_s2(Traffic("jump", (0, 50, 50, 100), (10, 10, 310, 310)), 30) == pytest.approx(10)
    assert growth_per_s2(Traffic("fall", (0, 100), (500, 10)), 30) == 0
    assert warm_spares(climb, 100, 30) == 3
    assert warm_spares(Traffic("loss", (0, 100), (50, 50), (Loss(5, 7),)), 100, 30) == 7
