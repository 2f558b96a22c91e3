"""How figures are written, sorted and drawn."""

from __future__ import annotations

import pytest

from brim.exporter.server_said import ROWS_BOUNDS
from brim.live.columns import (
    COLUMNS,
    at_most_text,
    bars,
    binned,
    count_text,
    goodput_text,
    in_order,
    ms_text,
    percent_text,
    sizes_text,
)
from brim.live.figures import Figures, Goodput
from brim.live.history import History
from tests.unit.live_example import ended_line, look, server, totals

RATE = next(index for index, column in enumerate(COLUMNS) if column.title == "rate/s")
BATCH = next(index for index, column in enumerate(COLUMNS) if column.title == "batch")


def models() -> dict[str, Figures]:
    """One that is busy, one that is not, one that was never called."""
    history = History()
    history.add(look(0, [], r1=server(0, totals("busy"), totals("calm"), totals("idle"))))
    lines = [ended_line(8, model="busy"), ended_line(5, model="busy", code="429", reason="queue_full")]
    now = server(10, totals("busy", sizes={100: 9}), totals("calm", sizes={2: 5}), totals("idle"))
    return dict(history.add(look(10, lines, r1=now)).models)


def cells(model: Figures) -> dict[str, str]:
    return {column.title: column.cell(model) for column in COLUMNS}


def test_what_cannot_be_known_is_a_dash() -> None:
    idle = cells(models()["idle"])
    assert {idle[title] for title in ("in SLO", "p50 ms", "p99 ms", "batch", "fill", "queue ms", "KV", "tokens/s")} == {
        "-"
    }
    assert idle["rate/s"] == "0" and idle["duty"] == "0%"


def test_cells_of_a_busy_model() -> None:
    busy = cells(models()["busy"])
    assert (busy["rate/s"], busy["batch"], busy["fill"], busy["refused"]) == ("90", "100.0", "100%", "5 queue_full")


def test_what_is_not_known_goes_last_whichever_way() -> None:
    found = list(models().values())
    assert [one.model for one in in_order(found, None)] == ["busy", "calm", "idle"]
    assert [one.model for one in in_order(found, RATE)] == ["busy", "calm", "idle"]
    assert [one.model for one in in_order(found, RATE, descending=False)] == ["idle", "calm", "busy"]
    assert [one.model for one in in_order(found, BATCH, descending=False)] == ["calm", "busy", "idle"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (count_text(None), "-"),
        (count_text(0.0), "0"),
        (count_text(12.34), "12.3"),
        (count_text(1234.5), "1,234"),
        (percent_text(0.005), "0%"),
        (ms_text(1_234), "1.23"),
        (ms_text(123_456), "123"),
        (at_most_text(50_000), "<=50"),
        (at_most_text(500), "<=0.5"),
        (at_most_text(None), "-"),
        (goodput_text(Goodput("gateway", 0.999, 0.999)), "99%"),
        (goodput_text(Goodput("gateway", 1.0, 1.0)), "100%"),
        (goodput_text(Goodput("gateway", 0.29, 0.9)), "29-90%"),
        (sizes_text({}), "-"),
        (sizes_text({1: 5, 100: 7, 3: 1, 4: 1, 9: 1}), "5x1 1x3 1x4 7x100"),
    ],
)
def test_texts(written: str, expected: str) -> None:
    assert written == expected


def test_batch_sizes_fall_into_the_bin_of_their_bound() -> None:
    assert binned({1: 1, 2: 2, 3: 4, 4: 8, 99: 16, 100: 32, 128: 64}) == [1, 2, 12, *[0] * 7, 16, 96]
    assert sum(binned(dict.fromkeys(range(1, 101), 1))) == 100 and len(binned({})) == len(ROWS_BOUNDS)


def test_what_happened_is_never_drawn_as_nothing() -> None:
    assert bars([]) == "" and bars([0, 0]) == "  "
    assert bars([0, 1, 10_000]) == " ▁█"
