"""Boards as Grafana reads them, built with Grafana's own foundation SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from brim.dashboards.board import Board, Needs, Panel, Query, Shape

DATASOURCE = "datasource"
"""The variable by which the reader chooses among Prometheuses."""
WHOLE_WIDTH, HEIGHT = 24, 8
IN_A_ROW = 3
REFRESH, SPAN = "10s", "now-1h"
FILLED = 30
AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel


def text_of(board: Board) -> str:
    """The JSON of a dashboard, the same for the same board."""
    built = _built(board).build()
    return json.dumps(built, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _built(board: Board) -> builder.Dashboard:
    source = builder.DatasourceVariable(DATASOURCE).label("Prometheus").type("prometheus")
    models = (
        builder.QueryVariable("model")
        .label("Model")
        .datasource(_source())
        .query(f"label_values({board.models_of}, model)")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )
    made = (
        builder.Dashboard(board.title)
        .uid(f"brim-{board.name}")
        .description(board.description)
        .tags(["brim"])
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .refresh(REFRESH)
        .time(SPAN, "now")
        .timezone("browser")
        .with_variable(source)
        .with_variable(models)
        .link(
            builder.DashboardLink("Brim")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["brim"])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
    )
    numbers = iter(range(1, 10_000))
    for row in board.rows:
        made.with_row(builder.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            made.with_panel(_panel(panel).id(next(numbers)).span(WHOLE_WIDTH // IN_A_ROW).height(HEIGHT))
    return made


def _panel(panel: Panel) -> AnyPanel:
    description = panel.description if panel.needs is Needs.NOTHING else f"{panel.description} Needs {panel.needs}."
    drawn = _drawn(panel.shape).title(panel.title).description(description).datasource(_source())
    if not isinstance(drawn, heatmap.Panel):
        drawn.unit(panel.unit).min(0)
        if panel.most is not None:
            drawn.max(panel.most)
    for target in _targets(panel):
        drawn.with_target(target)
    return drawn


def _drawn(shape: Shape) -> AnyPanel:
    if shape is Shape.HEATMAP:
        # The buckets are Prometheus' own, each with what all below it have.
        return heatmap.Panel().calculate(False)
    if shape is Shape.NUMBER:
        return stat.Panel().graph_mode(common.BigValueGraphMode.NONE)
    legend = (
        common_builder.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    made = timeseries.Panel().legend(legend)
    if shape is Shape.STACK:
        made.stacking(common_builder.StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(FILLED)
    return made


def _targets(panel: Panel) -> Iterator[prometheus.Dataquery]:
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        yield _target(panel, query, letter)


def _target(panel: Panel, query: Query, letter: str) -> prometheus.Dataquery:
    made = (
        prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter).datasource(_source())
    )
    if panel.shape is Shape.HEATMAP:
        made.format(PromQueryFormat.HEATMAP)
    return made.instant() if panel.shape is Shape.NUMBER else made.range()


def _source() -> model.DataSourceRef:
    return model.DataSourceRef(type_val="prometheus", uid=f"${{{DATASOURCE}}}")
