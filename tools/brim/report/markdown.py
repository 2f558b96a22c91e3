"""A report as a Markdown summary: its sentences, and the tables that are short enough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from brim.isolation.page import shown
from brim.report.document import Figure, Report, Section, Table

SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$<>&])")


def markdown(report: Report, *, page: str) -> str:
    """The summary. Its numbers are the page's, since both are made from the same report.

    Args:
        report: what is told.
        page: relative address of the HTML page.
    """
    return "\n".join(_lines(report, page)).rstrip() + "\n"


def _lines(report: Report, page: str) -> Iterator[str]:
    yield from (f"# {text(report.title)}", "", text(report.verdict), "")
    yield from (f"The plots are in [{text(page)}]({page}).", "")
    for warning in report.warnings:
        yield from (f"> {text(warning)}", "")
    yield from ("## Conditions", "")
    yield from (f"- {text(name)}: {text(value)}" for name, value in report.conditions)
    yield ""
    for section in report.sections:
        if _is_brief(section):
            yield from _section(section)


def _is_brief(section: Section) -> bool:
    """Whether anything of it goes into a summary."""
    tables = [figure.table for figure in section.figures if figure.table is not None]
    return bool(section.sentences) or any(table.brief for table in tables)


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {text(section.title)}", "")
    for sentence in section.sentences:
        yield from (text(sentence), "")
    for label, address in section.links:
        yield from (f"[{text(label)}]({address})", "")
    for figure in section.figures:
        yield from _figure(figure)
    for title, block in section.blocks:
        yield from (f"{text(title)}:", "", *_fenced(block), "")


def _figure(figure: Figure) -> Iterator[str]:
    if figure.table is None:
        return
    yield from (f"### {text(figure.title)}", "")
    if figure.table.brief:
        yield from (*_table(figure.table), "")
    else:
        yield from (f"{len(figure.table.rows)} rows, on the page.", "")
    for note in figure.notes:
        yield from (text(note), "")
    yield from (f"Conditions: {text(figure.conditions)}", "", *_fenced(figure.command), "")


def _table(table: Table) -> Iterator[str]:
    yield _row(table.head)
    yield "|" + "|".join("---" if index < table.words else "---:" for index in range(len(table.head))) + "|"
    for row in table.rows:
        yield _row(row)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(text(cell) or " " for cell in cells) + " |"


def text(words: str) -> str:
    """Words as Markdown that reads as these words: in one line, and nothing in them marks anything up."""
    return SPECIAL.sub(r"\\\1", " ".join(str(shown(words)).split()))


def _fenced(block: str) -> Iterator[str]:
    """As it stands, between fences that are longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", block)), default=0)
    fence = "`" * max(3, longest + 1)
    yield fence
    yield from (str(shown(line)) for line in block.rstrip("\n").split("\n"))
    yield fence
