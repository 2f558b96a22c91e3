"""A matplotlib figure as SVG elements inside a page: in the page's own colours, and with text that can be selected."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from brim.measure.plot import settle

INK, PAPER, LINE = "#222222", "#ffffff", "#dddddd"
COLORS = {
    INK: "ink",
    "#000000": "ink",
    PAPER: "paper",
    LINE: "line",
    "#0072b2": "own_error",
    "#d55e00": "hurt",
    "#009e73": "right",
    "#aa4499": "purple",
    "#e69f00": "orange",
    "#56b4e9": "sky",
    "#9a9a9a": "cancelled",
}
"""Colour of a drawing -> the page's variable that takes its place, and has another value in the dark."""
SVG_STYLE = {"svg.fonttype": "none", "text.parse_math": False}
"""What ``brim.measure.plot.style`` needs so that text stays text, dollar signs too."""
DROPPED = frozenset(["metadata", "style"])
PAINTS = ("fill", "stroke")
_COLOR = re.compile(r"(?<!\()#[0-9a-fA-F]{6}\b")


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as one ``<svg>`` element that needs nothing from outside. The same figure gives the same text.

    Args:
        figure: drawn and saved under ``brim.measure.plot.style(SVG_STYLE)``.
        name: of letters, digits and ``-``; goes before every id, since a page has several drawings.
    """
    settle(figure)
    written = io.BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    root = ElementTree.fromstring(written.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in DROPPED:
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        given = {_local(key): value for key, value in element.attrib.items()}
        # A variable may stand in a style only.
        painted = [f"{key}: {given.pop(key)}" for key in PAINTS if _COLOR.fullmatch(given.get(key, ""))]
        if painted:
            given["style"] = "; ".join([*painted, *([given["style"]] if "style" in given else [])])
        element.attrib = {key: _value(key, value, name) for key, value in given.items()}
    # The page says how wide it is.
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("aria-hidden", "true")
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return f"#{name}-{value.removeprefix('#')}"
    value = value.replace("url(#", f"url(#{name}-")
    if key == "style":
        value = value.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
        return _COLOR.sub(lambda found: _color(found[0]), value)
    return value


def _color(found: str) -> str:
    variable = COLORS.get(found.lower())
    return f"var(--{variable})" if variable else found
