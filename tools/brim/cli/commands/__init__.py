"""One module a command."""

from __future__ import annotations

import typer

from brim.cli.commands import config, serve


def register(app: typer.Typer) -> None:
    """Add every command to the application, in the order of the flow."""
    for module in (config, serve):
        app.command()(getattr(module, module.__name__.rpartition(".")[2]))
