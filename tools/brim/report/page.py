"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from brim.isolation.page import shown
from brim.report.document import Report
from brim.report.page_template import TEMPLATE


def page(report: Report) -> str:
    """The whole document. Pure: the same report gives the same text."""
    return _ENVIRONMENT.from_string(TEMPLATE).render(report=report)


def _visible(value: object) -> object:
    """Text with what a reader could not see in its escaped form; what is markup already stays markup."""
    escaped = shown(value)
    return Markup(escaped) if isinstance(value, Markup) else escaped


_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_visible
)
