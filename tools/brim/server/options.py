"""How a server is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brim.server.endpoint import LOOPBACK
from brim.service.schema import Tracing


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to start: ports (None = chosen by the system), the profile, bounds in seconds, and further server arguments.

    ``trace_file`` is where Triton writes what it follows; without ``tracing`` it follows nothing until it is told to.
    """

    host: str = LOOPBACK
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    profile: str | None = None
    ready_timeout_s: float = 180.0
    exit_timeout_s: int = 10
    tracing: Tracing | None = None
    trace_file: Path | None = None
    extra_arguments: tuple[str, ...] = ()
    extra_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def given_ports(self) -> dict[str, int | None]:
        """The ports by protocol, as ``choose_ports`` takes them."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
