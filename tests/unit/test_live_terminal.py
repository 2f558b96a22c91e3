"""The terminal view, driven by Textual's pilot: time is the looks' own, and nobody is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from brim.live.history import History
from brim.live.seen import Objectives, Recording, Seen, read_recording
from brim.live.terminal import Help, Top, picture
from tests.unit.live_example import duration_lines, ended_line, look, server, text_page, totals

SLO = {"busy": Objectives(99, 50_000)}
SIZE = (150, 40)


def front(count: int) -> list[str]:
    return [
        ended_line(count, model="busy", name="interactive"),
        ended_line(2 * count, model="busy", name="batch", code="429", reason="shed"),
        *duration_lines({10: count // 2, 50: count}, model="busy"),
        *duration_lines({1: 2 * count}, model="busy", code="429"),
    ]


LOOKS = [
    look(0, front(0), r1=server(0, totals("busy"), totals("calm")), r2=server(0, totals("busy"))),
    look(
        2,
        front(40),
        r1=server(2, totals("busy", sizes={10: 4, 100: 1}), totals("calm", sizes={1: 2})),
        r2=server(2, totals("busy", sizes={1: 6})),
    ),
    look(4, "no page: timed out", r1="no statistics: connection refused", r2=server(4, totals("busy", sizes={1: 8}))),
    look(
        6,
        front(40),
        r1=server(6, totals("busy", sizes={2: 5}), totals("calm")),
        r2=server(6, totals("busy", sizes={1: 8})),
    ),
]


def driven(check: Callable[[Top, Pilot[None]], Awaitable[None]], looks: list[Seen] | None = None) -> None:
    """Run a check against the view; ``pilot.app.take_look()`` takes the next look."""
    remaining = iter(LOOKS if looks is None else looks)

    async def run() -> None:
        app = Top(lambda: next(remaining, None), History(SLO), interval_s=None)
        async with app.run_test(size=SIZE) as pilot:
            await check(app, pilot)

    asyncio.run(run())


def text(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def table(app: Top) -> list[list[str]]:
    found = app.query_one("#models", DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def names(app: Top) -> list[str]:
    return [row[0].strip() for row in table(app)]


def head(app: Top) -> list[str]:
    return [str(column.label) for column in app.query_one("#models", DataTable).ordered_columns]


def cell(app: Top, model: str, title: str) -> str:
    titles = [one.removesuffix(" v").removesuffix(" ^") for one in head(app)]
    return next(row for row in table(app) if row[0] == model)[titles.index(title)]


async def looked(app: Top, pilot: Pilot[None], times: int) -> None:
    for _ in range(times):
        await app.take_look()
    await pilot.pause()


def test_before_a_look_there_is_nothing_and_after_two_there_are_figures() -> None:
    async def check(app: Top, pilot: Pilot[None]) -> None:
        assert text(app, "status") == "looking" and table(app) == []
        await looked(app, pilot, 1)
        assert names(app) == ["busy", "r1", "r2", "calm"] and cell(app, "busy", "rate/s") == "-"
        await looked(app, pilot, 1)
        assert cell(app, "busy", "rate/s") == "73" and cell(app, "calm", "rate/s") == "1"
        assert cell(app, "busy", "in SLO") == "33%" and cell(app, "busy", "p99 ms") == "<=50"
        assert cell(app, "busy", "refused") == "80 shed" and cell(app, "calm", "in SLO") == "-"
        assert "2 of 2 servers answer" in text(app, "status")
        assert "class batch" in text(app, "facts") and "refused 80" in text(app, "facts")
        assert "9-16" in text(app, "sizes")

    driven(check)


def test_a_server_that_goes_is_said_and_comes_back() -> None:
    async def check(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot, 3)
        assert names(app) == ["busy"], "what cannot be asked is not shown"
        assert "1 of 2 servers answer" in text(app, "status")
        assert "r1: no statistics: connection refused" in text(app, "status")
        assert "gateway: no page: timed out" in text(app, "status")
        await looked(app, pilot, 1)
        assert names(app) == ["busy", "r1", "r2", "calm"]
        assert "r1: began anew since the last look" in text(app, "status")
        # The end of the recording changes nothing.
        await looked(app, pilot, 1)
        assert names(app) == ["busy", "r1", "r2", "calm"]

    driven(check)


def test_keys_sort_and_turn_round_and_the_chosen_row_stays_chosen() -> None:
    async def check(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot, 2)
        await pilot.press("r")
        assert names(app) == ["busy", "calm"]
        await pilot.press("m")
        await pilot.pause()
        assert text(app, "facts").startswith("calm")
        await pilot.press("s")
        assert head(app)[1] == "rate/s v" and names(app) == ["busy", "calm"]
        await pilot.press("o")
        assert head(app)[1] == "rate/s ^" and names(app) == ["calm", "busy"]
        await pilot.pause()
        assert text(app, "facts").startswith("calm")
        assert app.query_one("#models", DataTable).cursor_row == 0
        await pilot.press("down")
        await pilot.pause()
        assert text(app, "facts").startswith("busy")
        await pilot.press("m")
        await pilot.pause()
        assert text(app, "facts").startswith("calm"), "after the last comes the first"
        for _ in head(app)[1:]:
            await pilot.press("s")
        assert not any(title.endswith((" v", " ^")) for title in head(app)), "and by name again"

    driven(check)


def test_pause_asks_nobody() -> None:
    asked: list[int] = []

    async def run() -> None:
        app = Top(lambda: asked.append(1), History(), interval_s=0.01)
        async with app.run_test(size=SIZE) as pilot:
            while not asked:
                await pilot.pause(0.01)
            await pilot.press("p")
            assert "PAUSED" in text(app, "status") or "looking" in text(app, "status")
            await pilot.pause(0.05)
            before = len(asked)
            await pilot.pause(0.1)
            assert len(asked) == before
            await pilot.press("space")
            while len(asked) == before:
                await pilot.pause(0.01)

    asyncio.run(run())


def test_help_tells_keys_and_columns() -> None:
    async def check(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot, 2)
        await pilot.press("h")
        assert isinstance(app.screen, Help)
        shown = str(app.screen.query_one(Static).render())
        assert "sort by the next column" in shown and all(
            f"{title} " in shown for title in ("in SLO", "queue ms", "tokens/s")
        )
        await pilot.press("escape")
        assert not isinstance(app.screen, Help)

    driven(check)


def test_a_language_model_has_its_figures() -> None:
    def page(tokens: int, done: int) -> list[str]:
        return text_page(
            tokens=tokens, ends={"stop": done}, ttft={0.1: done, 0.2: done}, kv=0.5, running=4, model="story"
        )

    async def check(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot, 2)
        assert cell(app, "story", "KV") == "50%" and cell(app, "story", "tokens/s") == "300"
        assert cell(app, "story", "fill") == "-"
        assert "4 running" in text(app, "facts") and "batched anew before every step" in text(app, "sizes")

    driven(check, [look(at, r1=server(at, totals("story"), page=page(300 * at, at))) for at in (1, 2)])


def test_nothing_to_see_is_said() -> None:
    async def check(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot, 1)
        assert text(app, "facts") == "no model is loaded" and table(app) == []
        await pilot.press("m", "s", "o", "r")

    driven(check, [look(0, r1="no statistics: timed out")])


@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
def test_a_small_terminal_shows_what_it_can(size: tuple[int, int]) -> None:
    svg = asyncio.run(picture(Recording(SLO, tuple(LOOKS[:2])), size=size, keys=["s"]))
    assert "busy" in "".join(ElementTree.fromstring(svg).itertext())


def test_a_picture_needs_nothing_from_elsewhere() -> None:
    recording = Recording(SLO, tuple(LOOKS[:2]))
    first, second = (asyncio.run(picture(recording)) for _ in range(2))
    assert first == second
    assert "http" not in first.replace("http://www.w3.org/", ""), "the name of SVG's own namespace is no address"
    shown = "".join(ElementTree.fromstring(first).itertext()).replace("\xa0", " ")
    assert "busy" in shown and "<=50" in shown and "shed" in shown


def test_the_picture_in_the_docs_is_that_of_its_recording(checkout: Path) -> None:
    """`make pictures` makes it anew."""
    folder = checkout / "docs" / "pictures"
    drawn = asyncio.run(picture(read_recording(folder / "looks.json")))
    assert (folder / "top.svg").read_text(encoding="utf-8") == drawn
    for name in ("looks.json", "top.svg", "report.png"):
        assert (folder / name).stat().st_size < 200_000
