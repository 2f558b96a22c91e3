"""The terminal view: every model's figures, one model in detail, and keys. It shows views; where they come from it is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from brim.exporter.server_said import ROWS_BOUNDS
from brim.live.columns import COLUMNS, bars, binned, in_order
from brim.live.facts import facts
from brim.live.figures import Figures
from brim.live.history import History, View
from brim.live.seen import Recording, Seen
from brim.units import US_PER_S

BAR_WIDTH = 24
RATE_WIDTH, NAME_WIDTH = 40, 24
PICTURE_SIZE = (150, 32)
"""Columns and rows of a terminal."""
TOGETHER = ""
"""In place of a server's name: the row of all of them."""
HELP = """up, down, m   another model
s             sort by the next column; once more after the last: by name
o             turn the order round
r             show or hide a row for each replica
p, space      pause: nothing is asked until it goes on
h, ?          this page
q             end

"""


class Help(ModalScreen[None]):
    """Keys, and what the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,h,q,question_mark,enter", "dismiss", "Back")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help VerticalScroll { width: 90; max-width: 95%; height: auto; max-height: 90%; padding: 1 2; background: $panel; }
    """

    def compose(self) -> ComposeResult:
        """One text."""
        columns = "\n".join(f"{column.title:<12}  {column.about}" for column in COLUMNS)
        with VerticalScroll():
            yield Static(Text(f"{HELP}{columns}\n\n-             it cannot be known from what is asked"))


class Top(App[None]):
    """The view, until ``q``."""

    TITLE = "brim top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status { height: auto; padding: 0 1; background: $panel; }
    #models { height: auto; max-height: 50%; }
    #detail { height: 1fr; padding: 1 1 0 1; }
    #sizes { width: 44; height: auto; }
    #facts { width: 1fr; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "next_model", "Model"),
        Binding("s", "sort", "Sort"),
        Binding("o", "turn", "Order"),
        Binding("r", "replicas", "Replicas"),
        Binding("p,space", "pause", "Pause"),
        Binding("h,question_mark", "help", "Help"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self,
        look: Callable[[], Seen | None],
        history: History,
        *,
        interval_s: float | None,
        first: View | None = None,
    ) -> None:
        """Nothing is shown before it runs.

        Args:
            look: takes a look, on a thread of its own; None when there is nothing more to see.
            history: makes views of looks.
            interval_s: between two looks; None: it takes none by itself.
            first: what there is to see already.
        """
        super().__init__()
        self._look, self._history, self._interval_s = look, history, interval_s
        self._view = first
        self._looking = self._is_paused = False
        self._column: int | None = None
        self._descending = True
        self._with_replicas = True
        self._keys: list[tuple[str, str]] = []
        self._chosen: tuple[str, str] | None = None

    def compose(self) -> ComposeResult:
        """Status, models, one of them in detail."""
        yield Static(id="status")
        yield DataTable[Text](id="models", cursor_type="row", fixed_columns=1, zebra_stripes=True)
        with Horizontal(id="detail"):
            yield Static(id="sizes")
            yield Static(id="facts")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._draw()
        if self._interval_s is not None:
            self.set_interval(self._interval_s, self._tick)

    def _tick(self) -> None:
        # A look that takes longer than the interval is not overtaken by the next one.
        if not self._is_paused and not self._looking:
            self.run_worker(self.take_look(), group="look")

    async def take_look(self) -> None:
        """One look, and show it."""
        self._looking = True
        try:
            seen = await asyncio.to_thread(self._look)
        finally:
            self._looking = False
        if seen is not None:
            self.show(self._history.add(seen))

    def show(self, view: View) -> None:
        """Show this from now on."""
        self._view = view
        self._draw()

    def rows(self) -> list[tuple[tuple[str, str], Figures]]:
        """Key and figures of each row, in order: a model, and below it its replicas where they are shown."""
        if self._view is None:
            return []
        found = []
        for model in in_order(list(self._view.models.values()), self._column, descending=self._descending):
            found.append(((model.model, TOGETHER), model))
            replicas = self._view.by_server[model.model]
            if self._with_replicas and len(replicas) > 1:
                found += [((model.model, one.server), one) for one in replicas]
        return found

    def _draw(self) -> None:
        self.query_one("#status", Static).update(self._status())
        table = self.query_one("#models", DataTable)
        rows = self.rows()
        keys = [key for key, _ in rows]
        chosen = self._chosen if self._chosen in keys else keys[0] if keys else None
        across = table.scroll_x
        # Whoever looks at a row goes on looking at it, wherever it goes.
        with self.prevent(DataTable.RowHighlighted):
            table.clear(columns=True)
            table.add_column("model")
            for index, column in enumerate(COLUMNS):
                mark = "" if index != self._column else " v" if self._descending else " ^"
                table.add_column(Text(column.title + mark, justify="right"))
            for (model, server), figures in rows:
                name = Text(model if server == TOGETHER else f"  {server}")
                table.add_row(name, *(Text(column.cell(figures), justify="right") for column in COLUMNS))
            self._keys, self._chosen = keys, chosen
            if chosen is not None:
                table.move_cursor(row=keys.index(chosen))
        self.call_after_refresh(table.scroll_to, x=across, animate=False)
        self._draw_detail()

    def _status(self) -> Text:
        text = Text()
        if self._view is None:
            return text.append("looking")
        sources = [*self._view.servers, *([] if self._view.gateway is None else [self._view.gateway])]
        up = sum(not one.trouble for one in self._view.servers)
        text.append(f"{up} of {len(self._view.servers)} servers answer")
        text.append(", no gateway" if self._view.gateway is None else "")
        walls = [model.wall_us for model in self._view.models.values()]
        text.append(f" | figures of the last {max(walls, default=0) / US_PER_S:.0f} s")
        text.append("" if self._interval_s is None else f" | every {self._interval_s:g} s")
        if self._is_paused:
            text.append(" | PAUSED", style="bold reverse")
        for one in sources:
            if one.trouble:
                text.append(f"\n{one.name}: {one.trouble}", style="bold red")
            elif one.restarted:
                text.append(f"\n{one.name}: began anew since the last look", style="yellow")
        return text

    def _draw_detail(self) -> None:
        sizes, about = self.query_one("#sizes", Static), self.query_one("#facts", Static)
        shown = dict(self.rows())
        if self._view is None or self._chosen is None or self._chosen not in shown:
            sizes.update(Text())
            about.update(Text("no model is loaded" if self._view is not None else ""))
            return
        model = shown[self._chosen]
        sizes.update(sizes_drawn(model))
        text = Text()
        text.append(f"{model.model} {model.server}".rstrip() + "\n", style="bold")
        if not model.server:
            rates = self._view.rates.get(model.model, ())[-RATE_WIDTH:]
            text.append(f"{'rate':<{NAME_WIDTH}}{bars(rates)}\n")
        for name, words in facts(model):
            text.append(f"{name:<{NAME_WIDTH}}{words}\n")
        about.update(text)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Another row was chosen."""
        if event.cursor_row < len(self._keys):
            self._chosen = self._keys[event.cursor_row]
            self._draw_detail()

    def action_next_model(self) -> None:
        """The next model, after the last the first."""
        models = [index for index, (_, server) in enumerate(self._keys) if server == TOGETHER]
        if models:
            row = self.query_one("#models", DataTable).cursor_row
            following = next((index for index in models if index > row), models[0])
            self.query_one("#models", DataTable).move_cursor(row=following)

    def action_sort(self) -> None:
        """By the next column."""
        index = -1 if self._column is None else self._column
        self._column = index + 1 if index + 1 < len(COLUMNS) else None
        self._draw()

    def action_turn(self) -> None:
        """The other way round."""
        self._descending = not self._descending
        self._draw()

    def action_replicas(self) -> None:
        """A row for each replica, or none."""
        self._with_replicas = not self._with_replicas
        self._draw()

    def action_pause(self) -> None:
        """Stop, or go on."""
        self._is_paused = not self._is_paused
        self._draw()

    def action_help(self) -> None:
        """Keys and columns."""
        self.push_screen(Help())


def sizes_drawn(model: Figures) -> Text:
    """How many batches had how many rows, a bar for each range."""
    text = Text()
    if not model.batch_sizes:
        nothing = "no batch in this time" if model.text is None else "batched anew before every step"
        return text.append(f"{nothing}\n", style="dim")
    text.append("rows     batches\n", style="bold")
    counts = binned(model.batch_sizes)
    below = 0
    for bound, count in zip(ROWS_BOUNDS, counts, strict=True):
        label = str(bound) if bound == below + 1 else f"{below + 1}-{bound}"
        length = 0 if not count else max(1, round(BAR_WIDTH * count / max(counts)))
        text.append(f"{label:>6}  ")
        text.append("█" * length, style="green")
        text.append(f" {count:,}\n" if count else "\n")
        below = bound
    return text


async def picture(recording: Recording, *, size: tuple[int, int] = PICTURE_SIZE, keys: Sequence[str] = ()) -> str:
    """The view at the end of a recording as an SVG that needs nothing from elsewhere.

    Args:
        recording: of at least two looks.
        size: columns and rows.
        keys: pressed before.
    """
    history = History(recording.objectives)
    app = Top(lambda: None, history, interval_s=None)
    async with app.run_test(size=size) as pilot:
        for look in recording.looks:
            app.show(history.add(look))
        await pilot.press(*keys)
        await pilot.pause()
        drawn = app.export_screenshot(title="brim top")
    # Rich names itself and a font on a server of others; a reader's own font takes its place.
    return re.sub(r"\s*(@font-face \{.*?\}|<!--.*?-->)", "", drawn, flags=re.DOTALL)
