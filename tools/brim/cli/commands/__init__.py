"""One module a command, imported when that command is asked for: some need libraries that take a second to load."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from brim.cli.system_errors import explaining

NAMES = (
    "up",
    "add",
    "export",
    "config",
    "lint",
    "serve",
    "replicas",
    "top",
    "gateway",
    "picker",
    "exporter",
    "rules",
    "dashboards",
    "demo",
    "measure",
    "sweep",
    "bench",
    "simulate",
    "tune",
    "plan",
    "isolate",
    "load",
    "soak",
    "trace",
    "report",
    "doctor",
)
"""Every command, in the order of the flow. Each is the function of its name in the module of its name."""


def find_command(name: str) -> Callable[..., int | None]:
    """A command of ``NAMES``, as the application takes it."""
    return explaining(getattr(importlib.import_module(f"{__name__}.{name}"), name))
