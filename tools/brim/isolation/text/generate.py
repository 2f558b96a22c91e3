"""The same question over HTTP: Triton's generate extension, which makes JSON or server-sent events of a decoupled model."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from brim.measure.text.stream import LONGEST_ERROR, Ask, Heard
from brim.server.endpoint import Endpoint

EVENT = "data: "
MOST_BYTES = 1 << 24


def over_http(endpoint: Endpoint, model: str, ask: Ask, *, timeout_s: float) -> Heard:
    """Ask ``/generate``, or ``/generate_stream`` where the request is a stream; times are left out."""
    body = {
        "text_input": ask.prompt.decode(),
        "sampling_parameters": json.dumps(ask.options),
        "stream": ask.stream,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    path = "generate_stream" if ask.stream else "generate"
    request = urllib.request.Request(
        f"http://{endpoint.http}/v2/models/{model}/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read(MOST_BYTES).decode("utf-8")
    except urllib.error.HTTPError as error:
        return Heard(error=f"{error.code}: {error.read(LONGEST_ERROR).decode('utf-8', 'replace')}")
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        return Heard(error=f"{type(error).__name__}: {error}"[:LONGEST_ERROR])
    return heard_of(text, stream=ask.stream)


def heard_of(text: str, *, stream: bool) -> Heard:
    """What the body of an answer says."""
    heard = Heard()
    lines = [line for line in text.split("\n") if line.strip()] if stream else [text]
    for line in lines:
        if stream and not line.startswith(EVENT):
            heard.strange.append(f"a line that is no event: {line[:LONGEST_ERROR]!r}")
            continue
        try:
            event: dict[str, Any] = json.loads(line.removeprefix(EVENT))
            piece, tokens, reason = event["text_output"], int(event["num_output_tokens"]), event["finish_reason"]
        except (ValueError, KeyError, TypeError):
            return Heard(error=f"not what the contract says: {line[:LONGEST_ERROR]}")
        if heard.finish_reason:
            heard.strange.append("an event behind the one with the finish reason")
        heard.pieces.append((0, tokens, piece))
        heard.finish_reason = "" if reason == "None" else reason
        heard.input_tokens = int(event["num_input_tokens"])
    return heard
