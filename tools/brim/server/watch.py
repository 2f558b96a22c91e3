"""Stay beside a running server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from brim.errors import ServerFailed
from brim.server.child import ChildServer
from brim.server.logs import bound_log, log_tail
from brim.server.supervise import Supervisor


def watch(
    server: ChildServer,
    *,
    supervisor: Supervisor | None = None,
    every: Callable[[], None] = lambda: None,
    poll_s: float = 0.2,
) -> NoReturn:
    """Keep the server's log bounded for as long as it runs; an exception (a signal's, say) is the way out.

    ``every`` is called at each look.

    Raises:
        ServerFailed: the server ended by itself, or its supervisor gave up.
    """
    while True:
        if supervisor is not None and supervisor.failed is not None:
            raise supervisor.failed
        ended = None if supervisor is not None else server.how_it_ended()
        if ended:
            raise ServerFailed(
                f"{ended}\nthe end of {server.log_file}:\n{log_tail(server.log_file)}",
                hint="start it again with the same command; `brim doctor` looks at memory and leftovers first",
            )
        bound_log(server.log_file)
        every()
        time.sleep(poll_s)
