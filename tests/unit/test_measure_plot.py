"""What a picture of measured points says: read back from the file itself, whose parts carry ids."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from brim.errors import InputError
from brim.measure.plan import Mode
from brim.measure.plot import draw
from brim.measure.point import Point, Provenance

SVG = "{http://www.w3.org/2000/svg}"
LOADS = (1, 10, 50, 100, 150, 200)
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
NOTHING: dict[str, Any] = {
    "throughput": None,
    "p50_us": None,
    "p99_us": None,
    "latency_us": {},
    "mean_batch": None,
    "fill": None,
    "duty": None,
    "executions_by_size": {},
    "inferences": 0,
    "executions": 0,
}


def a_point(load: float, mode: Mode = Mode.CONCURRENCY, **changes: Any) -> Point:
    sizes = {1: 3, max(1, round(load / 2)): 7}
    rows, executions = sum(size * count for size, count in sizes.items()), sum(sizes.values())
    fields: dict[str, Any] = {
        "key": f"m/{load:g}",
        "model": "m",
        "protocol": "grpc",
        "mode": mode,
        "concurrency": round(load) if mode is Mode.CONCURRENCY else None,
        "rate": float(load) if mode is Mode.RATE else None,
        "throughput": 100.0 * load,
        "p50_us": round(1_000 * load),
        "p99_us": round(3_000 * load),
        "latency_us": {"50": round(1_000 * load), "95": round(2_000 * load), "99": round(3_000 * load)},
        "split_us": {},
        "mean_batch": rows / executions,
        "fill": rows / executions / 100,
        "duty": 0.5,
        "queue_us": 10,
        "compute_us": {},
        "executions_by_size": sizes,
        "execution_us_by_size": {},
        "inferences": rows,
        "executions": executions,
        "failed": 0,
        "instances": 1,
        "stable": True,
        "settled": True,
        "generator_bound": False,
        "reason": "",
        "note": "",
        "generator_cores": None,
        "machine_busy": None,
        "outside_ratio": None,
        "callers_in_server": None,
        "sent_rate": None,
        "delayed_ratio": None,
        "provenance": PROVENANCE,
    }
    return Point(**{**fields, **changes})


class Picture:
    """A drawn file, by the ids of its parts."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(self.text)
        self.parts = {part.get("id"): part for part in root.iter() if part.get("id")}

    def places(self, part: str) -> list[tuple[float, float]]:
        """Where the points of a part lie: x to the right, y downwards."""
        group = self.parts.get(part)
        marks = [] if group is None else group.iter(f"{SVG}use")
        return [(float(mark.get("x", "nan")), float(mark.get("y", "nan"))) for mark in marks]

    def strokes(self, part: str) -> list[int]:
        """Points of each unbroken piece of a curve."""
        path = self.parts[part].find(f".//{SVG}path")
        drawn = "" if path is None else path.get("d", "")
        return [1 + piece.count("L") for piece in drawn.split("M")[1:]]

    def says(self, words: str) -> bool:
        """Text is drawn as outlines, with the words beside them as a comment."""
        return f"<!-- {words} -->" in self.text


def picture_of(points: list[Point], folder: Path, **changes: Any) -> Picture:
    given = {"title": "m", "slo_latency_us": 50_000, "percentile": 99.0, **changes}
    return Picture(draw(points, folder / "points.svg", **given))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("count", [1, 4, 6, 7])
def test_every_panel_shows_every_load(mode: Mode, count: int, tmp_path: Path) -> None:
    points = [a_point(10 * load, mode) for load in range(1, count + 1)]
    picture = picture_of(points, tmp_path)
    for part in ("latency.p50", "latency.p99", "throughput.throughput", "batch.batch", "duty.duty"):
        places = picture.places(f"{part}.stable")
        assert len(places) == count
        assert all(left[0] < right[0] for left, right in pairwise(places))
    throughput = [y for _, y in picture.places("throughput.throughput.stable")]
    assert throughput == sorted(throughput, reverse=True), "more is higher"
    for index, point in enumerate(points):
        bars = {name for name in picture.parts if name and name.startswith(f"sizes.{index}.")}
        assert bars == {f"sizes.{index}.{size}" for size in point.executions_by_size}
    assert picture.says("asked rate, requests/s" if mode is Mode.RATE else "callers")


def test_the_same_points_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    points = [a_point(load) for load in LOADS]
    first = draw(points, tmp_path / "a.svg", title="m", slo_latency_us=None, percentile=99)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "none"}):
        second = draw(points[::-1], tmp_path / "b.svg", title="m", slo_latency_us=None, percentile=99)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg"]


def test_the_users_own_style_is_left_as_it_was(tmp_path: Path) -> None:
    with matplotlib.rc_context({"lines.linewidth": 9}):
        picture_of([a_point(1)], tmp_path)
        assert matplotlib.rcParams["lines.linewidth"] == 9


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    picture = picture_of([a_point(load) for load in LOADS], tmp_path)
    elements = ElementTree.fromstring(picture.text)
    links = [value for part in elements.iter() for name, value in part.attrib.items() if name.endswith("href")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert not any(part.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}text") for part in elements.iter())


def test_points_that_are_not_stable_are_hollow_and_generator_bound_ones_ringed(tmp_path: Path) -> None:
    points = [a_point(load, stable=load not in (50, 100), generator_bound=load in (100, 150, 200)) for load in LOADS]
    picture = picture_of(points, tmp_path)
    for part in ("latency.p50", "latency.p99", "throughput.throughput", "batch.batch", "duty.duty"):
        filled, hollow = picture.places(f"{part}.stable"), picture.places(f"{part}.unstable")
        ringed = picture.places(f"{part}.generator")
        assert (len(filled), len(hollow), len(ringed)) == (4, 2, 3)
        assert set(ringed) == {hollow[1], *filled[2:]}
    assert "fill: #ffffff" in ElementTree.tostring(picture.parts["duty.duty.unstable"]).decode()
    assert "fill-opacity: 0" in ElementTree.tostring(picture.parts["duty.duty.generator"]).decode()
    assert picture.says("hollow: windows did not agree")
    assert picture.says("ringed: the load generator set the figure")


def test_a_figure_that_could_not_be_had_is_a_gap(tmp_path: Path) -> None:
    points = [a_point(load, **(NOTHING if load == 50 else {})) for load in LOADS]
    picture = picture_of(points, tmp_path)
    for part in ("latency.p50", "latency.p99", "throughput.throughput", "batch.batch", "duty.duty"):
        assert len(picture.places(f"{part}.stable")) == 5
        assert picture.strokes(part) == [2, 3]
    assert picture.says("50 callers: 0 executions")
    assert picture.says("no execution")


def test_points_without_any_figure_are_drawn_too(tmp_path: Path) -> None:
    picture = picture_of([a_point(load, **NOTHING) for load in LOADS], tmp_path)
    assert picture.text.count("<!-- no figure could be had -->") == 4
    assert picture.places("duty.duty.stable") == []


def test_a_figure_of_zero_is_a_point(tmp_path: Path) -> None:
    picture = picture_of([a_point(1, throughput=0.0, duty=0.0, latency_us={"50": 0, "99": 0})], tmp_path)
    for part in ("latency.p50", "throughput.throughput", "duty.duty"):
        assert len(picture.places(f"{part}.stable")) == 1


@pytest.mark.parametrize("slo_latency_us", [100, 5_000, 10_000_000])
def test_the_objective_is_a_line_among_the_latencies(slo_latency_us: int, tmp_path: Path) -> None:
    points = [a_point(load, latency_us={"50": 2_000, "99": 8_000}) for load in (1, 2)]
    picture = picture_of(points, tmp_path, slo_latency_us=slo_latency_us)
    drawn = picture.parts["latency.objective"].find(f".//{SVG}path")
    assert drawn is not None
    y = float(drawn.get("d", "").split()[2])
    fast, slow = picture.places("latency.p50.stable")[0][1], picture.places("latency.p99.stable")[0][1]
    assert (y > fast) == (slo_latency_us < 2_000)
    assert (y < slow) == (slo_latency_us > 8_000)
    assert picture.says(f"objective: p99 within {slo_latency_us / 1000:g} ms")


def test_the_objectives_percentile_is_drawn_where_it_was_measured(tmp_path: Path) -> None:
    points = [a_point(load) for load in LOADS]
    assert len(picture_of(points, tmp_path, percentile=95.0).places("latency.p95.stable")) == len(points)
    without = picture_of(points, tmp_path, percentile=99.9)
    assert not any(name and name.startswith("latency.p99.9") for name in without.parts)
    assert without.says("objective: p99.9 within 50 ms")


def test_without_an_objective_there_is_no_line(tmp_path: Path) -> None:
    picture = picture_of([a_point(1)], tmp_path, slo_latency_us=None)
    assert "latency.objective" not in picture.parts
    assert "objective" not in picture.text


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("loads", [(10,), (1, 10, 100, 200), LOADS, (1, 199, 200, 201, 100_000), tuple(range(1, 23))])
def test_no_text_lies_on_another(
    mode: Mode, loads: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The layout draws once before it is settled: the last place of each text counts.
    written: dict[Text, Bbox] = {}
    draw_text = Text.draw

    def record(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text():
            written[text] = text.get_window_extent(renderer)
        draw_text(text, renderer)

    points = [a_point(load, mode, **(NOTHING if load == 10 else {})) for load in loads]
    monkeypatch.setattr(Text, "draw", record)
    picture = picture_of(points, tmp_path, title="m: " + "a long title " * 12, percentile=95.0)
    assert len(written) > 20
    view = [float(number) for number in ElementTree.fromstring(picture.text).get("viewBox", "").split()]
    sheet = Bbox.from_bounds(*view)
    for text, box in written.items():
        inside = sheet.x0 <= box.x0 and sheet.y0 <= box.y0 and box.x1 <= sheet.x1 and box.y1 <= sheet.y1
        assert inside, text.get_text()
    overlapping = [
        (one.get_text(), other.get_text())
        for one, other in combinations(written, 2)
        if written[one].overlaps(written[other])
    ]
    assert overlapping == []


@pytest.mark.parametrize("title", ["", "$x_1$ & <b> -- costs $5", "a" * 300, "two words " * 40, "line\nbreak"])
def test_any_title(title: str, tmp_path: Path) -> None:
    assert picture_of([a_point(1)], tmp_path, title=title).places("duty.duty.stable")


@pytest.mark.parametrize("loads", [(199, 200, 201, 202, 100_000), (1, 1, 1), (0.001, 0.002), (7, 1_000_000_000)])
def test_any_loads(loads: tuple[float, ...], tmp_path: Path) -> None:
    picture = picture_of([a_point(load, Mode.RATE) for load in loads], tmp_path)
    places = picture.places("duty.duty.stable")
    assert len(places) == len(loads)
    assert picture.says(f"{max(loads):.10g}")


def test_points_of_both_modes_or_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no point"):
        picture_of([], tmp_path)
    with pytest.raises(InputError, match="both modes"):
        picture_of([a_point(1), a_point(1, Mode.RATE)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_picture_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "points.svg").write_text("old", encoding="utf-8")
    picture_of([a_point(1)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["points.svg"]
