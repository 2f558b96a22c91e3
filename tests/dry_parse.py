"""Whether the command line takes some words, without doing what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from brim.cli import app as command_line


def fault_of(words: Sequence[str]) -> str | None:
    """What `brim` has against its arguments (``words``, without its own name); None when nothing.

    Only the parser runs: options, their values and the arguments' count. What a command checks by itself is not looked at.
    """
    group: Any = typer.main.get_command(command_line._application(next(iter(words), "")))
    try:
        with group.make_context("brim", list(words)) as context:
            name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
            with command.make_context(name, rest, parent=context):
                return None
    except typer.TyperException as error:
        return str(error.format_message() if hasattr(error, "format_message") else error)
