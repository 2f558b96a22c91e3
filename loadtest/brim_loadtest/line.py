"""What a caller sends along with its request, and what it needs of a connection, whichever protocol it speaks."""

from __future__ import annotations

from typing import Protocol

from brim.units import US_PER_MS
from brim_loadtest.schedule import Arrival, Caller
from brim_loadtest.tally import Ended

CLASS_HEADER, TENANT_HEADER, TIMEOUT_HEADER = "x-brim-class", "x-brim-tenant", "x-brim-timeout-ms"
REASON_HEADER = "x-brim-reason"
"""Why the gateway refused; in an answer's headers, or in a call's metadata."""


class Line(Protocol):
    """The connections of one worker over one protocol."""

    def open(self) -> None:
        """See that the server is there, before the clock runs.

        Raises:
            ServerFailed: nothing answers.
        """

    def ask(self, arrival: Arrival) -> Ended:
        """Send one request and wait for its end. Whatever is raised inside while it waits, the server is told that the caller left."""

    def close(self) -> None:
        """Close what is open."""


def class_headers(caller: Caller, *, with_timeout: bool) -> dict[str, str]:
    """The class, and its deadline in whole milliseconds where the protocol has no deadline of its own."""
    headers = {} if caller.name is None else {CLASS_HEADER: caller.name}
    if with_timeout and caller.deadline_us is not None:
        headers[TIMEOUT_HEADER] = str(max(1, caller.deadline_us // US_PER_MS))
    return headers


def tenant_name(number: int) -> str:
    """What a tenant calls itself."""
    return f"tenant-{number}"
