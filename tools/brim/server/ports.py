"""Ports: chosen by the operating system, or given and checked before the server is started."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import psutil

from brim.errors import InputError, PortInUse


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                name = psutil.Process(connection.pid).name() if connection.pid else "a process of another user"
                return f" by {name} (pid {connection.pid})" if connection.pid else f" by {name}"
    except psutil.Error:
        pass
    return ""


def choose_ports(host: str, given: dict[str, int | None]) -> dict[str, int]:
    """A port for each name: the given one after a check that it is free, else one that the system picks.

    All are held open together while choosing, so that no two names get the same port.

    Raises:
        PortInUse: a given port is taken; names the holder where the system tells.
        InputError: a given port is outside 1..65535, needs rights that this user lacks, or stands twice.
    """
    asked = [port for port in given.values() if port]
    doubled = {port for port in asked if asked.count(port) > 1}
    if doubled:
        raise InputError(
            f"port {min(doubled)} is given twice", hint="each of HTTP, gRPC and metrics needs its own port"
        )
    with ExitStack() as held:
        ports = {}
        for name, port in given.items():
            if port is not None and not 1 <= port <= 65535:
                raise InputError(f"{name} port {port}: expected 1..65535", hint="leave the port out to have one chosen")
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port or 0))
                listener.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortInUse(
                        f"{name} port {port} on {host} is in use{_holder(port or 0)}",
                        hint=f"stop that process, give another port with --{name}-port, or leave it out to have one chosen",
                    ) from error
                raise InputError(
                    f"{name} port {port} on {host} cannot be opened: {error.strerror}",
                    hint="give a port above 1023 that this user may open, or leave it out to have one chosen",
                ) from error
            ports[name] = int(listener.getsockname()[1])
        return ports
