"""The lean HTTP client against a server that answers in every way: in pieces, without a length, too much, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from brim.measure.openloop_http import LARGEST_HEAD, Pool, UnreadableAnswer, whole_request
from brim.measure.openloop_wire import HttpBody

T = TypeVar("T")
REQUEST = whole_request("h", "/v2/models/m/infer", HttpBody(b"abc", {"X-Y": "z"}))
CLOSE = b""
"""A piece that is none: the server closes the connection."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Server:
    """Answers every request with the next pieces, one write each; counts connections and requests."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readexactly(len(REQUEST)))
                pieces = self.answers.pop(0)
                for piece in pieces:
                    if piece == CLOSE:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


def against(server: Callable[[], Server], ask: Callable[[Server, Pool], Awaitable[T]]) -> T:
    async def main() -> T:
        made = server()
        listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        pool = Pool("127.0.0.1", listening.sockets[0].getsockname()[1])
        try:
            async with asyncio.timeout(20):
                return await ask(made, pool)
        finally:
            pool.close()
            listening.close()
            await listening.wait_closed()

    return asyncio.run(main())


def test_a_request_as_it_travels() -> None:
    assert REQUEST == b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nX-Y: z\r\n\r\nabc"


@pytest.mark.parametrize(
    ("pieces", "got"),
    [
        ([OK], (200, b"")),
        ([OK[i : i + 1] for i in range(len(OK))], (200, b"")),
        ([b"HTTP/1.0 503 Busy\r\ncontent-length:4\r\n\r\n", b"fu", b"ll"], (503, b"full")),
        ([b"HTTP/1.1 400 No\r\nCONTENT-LENGTH:  500 \r\n\r\n" + b"x" * 500], (400, b"x" * 200)),
        ([b"HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n"], (404, b"")),
    ],
)
def test_answers_in_pieces(pieces: list[bytes], got: tuple[int, bytes]) -> None:
    async def ask(server: Server, pool: Pool) -> None:
        assert await pool.ask(REQUEST) == got
        assert await pool.ask(REQUEST) == (200, b"")
        assert server.requests == [REQUEST] * 2
        assert server.connections == 1, "a connection that is free is used again"

    against(lambda: Server(pieces, [OK]), ask)


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"], "no length"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi"], "no length"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2, 2\r\n\r\nhi"], "no length"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"], "no length"),
        ([b"SMTP ready\r\n\r\n"], "no HTTP/1.1"),
        ([OK + b"more"], "more than its length"),
        ([b"HTTP/1.1 200 OK\r\n" + b"a" * (LARGEST_HEAD + 1)], "a head of more than"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_that_caller_only(pieces: list[bytes], said: str) -> None:
    async def ask(server: Server, pool: Pool) -> None:
        with pytest.raises(UnreadableAnswer, match=said):
            await pool.ask(REQUEST)
        assert await pool.ask(REQUEST) == (200, b"")
        assert server.connections == 2, "nothing on that connection can be told apart any more"

    against(lambda: Server(pieces, [OK]), ask)


@pytest.mark.parametrize("pieces", [[], [OK[:-1]], [OK[:20]]])
def test_a_connection_that_is_lost_is_an_error(pieces: list[bytes]) -> None:
    async def ask(server: Server, pool: Pool) -> None:
        with pytest.raises(OSError, match="closed the connection"):
            await pool.ask(REQUEST)
        assert await pool.ask(REQUEST) == (200, b"")
        assert server.connections == 2

    against(lambda: Server([*pieces, CLOSE], [OK]), ask)


def test_a_server_that_closes_after_an_answer_gets_a_new_connection() -> None:
    async def ask(server: Server, pool: Pool) -> None:
        for _ in range(2):
            assert await pool.ask(REQUEST) == (200, b"")
        assert server.connections == 2

    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    against(lambda: Server([closing], [OK]), ask)


def test_who_goes_closes_the_connection_and_nobody_elses() -> None:
    async def ask(server: Server, pool: Pool) -> None:
        going = asyncio.create_task(pool.ask(REQUEST))
        while not server.requests:
            await asyncio.sleep(0.001)
        staying = asyncio.create_task(pool.ask(REQUEST))
        while len(server.requests) < 2:
            await asyncio.sleep(0.001)
        going.cancel()
        assert await staying == (200, b"")
        with pytest.raises(asyncio.CancelledError):
            await going
        await server.left.wait()

    against(lambda: Server([b"HTTP/1.1 200 OK\r\n"], [OK[:1], OK[1:]]), ask)


def test_nobody_listens() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="Connect call failed"):
            await Pool("127.0.0.1", 1).ask(REQUEST)

    asyncio.run(main())
