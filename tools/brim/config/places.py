"""Where things stand in a text: line and column of an offset, and of every field."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple


class Place(NamedTuple):
    """A 1-based line and column; ``(0, 0)`` is "no place"."""

    line: int
    column: int


NOWHERE = Place(0, 0)


class Positions(dict[str, Place]):
    """Field path to place: ``input[0].dims[1]``, ``parameters["x"].string_value``, ``dynamic_batching``.

    A field's place is its name; an element of a ``[...]`` list has the place of the element.
    """

    def nearest(self, path: str) -> Place:
        """The place of ``path`` or of the closest enclosing field that the text has; ``(0, 0)`` when it has none."""
        while path:
            if path in self:
                return self[path]
            path = _parent(path)
        return NOWHERE


def _parent(path: str) -> str:
    if path.endswith("]"):
        opened = path.rfind('["') if path.endswith('"]') else path.rfind("[")
        return path[:opened]
    return path.rpartition(".")[0]


class Source:
    """A text and the place of every offset in it."""

    def __init__(self, text: str) -> None:
        """Find the line starts of ``text``."""
        self.text = text
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int) -> Place:
        """The place of the character at ``offset``, counted in characters from 0."""
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)
