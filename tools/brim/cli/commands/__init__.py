"""One module a command."""

from __future__ import annotations

import typer

from brim.cli.commands import (
    add,
    bench,
    config,
    demo,
    doctor,
    export,
    exporter,
    gateway,
    isolate,
    lint,
    load,
    measure,
    picker,
    plan,
    replicas,
    report,
    rules,
    serve,
    simulate,
    soak,
    sweep,
    tune,
    up,
)
from brim.cli.system_errors import explaining


def register(app: typer.Typer) -> None:
    """Add every command to the application, in the order of the flow."""
    for module in (
        up,
        add,
        export,
        config,
        lint,
        serve,
        replicas,
        gateway,
        picker,
        exporter,
        rules,
        demo,
        measure,
        sweep,
        bench,
        simulate,
        tune,
        plan,
        isolate,
        load,
        soak,
        report,
        doctor,
    ):
        app.command()(explaining(getattr(module, module.__name__.rpartition(".")[2])))
