"""The same question over HTTP: Triton's generate extension, which makes JSON or server-sent events of a decoupled model."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request

from brim.measure.text.events import body_of, take_answer, take_line
from brim.measure.text.stream import LONGEST_ERROR, Ask, Heard
from brim.server.endpoint import Endpoint

MOST_BYTES = 1 << 24


def over_http(endpoint: Endpoint, model: str, ask: Ask, *, timeout_s: float) -> Heard:
    """Ask ``/generate``, or ``/generate_stream`` where the request is a stream; times are left out."""
    path = "generate_stream" if ask.stream else "generate"
    request = urllib.request.Request(
        f"http://{endpoint.http}/v2/models/{model}/{path}",
        json.dumps(body_of(ask)).encode(),
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
    well = all(take_line(heard, line, 0) for line in text.split("\n")) if stream else take_answer(heard, text, 0)
    return heard if well else Heard(error=heard.error)
