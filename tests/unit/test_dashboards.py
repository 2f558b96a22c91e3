"""Dashboards: what the linter finds, and that the committed ones are what the code says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from brim.dashboards.board import Board, Panel, Query, Row, Shape, Unit
from brim.dashboards.check import check, with_values
from brim.dashboards.files import BOARDS, PLACES, differing, texts
from brim.dashboards.known import Series, known_series
from brim.service.load import find_services
from tests.conftest import Brim

GOOD = Query('sum by (model) (rate(nv_inference_count{model=~"$model"}[$__rate_interval]))', "{{model}}")
PANEL = Panel("Rows", "Rows a second.", Unit.ROWS_PER_SECOND, (GOOD,))
BOARD = Board("one", "One", "Of one panel.", "nv_inference_count", (Row("Row", (PANEL,)),))


@pytest.fixture(scope="module")
def known(checkout: Path) -> dict[str, Series]:
    return dict(known_series(find_services(checkout / "services", [])))


def found(panel: Panel, known: dict[str, Series]) -> list[str]:
    return [one.code for one in check([replace(BOARD, rows=(Row("Row", (panel,)),))], known)]


def asking(expression: str, legend: str = "{{model}}", unit: Unit = Unit.COUNT) -> Panel:
    return replace(PANEL, queries=(Query(expression, legend),), unit=unit)


def test_the_shipped_ones_are_clean_and_their_files_are_what_the_code_says(
    checkout: Path, known: dict[str, Series]
) -> None:
    assert check(BOARDS, known) == []
    assert differing(checkout, texts()) == [], "`brim dashboards --write` brings them up to date"


@pytest.mark.parametrize(
    ("code", "bad", "good"),
    [
        ("DSH001", 'sum by (model (up{model=~"$model"})', "up"),
        ("DSH002", 'nv_inference_pending{model=~"$model"}', 'nv_inference_pending_request_count{model=~"$model"}'),
        ("DSH003", 'brim_instances{model=~"$model", class="a"}', 'brim_instances{model=~"$model", version="1"}'),
        (
            "DSH003",
            'sum by (model, class) (brim_instances{model=~"$model"})',
            'sum by (model, version) (brim_instances{model=~"$model"})',
        ),
        (
            "DSH004",
            'sum by (model) (brim_requests_total{model=~"$model"})',
            'sum by (model) (rate(brim_requests_total{model=~"$model"}[$__rate_interval]))',
        ),
        ("DSH004", 'rate(brim_instances{model=~"$model"}[$__rate_interval])', 'brim_instances{model=~"$model"}'),
        (
            "DSH005",
            'rate(brim_requests_total{model=~"$model"}[5m])',
            'rate(brim_requests_total{model=~"$model"}[$__rate_interval])',
        ),
        (
            "DSH006",
            'histogram_quantile(0.9, sum by (model) (rate(brim_batch_rows_bucket{model=~"$model"}[$__rate_interval])))',
            'histogram_quantile(0.9, sum by (model, le) (rate(brim_batch_rows_bucket{model=~"$model"}[$__rate_interval])))',
        ),
        (
            "DSH007",
            'brim_instances{model=~"$model"} / brim_max_batch_rows{model=~"$model"}',
            'brim_instances{model=~"$model"} / (brim_max_batch_rows{model=~"$model"} > 0)',
        ),
        (
            "DSH005",
            'rate(brim_requests_total{model=~"$model"}[61s])',
            'rate(brim_requests_total{model=~"$model"}[$__rate_interval])',
        ),
        (
            "DSH006",
            'histogram_quantile(0.9, max by (model, le) (rate(brim_batch_rows_bucket{model=~"$model"}[$__rate_interval])))',
            'histogram_quantile(0.9, (sum by (model, le) (rate(brim_batch_rows_bucket{model=~"$model"}[$__rate_interval]))))',
        ),
        *(
            (
                "DSH007",
                f'brim_instances{{model=~"$model"}} / (brim_max_batch_rows{{model=~"$model"}} {guard})',
                'brim_instances{model=~"$model"} / (brim_max_batch_rows{model=~"$model"} > 0)',
            )
            for guard in ("< 1", ">= 0", "> -1", "> bool 0", "!= 0")
        ),
        ("DSH009", 'brim_instances{model!~"$model"}', 'brim_instances{model=~"$model"}'),
        (
            "DSH009",
            'brim_instances{model=~"$model"} / (brim_max_batch_rows > 0)',
            'brim_instances{model=~"$model"} / (brim_max_batch_rows{model=~"$model"} > 0)',
        ),
        ("DSH009", 'brim_instances{model=~"$modle"}', 'brim_instances{model=~"$model"}'),
        ("DSH009", "brim_instances", 'brim_instances{model=~"$model"}'),
    ],
)
def test_each_fault_of_a_query_is_found_and_its_right_form_is_not(
    code: str, bad: str, good: str, known: dict[str, Series]
) -> None:
    assert code in found(asking(bad, legend="all"), known)
    assert found(asking(good, legend="all"), known) == []


@pytest.mark.parametrize(
    ("code", "panel"),
    [
        ("DSH003", replace(PANEL, queries=(replace(GOOD, legend="{{class}}"),))),
        ("DSH006", replace(PANEL, shape=Shape.HEATMAP)),
        ("DSH008", replace(PANEL, title=" ")),
        ("DSH008", replace(PANEL, description="")),
        ("DSH011", replace(PANEL, queries=())),
        ("DSH011", replace(PANEL, queries=(GOOD,) * 9)),
        ("DSH011", replace(PANEL, queries=(replace(GOOD, legend=""),))),
        ("DSH012", asking('brim_service:queue_us:mean{model=~"$model"}', unit=Unit.SECONDS)),
        ("DSH012", asking('brim_service:latency_us:p99{model=~"$model"}', unit=Unit.PER_SECOND)),
    ],
)
def test_each_fault_of_a_panel_is_found(code: str, panel: Panel, known: dict[str, Series]) -> None:
    assert code in found(panel, known)
    assert found(PANEL, known) == []


def test_faults_of_boards_are_found_all_at_once(known: dict[str, Series]) -> None:
    twice = replace(BOARD, rows=(Row("Row", (PANEL, PANEL)),), models_of="nobody_gives_this")
    bad = asking("nothing_a / nothing_b")
    codes = [one.code for one in check([twice, twice, replace(BOARD, name="two", rows=(Row("r", (bad,)),))], known)]
    assert {"DSH002", "DSH007", "DSH010"} <= set(codes)
    assert codes.count("DSH002") == 4 and codes.count("DSH010") == 3


def test_a_query_has_a_value_for_each_variable() -> None:
    for board in BOARDS:
        for panel in board.panels:
            assert all("$" not in with_values(query.expression) for query in panel.queries)


def test_grafana_is_told_what_the_board_says() -> None:
    for board in BOARDS:
        document = json.loads(texts((PLACES[0],))[f"{PLACES[0]}/{board.name}.json"])
        assert document["uid"] == f"brim-{board.name}" and document["title"] == board.title
        assert {one["name"] for one in document["templating"]["list"]} == {"datasource", "model"}
        drawn = [panel for panel in document["panels"] if panel["type"] != "row"]
        assert [panel["title"] for panel in drawn] == [panel.title for panel in board.panels]
        ids = [panel["id"] for panel in document["panels"]]
        assert len(ids) == len(set(ids))
        for shown, meant in zip(drawn, board.panels, strict=True):
            assert [one["expr"] for one in shown["targets"]] == [query.expression for query in meant.queries]
            assert str(meant.needs) in shown["description"]
            assert shown["gridPos"]["x"] + shown["gridPos"]["w"] <= 24
            if meant.shape is not Shape.HEATMAP:
                assert shown["fieldConfig"]["defaults"]["unit"] == meant.unit


def test_the_command_checks_writes_elsewhere_and_says_what_differs(brim: Brim, tmp_path: Path) -> None:
    assert brim("dashboards", "--check").code == 0
    assert brim("dashboards", "--out", str(tmp_path / "mine")).code == 0
    assert sorted(path.stem for path in (tmp_path / "mine").iterdir()) == sorted(board.name for board in BOARDS)
    answer = json.loads(brim("dashboards", "--json").out)
    assert answer["ok"] and answer["data"]["findings"] == [] and len(answer["data"]["dashboards"]) == len(BOARDS)
    assert brim("dashboards", "--check", "--write").code == 2
