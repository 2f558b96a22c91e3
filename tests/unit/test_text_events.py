"""What a caller over HTTP hears of a stream of events, whole and broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from brim.measure.text.events import EventCallers, body_of, take_line
from brim.measure.text.stream import LEFT, Ask, Heard

ASK = Ask(b"Once", {"max_tokens": 2})
Answer = Callable[[web.StreamResponse], Awaitable[None]]


def event(text: str, reason: str = "None") -> bytes:
    answer = {"text_output": text, "num_output_tokens": 1, "finish_reason": reason, "num_input_tokens": 3}
    return f"data: {json.dumps(answer)}\n\n".encode()


def hear(answer: Answer, *, status: int = 200, limit_s: float = 30.0) -> tuple[Heard, list[object]]:
    """What a caller hears of a server that answers so, and what the server got."""
    got: list[object] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        got.append((request.path, await request.json()))
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        await answer(response)
        return response

    async def go() -> Heard:
        app = web.Application()
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            async with EventCallers(f"127.0.0.1:{port}", "story") as callers:
                return await callers.ask(ASK, limit_s=limit_s)
        finally:
            await runner.cleanup()

    return asyncio.run(go()), got


async def whole(response: web.StreamResponse) -> None:
    # A piece comes in two halves, and two pieces at once.
    first, more = event("a"), event("b") + event("", "length")
    await response.write(first[:10])
    await response.write(first[10:])
    await response.write(more)


async def broken_off(response: web.StreamResponse) -> None:
    await response.write(event("a"))


async def refused(response: web.StreamResponse) -> None:
    await response.write(b'{"error": "room_full: 8 run"}')


async def fault(response: web.StreamResponse) -> None:
    await response.write(event("a") + b'data: {"error": "engine_lost: gone"}\n\n')


async def silent(response: web.StreamResponse) -> None:
    await response.write(event("a"))
    await asyncio.sleep(3_600)


def test_a_whole_text_is_heard_piece_by_piece() -> None:
    heard, got = hear(whole)
    assert heard.complete and heard.text == "ab" and heard.finish_reason == "length" and heard.input_tokens == 3
    assert [tokens for _, tokens, _ in heard.pieces] == [1, 1, 1]
    assert heard.first_us is not None and heard.sent_us <= heard.first_us <= heard.ended_us
    assert got == [("/v2/models/story/generate_stream", body_of(ASK))]


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (broken_off, 200, "the stream ended without a finish reason"),
        (refused, 429, '429: {"error": "room_full'),
        (fault, 200, "not what the contract says: {"),
    ],
)
def test_what_is_no_whole_text_says_why(answer: Answer, status: int, error: str) -> None:
    heard, _ = hear(answer, status=status)
    assert not heard.complete and heard.error.startswith(error)
    assert heard.ended_us >= heard.sent_us > 0


def test_a_caller_does_not_wait_for_ever() -> None:
    heard, _ = hear(silent, limit_s=0.5)
    assert heard.error == LEFT


def test_where_nobody_listens_it_is_said() -> None:
    async def go() -> Heard:
        async with EventCallers("127.0.0.1:1", "story") as callers:
            return await callers.ask(ASK)

    assert "ClientConnectorError" in asyncio.run(go()).error


def test_what_is_no_event_is_strange_and_no_end() -> None:
    heard = Heard()
    assert take_line(heard, ": a comment", 5) and take_line(heard, "", 5) and not heard.pieces
    assert heard.strange == ["a line that is no event: ': a comment'"]
    assert take_line(heard, event("x", "stop").decode().strip(), 7) and heard.pieces == [(7, 1, "x")]
    assert take_line(heard, event("y").decode().strip(), 8)
    assert heard.strange[1:] == ["an event behind the one with the finish reason"]
