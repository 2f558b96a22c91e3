"""One module a command."""

from __future__ import annotations

import typer

from brim.cli.commands import add, config, doctor, export, isolate, lint, measure, serve, up
from brim.cli.system_errors import explaining


def register(app: typer.Typer) -> None:
    """Add every command to the application, in the order of the flow."""
    for module in (up, add, export, config, lint, serve, measure, isolate, doctor):
        app.command()(explaining(getattr(module, module.__name__.rpartition(".")[2])))
