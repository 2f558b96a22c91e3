"""What a report says, before it is a page or a Markdown text: both are made from this, so their numbers agree."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown.

    Attributes:
        head: one a column.
        rows: cells, as many a row as the head has.
        words: how many columns at the left are text; the rest are numbers.
        marked: rows that stand out: the choice.
        brief: whether the Markdown summary has it too.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    marked: frozenset[int] = frozenset()
    brief: bool = True

    def __post_init__(self) -> None:
        """Every row has the head's width."""
        assert all(len(row) == len(self.head) for row in self.rows), self.head


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing: SVG elements without a document around them (``brim.report.inline_svg``), and what it shows in words."""

    svg: str = field(repr=False)
    shows: str


@dataclass(frozen=True, slots=True)
class Figure:
    """Something to look at, with where it comes from.

    Attributes:
        title: what it is.
        command: what was run to get it.
        conditions: under which.
        picture: drawn, where it is.
        table: as numbers, where it has some.
        notes: how to read it, and what to beware of.
        folded: whether the table is opened by hand on the page.
    """

    title: str
    command: str
    conditions: str
    picture: Picture | None = None
    table: Table | None = None
    notes: tuple[str, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        """No figure without its origin."""
        assert self.command and self.conditions, f"{self.title}: a figure needs its command and its conditions"


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report.

    Attributes:
        id: short name; the anchor of the page, and how ``--json`` lists it.
        title: its heading.
        sentences: what is to be learnt from it.
        figures: the evidence.
        links: text and relative address of files beside the report.
        blocks: title and text that is shown as it stands.
    """

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    blocks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole.

    Attributes:
        title: of the page.
        verdict: the run in one or two sentences.
        good: False when the answer is no, None when there is no yes or no in it.
        warnings: what is missing or may mislead.
        conditions: name and value, of the whole run.
        sections: in the order of reading.
        refresh_s: the page loads itself anew so often; None: it stays as it is.
    """

    title: str
    verdict: str
    good: bool | None
    warnings: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    refresh_s: int | None = None
