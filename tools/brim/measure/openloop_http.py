"""A lean HTTP/1.1 client for the open loop: requests that are bytes already, answers that are a status and a length.

A general client spends several times as much on a request as this (docs/measuring.md has the figures), and a generator
that is busy with itself measures itself. What it cannot read, such as an answer in chunks, is an error and no guess.
"""

from __future__ import annotations

import asyncio
import re

from brim.measure.openloop_wire import HttpBody

LARGEST_HEAD = 64 * 1024
TEXT_KEPT = 200
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_DIGITS = re.compile(rb"\d{1,15}")
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*(?=\r\n)", re.IGNORECASE)


class UnreadableAnswer(ConnectionError):
    """What came is no HTTP/1.1 answer with a length."""


def whole_request(host: str, path: str, body: HttpBody) -> bytes:
    """A ``POST`` as it travels."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body.data)}",
        *(f"{name}: {value}" for name, value in body.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body.data


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        """Not connected yet; the event loop does that."""
        self.usable = True
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._head = bytearray()
        self._status = 0
        self._left: int | None = None
        self._text = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The event loop's word that it stands."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """The event loop's word that it is gone."""
        self.usable = False
        self._fail(error or ConnectionResetError("the server closed the connection"))

    def send(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send; the future gives the status and the beginning of the body of anything but a 200."""
        assert self._transport is not None
        assert self._answer is None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close it, whatever is under way: to the server that is a caller who went away."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """The event loop's word that something came."""
        if self._answer is None:
            # Nobody asked: nothing on this connection can be told apart any more.
            self.close()
            return
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > LARGEST_HEAD:
                    self._refuse(f"a head of more than {LARGEST_HEAD} bytes")
                return
            data = bytes(self._head[end + 4 :])
            if not self._read_head(bytes(self._head[: end + 2])):
                return
        assert self._left is not None
        if len(data) > self._left:
            self._refuse("more than its length")
            return
        self._left -= len(data)
        if self._status != 200 and len(self._text) < TEXT_KEPT:
            self._text += data[:TEXT_KEPT]
        if self._left == 0:
            self._complete()

    def _read_head(self, head: bytes) -> bool:
        status, lengths = _STATUS.match(head), _LENGTH.findall(head)
        if status is None or len(lengths) != 1 or not _DIGITS.fullmatch(lengths[0]):
            self._refuse(f"no length: {head[:TEXT_KEPT]!r}" if status else f"no HTTP/1.1: {head[:TEXT_KEPT]!r}")
            return False
        self._status, self._left = int(status[1]), int(lengths[0])
        if _CLOSE.search(head):
            self.usable = False
        return True

    def _complete(self) -> None:
        answer, text = self._answer, bytes(self._text)
        self._answer, self._left = None, None
        self._head.clear()
        self._text.clear()
        if answer is not None and not answer.done():
            answer.set_result((self._status, text))

    def _refuse(self, what: str) -> None:
        self._fail(UnreadableAnswer(f"the answer has {what}"))
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self._answer = None


class Pool:
    """Connections to one address: as many as there are requests under way, used again when they are free."""

    def __init__(self, host: str, port: int) -> None:
        """Nothing is opened yet."""
        self._address = (host, port)
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and the beginning of the body of anything but a 200. Cancelled, its connection is closed.

        Raises:
            OSError: there is no connection, or it was lost; ``UnreadableAnswer`` is one.
        """
        connection = self._take() or await self._open()
        try:
            return await connection.send(request)
        except BaseException:
            connection.close()
            raise
        finally:
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.close()
                self._all.discard(connection)

    async def open(self, count: int) -> None:
        """Have so many connections ready.

        Raises:
            OSError: one cannot be made.
        """
        self._idle += [await self._open() for _ in range(count)]

    def close(self) -> None:
        """Close all of them."""
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()

    def _take(self) -> Connection | None:
        # The one that was used last: the server's kernel has it at hand.
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._all.discard(connection)
        return None

    async def _open(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, *self._address)
        self._all.add(connection)
        return connection
