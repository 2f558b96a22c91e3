"""Where a running server answers, and the two questions that every part asks of it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from http.client import HTTPException
from urllib.parse import urlsplit

from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from brim.errors import InputError

LOOPBACK = "127.0.0.1"
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):[1-9]\d{0,4}")
NO_ANSWER = (OSError, HTTPException, ValueError, InferenceServerException)
"""What tritonclient raises over HTTP when a server refuses, is gone, or answers something that is not KServe v2."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``host:port`` of each protocol. ``metrics`` is None where a foreign server does not tell."""

    http: str
    grpc: str
    metrics: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """The three addresses as they stand in the ``ready`` event."""
        return asdict(self)

    def http_client(self, *, concurrency: int = 1, timeout_s: float = 30.0) -> triton_http.InferenceServerClient:
        """A KServe v2 client over HTTP. The caller closes it."""
        return triton_http.InferenceServerClient(
            self.http, concurrency=concurrency, connection_timeout=timeout_s, network_timeout=timeout_s
        )

    def grpc_client(self) -> triton_grpc.InferenceServerClient:
        """A KServe v2 client over gRPC. The caller closes it."""
        return triton_grpc.InferenceServerClient(self.grpc)


def endpoint_from_url(url: str, *, grpc_port: int | None = None, metrics_port: int | None = None) -> Endpoint:
    """The endpoint of a server that somebody else runs, from its HTTP address.

    Args:
        url: ``http://host:port`` or ``host:port`` of the HTTP side.
        grpc_port: its gRPC port; the HTTP port plus one (Triton's habit) when absent.
        metrics_port: its metrics port; the HTTP port plus two when absent.

    Raises:
        InputError: the address has no host or no port, or a scheme other than http.
    """
    hint = "give the HTTP address of a KServe v2 server, such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise InputError(f"{url}: {error}", hint=hint) from error
    if parts.scheme != "http":
        raise InputError(f"{url}: the scheme is {parts.scheme!r}, and only http is spoken here", hint=hint)
    if not parts.hostname or port is None:
        raise InputError(f"{url}: expected host:port", hint=hint)
    host = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
    return Endpoint(
        http=f"{host}:{port}", grpc=f"{host}:{grpc_port or port + 1}", metrics=f"{host}:{metrics_port or port + 2}"
    )
