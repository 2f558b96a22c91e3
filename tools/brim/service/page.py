"""The page ``docs/service-file.md``, written from the schema: ``python -m brim.service.page [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from brim.service.schema import Service

INTRODUCTION = """# The service file

`services/NAME.yaml` says what a person decides about one model; configurations, limits and tests are derived from it.
Unknown keys are refused, and every fault is reported at once with its line and column. Times are in milliseconds.

This page is written from the schema by `python -m brim.service.page docs/service-file.md`.
"""


def blocks(model: type[BaseModel] = Service) -> Iterator[type[BaseModel]]:
    """The service and every block in it, each once, in the order in which a reader meets them."""
    seen: list[type[BaseModel]] = [model]
    for block in seen:
        for field in block.model_fields.values():
            seen += [inner for inner in _models(field.annotation) if inner not in seen]
        yield block


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _type_name(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "null"
    if origin in (Union, UnionType):
        return " or ".join(_type_name(part) for part in parts)
    if origin is Literal:
        return ", ".join(str(part) for part in parts)
    if origin is tuple:
        return f"list of {_type_name(parts[0])}"
    if origin is list:
        return "list"
    if origin is dict:
        return f"mapping of {_type_name(parts[0])} to {_type_name(parts[1])}"
    if hasattr(annotation, "__metadata__"):
        return _type_name(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(str(member.value) for member in annotation)
    return {float: "number", int: "whole number", str: "text", bool: "true or false"}.get(annotation, "any")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "its defaults"
    if value is None:
        return "null"
    if isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        return "one, of its defaults"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return (
        str(value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value) or "empty"
    )


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for block in blocks():
        parts.append(f"## {block.__name__}\n\n{(block.__doc__ or '').strip()}\n")
        rows = [
            f"| `{name}` | {_type_name(field.annotation)} | {_default(field)} | {field.description or ''} |"
            for name, field in block.model_fields.items()
        ]
        parts.append("\n".join(["| key | value | when absent | meaning |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/service-file.md").write_text(page(), encoding="utf-8")
