"""Triton's tracing as arguments of tritonserver, the same for the embedded server, a container and production.

Names and meaning: docs/user_guide/trace.md of triton-inference-server/server, and ``src/command_line_parser.cc`` at v2.51.0.
The wheel's server has both modes (its program holds the OTLP exporter; run in the tests).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from brim.errors import InputError
from brim.service.schema import Service, Tracing

NO_BOUND = -1
"""Of ``count``, where traces are sent away and not kept: the exporter drops what its queue of 2,048 spans has no room for."""


def asked_of(services: Iterable[Service]) -> Tracing | None:
    """What services that are served together want of their server; None when none of them wants tracing.

    Raises:
        InputError: they want different things; every one is named.
    """
    asked = {service.name: service.tracing for service in services if service.tracing is not None}
    if len(set(asked.values())) > 1:
        raise InputError(
            "one server has one tracing, and these services ask for different ones:\n"
            + "\n".join(f"{name}: {tracing.model_dump(exclude_defaults=True)}" for name, tracing in asked.items()),
            hint="give them the same `tracing` in services/NAME.yaml, or serve them apart",
        )
    return next(iter(asked.values()), None)


def hides_contexts(tracing: Tracing | None) -> bool:
    """Whether callers' ``traceparent`` must not reach the server: it would follow each of them, whatever the rate."""
    return tracing is not None and tracing.mode == "opentelemetry" and not tracing.follow_callers


def trace_arguments(tracing: Tracing | None, file: PurePath | None) -> tuple[str, ...]:
    """Arguments of tritonserver.

    Args:
        tracing: what is followed. None: nothing until the server is told over ``/v2/trace/setting``.
        file: where traces go, with a number behind; in a folder that is there, for Triton makes none and says nothing. It
            cannot be given later. None: the server keeps no traces, and cannot be told to.
    """
    if tracing is not None and tracing.mode == "opentelemetry":
        settings = {
            "mode": "opentelemetry",
            "level": "TIMESTAMPS",
            "rate": str(tracing.rate),
            "count": str(NO_BOUND),
            "opentelemetry,url": str(tracing.endpoint),
        }
    elif file is None:
        return ()
    elif tracing is None:
        settings = {"mode": "triton", "level": "OFF", "triton,file": str(file)}
    else:
        settings = {
            "mode": "triton",
            "level": "TIMESTAMPS",
            "rate": str(tracing.rate),
            "count": str(tracing.most_traces),
            "triton,file": str(file),
            "triton,log-frequency": str(tracing.traces_per_file),
        }
    return tuple(f"--trace-config={name}={value}" for name, value in settings.items())
