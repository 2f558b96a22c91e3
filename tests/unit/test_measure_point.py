"""Points made from a recorded run, and the file that they are kept in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InputError
from brim.measure.batch_stats import BatchStats, difference, parse_statistics
from brim.measure.batch_stats import Snapshot as Reading
from brim.measure.generator import Usage
from brim.measure.measure import Target, make_point
from brim.measure.perf_analyzer import Run
from brim.measure.plan import Mode, Plan
from brim.measure.point import FILE_NAME, Point, Provenance, append_point, read_points
from brim.measure.report import parse_console, parse_csv
from brim.server.endpoint import Endpoint

DATA = Path(__file__).parent / "data" / "measure"
TARGET = Target(Endpoint("127.0.0.1:1", "127.0.0.1:2"), "num", 2, "triton 2.51.0", "abc")
PLAN = Plan(Mode.CONCURRENCY, (16,), percentile=75)
PROVENANCE = Provenance(
    command=["perf_analyzer"],
    perf_analyzer="2.60.0",
    origin="path",
    server="triton 2.51.0",
    brim="0",
    usable_cores=2,
    load_average=0.5,
    started_at="2026-01-01T00:00:00+00:00",
    raw="raw/concurrency-16-1",
)
CONTRACT = {"mode", "throughput", "p50_us", "p99_us", "mean_batch", "fill", "duty", "stable", "generator_bound"}


def recorded_stats() -> BatchStats:
    readings = [
        Reading(at_us, parse_statistics(json.loads((DATA / f"stats_http_{name}.json").read_text()), "num"))
        for name, at_us in (("before", 0), ("after", 720_000))
    ]
    return difference(readings[0], readings[1], instances=2)


def recorded_run(**changes: Any) -> Run:
    (figures,) = parse_csv((DATA / "percentile_75.csv").read_text())
    console = parse_console((DATA / "console_percentile_75.txt").read_text())
    run = Run(("perf_analyzer",), Path("raw"), figures, {99.9: 20_000}, console, Usage(720_000, 0.3, 0.6, 10**8), "")
    return replace(run, **changes)


def point_of(run: Run, *, plan: Plan = PLAN, value: float = 16, stable: bool = True) -> Point:
    return make_point(TARGET, plan, value, f"key{value:g}", run, recorded_stats(), stable, True, [], PROVENANCE)


def test_a_point_has_the_contracts_fields() -> None:
    document = point_of(recorded_run()).as_json()
    assert CONTRACT | {"concurrency"} <= document.keys()
    assert "rate" not in document
    assert document["mode"] == "concurrency"
    assert document["concurrency"] == 16
    assert document["p50_us"] == document["latency_us"]["50"] > 0
    assert document["latency_us"]["99.9"] == 20_000
    assert document["fill"] == pytest.approx(document["mean_batch"] / 100)
    assert sum(int(size) * count for size, count in document["executions_by_size"].items()) == document["inferences"]


def test_a_rate_point_has_its_rate() -> None:
    document = point_of(recorded_run(), plan=Plan(Mode.RATE, (2.5,)), value=2.5).as_json()
    assert document["rate"] == 2.5
    assert "concurrency" not in document


def test_a_run_without_a_row_makes_nothing_up() -> None:
    point = point_of(recorded_run(figures=None, further_us={}, ended="ended at 9 MiB"), stable=False)
    stats = recorded_stats()
    assert point.throughput == pytest.approx(stats.inferences / 0.72)
    assert (point.p50_us, point.p99_us) == (None, None)
    assert set(point.latency_us) == {"75"}, "the watched percentile of the last window"
    assert (point.stable, point.note) == (False, "ended at 9 MiB")


def test_points_come_back_as_they_were(tmp_path: Path) -> None:
    points = [point_of(recorded_run(), value=value) for value in (1, 2, 3)]
    assert read_points(tmp_path) == []
    for point in points:
        append_point(tmp_path / "run", point)
    assert read_points(tmp_path / "run") == points


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_torn_line_is_passed_over_and_hurts_no_neighbour(keep: int, tmp_path: Path) -> None:
    one, two, three = (point_of(recorded_run(), value=value) for value in (1, 2, 3))
    append_point(tmp_path, one)
    whole = (tmp_path / FILE_NAME).read_text()
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write(json.dumps(two.as_json())[:keep])
    assert read_points(tmp_path) == [one]
    append_point(tmp_path, three)
    assert read_points(tmp_path) == [one, three]
    assert (tmp_path / FILE_NAME).read_text().startswith(whole)


def test_a_line_that_is_no_point_is_named(tmp_path: Path) -> None:
    append_point(tmp_path, point_of(recorded_run()))
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"key": "x"}\n')
    with pytest.raises(InputError, match=rf"{FILE_NAME}:2"):
        read_points(tmp_path)
