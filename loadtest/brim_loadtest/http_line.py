"""Requests over HTTP from greenlets: geventhttpclient's parser on sockets of our own, which may be slow or close early."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import gevent
import gevent.monkey
import gevent.socket
from geventhttpclient.response import HTTPParseError, HTTPSocketResponse

from brim.errors import ServerFailed
from brim.measure.accounting import Outcome, Reply
from brim.measure.openloop_run import LONGEST_TEXT, http_reply
from brim.units import US_PER_S
from brim_loadtest.job import Job
from brim_loadtest.line import REASON_HEADER, TENANT_HEADER, class_headers, tenant_name
from brim_loadtest.payload import References, outputs_over_http
from brim_loadtest.schedule import SLOW_BODY_US, Arrival
from brim_loadtest.shapes import Behaviour
from brim_loadtest.tally import Ended

BLOCK_BYTES = 1 << 16
SLOW_PIECES = 10
CONNECT_TIMEOUT_S = 10.0
HEADER_LENGTH = "inference-header-content-length"
# gevent's own poll lets other greenlets run, and this one is asked about a moment only.
_poll = gevent.monkey.get_original("select", "poll")


class HttpLine:
    """Connections to one address, as many as there are requests under way; used again when they are free."""

    def __init__(self, job: Job, references: References) -> None:
        """Nothing is opened yet."""
        host, _, port = job.http.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._references = references
        self._idle: list[gevent.socket.socket] = []
        start = f"POST /v2/models/{quote(job.model)}/infer HTTP/1.1\r\nHost: {job.http}\r\n".encode()
        self._starts = [start + _lines(class_headers(one, with_timeout=True)) for one in job.schedule.callers]
        self._ends = [
            _lines({**one.headers, "Content-Length": str(len(one.data))}) + b"\r\n" for one in job.payload.http
        ]
        self._bodies = [one.data for one in job.payload.http]

    def open(self) -> None:
        """See that somebody listens there.

        Raises:
            ServerFailed: nobody does.
        """
        try:
            self._idle.append(self._connect())
        except OSError as error:
            raise ServerFailed(
                f"{self._address[0]}:{self._address[1]}: no server answers: {error}",
                hint="start one with `brim serve`, or check the address",
            ) from error

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    def ask(self, arrival: Arrival) -> Ended:
        """Send one request and wait for its answer; a caller that leaves closes its connection."""
        tenant = _lines({TENANT_HEADER: tenant_name(arrival.tenant)}) if arrival.tenant else b""
        head = b"".join((self._starts[arrival.caller], tenant, self._ends[arrival.row]))
        try:
            response, answer = self._exchange(head, self._bodies[arrival.row], arrival.behaviour)
        except (OSError, HTTPParseError) as error:
            return Ended(Reply(Outcome.FAILED, f"{type(error).__name__}: {error}"[:LONGEST_TEXT]))
        size = len(answer)
        if response.get_code() != 200:
            text = answer[:LONGEST_TEXT].decode("utf-8", "replace")
            return Ended(http_reply(response.get_code(), text), _one(response, REASON_HEADER) or "", answer_bytes=size)
        try:
            fault = self._references.fault(arrival.row, outputs_over_http(answer, _one(response, HEADER_LENGTH)))
        except ValueError as error:
            fault = f"not an answer of KServe v2: {error}"
        if fault:
            return Ended(Reply(Outcome.FAILED, f"wrong: {fault}"[:LONGEST_TEXT]), wrong=True, answer_bytes=size)
        return Ended(Reply(Outcome.ANSWERED), answer_bytes=size)

    def _exchange(self, head: bytes, body: bytes, behaviour: Behaviour) -> tuple[HTTPSocketResponse, bytes]:
        connection = self._take() or self._connect()
        usable = False
        try:
            if behaviour is Behaviour.SLOW:
                for piece in _slowly(head, body):
                    connection.sendall(piece)
            else:
                connection.sendall(head + body)
            response = HTTPSocketResponse(connection, block_size=BLOCK_BYTES, method="POST")
            answer = response.read()
            usable = not response.should_close()
            return response, answer
        finally:
            if usable:
                self._idle.append(connection)
            else:
                connection.close()

    def _take(self) -> gevent.socket.socket | None:
        while self._idle:
            connection = self._idle.pop()
            # What can be read before anything was asked is the end of the connection.
            watch = _poll()
            watch.register(connection.fileno(), select.POLLIN)
            if not watch.poll(0):
                return connection
            connection.close()
        return None

    def _connect(self) -> gevent.socket.socket:
        connection = gevent.socket.create_connection(self._address, timeout=CONNECT_TIMEOUT_S)
        connection.setsockopt(gevent.socket.IPPROTO_TCP, gevent.socket.TCP_NODELAY, 1)
        # How long an answer may take is the caller's business.
        connection.settimeout(None)
        return connection


def _slowly(head: bytes, body: bytes) -> Iterator[bytes]:
    """Head and body in pieces, the last of them ``SLOW_BODY_US`` after the first."""
    yield head
    size = max(1, -(-len(body) // SLOW_PIECES))
    for piece in range(SLOW_PIECES):
        gevent.sleep(SLOW_BODY_US / US_PER_S / SLOW_PIECES)
        if part := body[piece * size : (piece + 1) * size]:
            yield part


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def _one(response: HTTPSocketResponse, name: str) -> str | None:
    """A header's only, or first, value."""
    value = response.get(name)
    return value[0] if isinstance(value, list) else value
