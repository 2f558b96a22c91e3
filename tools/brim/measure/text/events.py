"""Callers of a language model over HTTP: Triton's generate extension, whose streams are server-sent events.

What each asks and hears is what ``brim.measure.text.stream`` has of a gRPC stream; a router in front sees the prompt of such a
request, and of a gRPC stream it does not.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self

import aiohttp

from brim.measure.text.stream import LEFT, LONGEST_ERROR, Ask, Heard, clock_us

EVENT = "data: "
LONGEST_LINE = 1 << 20


def body_of(ask: Ask) -> dict[str, Any]:
    """The JSON body of a request; times and the request's own parameters are left out."""
    return {
        "text_input": ask.prompt.decode(),
        "sampling_parameters": json.dumps(ask.options),
        "stream": ask.stream,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }


def take_answer(heard: Heard, text: str, now_us: int) -> bool:
    """Take in one answer's JSON, an event's or that of a whole text. Whether it is what the contract says; if not, ``error`` is set."""
    try:
        answer: dict[str, Any] = json.loads(text)
        piece, tokens, reason = answer["text_output"], int(answer["num_output_tokens"]), answer["finish_reason"]
        heard.input_tokens = int(answer["num_input_tokens"])
    except (ValueError, KeyError, TypeError):
        heard.error = f"not what the contract says: {text[:LONGEST_ERROR]}"
        return False
    if heard.finish_reason:
        heard.strange.append("an event behind the one with the finish reason")
    heard.pieces.append((now_us, tokens, piece))
    heard.finish_reason = "" if reason == "None" else reason
    return True


def take_line(heard: Heard, line: str, now_us: int) -> bool:
    """Take in one line of a stream. Whether to listen on."""
    if not line.strip():
        return True
    if not line.startswith(EVENT):
        heard.strange.append(f"a line that is no event: {line[:LONGEST_ERROR]!r}")
        return True
    return take_answer(heard, line.removeprefix(EVENT), now_us)


class EventCallers:
    """Callers in one asyncio loop, as many connections as requests under way. ``async with`` opens the first of them."""

    def __init__(self, address: str, model: str) -> None:
        """Of a model at ``host:port``; nothing is opened yet."""
        self._url = f"http://{address}/v2/models/{model}/generate_stream"

    async def __aenter__(self) -> Self:
        """Ready to ask."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=LONGEST_LINE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them; whoever still listens is cut off."""
        await self._session.close()

    async def ask(self, ask: Ask, *, limit_s: float = 600.0) -> Heard:
        """Send a request, a stream, and listen to the end.

        Args:
            ask: the request.
            limit_s: after which the caller goes whatever has come.

        Returns:
            What it heard; a refusal or a fault is in ``error``, and none is raised.
        """
        body = json.dumps(body_of(ask)).encode()
        heard = Heard(sent_us=clock_us())
        try:
            async with asyncio.timeout(limit_s), self._session.post(self._url, data=body) as answer:
                if answer.status != 200:
                    said = await answer.content.read(LONGEST_ERROR)
                    heard.error = f"{answer.status}: {said.decode('utf-8', 'replace')}"
                else:
                    async for line in answer.content:
                        if not take_line(heard, line.decode("utf-8", "replace").rstrip("\r\n"), clock_us()):
                            break
        except TimeoutError:
            heard.error = LEFT
        except (OSError, aiohttp.ClientError, ValueError) as error:
            heard.error = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
        heard.ended_us = clock_us()
        if not heard.error and not heard.finish_reason:
            heard.error = "the stream ended without a finish reason"
        return heard
