"""One module a command."""

from __future__ import annotations

import typer

from brim.cli.commands import (
    add,
    bench,
    config,
    dashboards,
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
    top,
    trace,
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
        top,
        gateway,
        picker,
        exporter,
        rules,
        dashboards,
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
        trace,
        report,
        doctor,
    ):
        app.command()(explaining(getattr(module, module.__name__.rpartition(".")[2])))
