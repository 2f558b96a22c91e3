"""Where the time to the first token goes: the client's figure and the server's, and what lies between them.

Means add up and percentiles do not, so the parts are means. The client's time begins when a request was due, the server's
when its scheduler has it; the server's ends with the step of the first token, the client's when its event loop has read the piece.
"""

from __future__ import annotations

from brim.engine.metrics import QUEUE_WAIT, TTFT
from brim.measure.histogram import Latencies
from brim.measure.text.server_side import Difference


def ttft_parts(
    ttft: Latencies, since_sent: Latencies, turnaround: Latencies, lag: Latencies, change: Difference | None
) -> dict[str, float | int | None]:
    """Mean microseconds of each part of the time to the first token; None where it could not be had.

    Args:
        ttft: the client's, from due.
        since_sent: the same from sending.
        turnaround: of requests that are refused while they are read, so that none waits for a step: the way there, parsing, and
            the way back.
        lag: how late the client's event loop came.
        change: the server's metrics around the run.

    Returns:
        ``client`` = ``sent_late`` + ``outside_server`` + ``queue`` + ``prefill``, where ``server`` = ``queue`` + ``prefill``.
        ``outside_server`` is what no one metric says: transport and parsing before the scheduler has it, and delivery after
        the step. Of it ``turnaround`` is what a request costs that never waits for the engine, and ``delivery`` the rest:
        handing over, sending and reading the pieces of everybody whose token came with the same step. ``client_lag`` is a
        part of both.
    """
    client, from_sent = ttft.mean_us, since_sent.mean_us
    observed = None if change is None else change.observed(TTFT)
    waited = None if change is None else change.observed(QUEUE_WAIT)
    server = None if observed is None else observed.mean_us
    queue = None if waited is None else waited.mean_us
    outside = None if from_sent is None or server is None else from_sent - server
    return {
        "client": client,
        "sent_late": None if client is None or from_sent is None else client - from_sent,
        "server": server,
        "queue": queue,
        "prefill": None if server is None or queue is None else server - queue,
        "outside_server": outside,
        "turnaround": turnaround.mean_us,
        "delivery": None if outside is None or turnaround.mean_us is None else max(0.0, outside - turnaround.mean_us),
        "client_lag": lag.mean_us,
        "client_count": ttft.count,
        "server_count": None if observed is None else observed.count,
    }
