"""Values as Lua source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]


def as_lua(value: Value) -> str:
    """A value as a Lua expression; what is None in a mapping is left out, as nil is in a table.

    Args:
        value: text in it is ASCII without control characters: names, which both languages quote alike.
    """
    if value is None:
        return "nil"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"[{json.dumps(key)}] = {as_lua(item)}" for key, item in value.items() if item is not None)
        return "{ " + ", ".join(pairs) + " }"
    return "{ " + ", ".join(as_lua(item) for item in value) + " }"
