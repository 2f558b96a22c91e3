"""Invented callers of a language model, and a point made of what they heard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from brim.engine.lifecycle import RequestClass
from brim.engine.traffic import Call
from brim.measure.histogram import Latencies
from brim.measure.openloop_limits import Evidence
from brim.measure.text.account import TextAccount, Window
from brim.measure.text.lengths import mix_of
from brim.measure.text.measure import make_text_point
from brim.measure.text.outcome import reply_of
from brim.measure.text.plan import TextPlan
from brim.measure.text.point import TextPoint, TextProvenance
from brim.measure.text.run import TextRun
from brim.measure.text.server_side import Difference, Looks, parse_page
from brim.measure.text.stream import Heard
from brim.measure.text.token_times import TokenObjective

S = 1_000_000
SLO = TokenObjective(99, 200_000, 50_000)
CALL = Call(10, 4, 4)
CLASSES = {RequestClass.INTERACTIVE: "interactive", RequestClass.BATCH: "batch"}
PROVENANCE = TextProvenance(
    command=["brim", "measure", "m"],
    server="triton 2.51.0",
    brim="0.1.0",
    usable_cores=2,
    load_average=0.5,
    started_at="2026-01-01T00:00:00+00:00",
    seed=0,
    words_seed="00",
)


def spoken(sent_us: int, ttft_us: int = 100_000, gaps_us: Sequence[int] = (20_000,) * 3) -> Heard:
    """A whole text of one token a piece."""
    heard = Heard(sent_us=sent_us, finish_reason="length", input_tokens=10)
    at_us = sent_us + ttft_us
    heard.pieces.append((at_us, 1, "a"))
    for gap_us in gaps_us:
        at_us += gap_us
        heard.pieces.append((at_us, 1, "b"))
    heard.ended_us = at_us
    return heard


def failed(sent_us: int, error: str, after_us: int = 1_000) -> Heard:
    """A request that was not answered."""
    return Heard(sent_us=sent_us, ended_us=sent_us + after_us, error=error)


def account_of(heard: Sequence[Heard], *, duration_us: int = S, objective: TokenObjective | None = SLO) -> TextAccount:
    """All of them, sent when they were due, in a window that begins at 0."""
    account = TextAccount(Window(0, duration_us), objective, late_us=1_000)
    for one in heard:
        account.add(CALL, one.sent_us, one, reply_of(one))
    return account


def page(
    *, first_tokens: int = 0, ttft_s: float = 0.0, waited_s: float = 0.0, step_s: float = 0.0, steps: int = 0
) -> str:
    """A metrics page of the model ``m``, and one line of another."""
    labels = '{model="m",process="7",version="1"}'

    def histogram(name: str, count: int, total: float) -> list[str]:
        bounds = [f'{name}_bucket{{model="m",process="7",le="{bound}"}} {count}' for bound in ("0.1", "+Inf")]
        return [*bounds, f"{name}_sum{labels} {total}", f"{name}_count{labels} {count}"]

    return "\n".join(
        [
            "# HELP brim_llm_steps_total Engine steps.",
            f"brim_llm_requests_running{labels} 0",
            f"brim_llm_requests_waiting{labels} 0",
            f"brim_llm_prefix_cache_hit_tokens_total{labels} {first_tokens}",
            'brim_llm_requests_running{model="other",process="8",version="1"} 5',
            f'brim_llm_requests_total{{end="length",model="m",process="7",version="1"}} {first_tokens}',
            *histogram("brim_llm_time_to_first_token_seconds", first_tokens, ttft_s),
            *histogram("brim_llm_queue_wait_seconds", first_tokens, waited_s),
            *histogram("brim_llm_step_seconds", steps, step_s),
        ]
    )


def text_point(callers: int = 4, heard: Sequence[Heard] | None = None, *, limits: Sequence[str] = ()) -> TextPoint:
    """A closed loop's point: by default ten whole texts of 160 ms and one refusal."""
    given = [spoken(90_000 * number) for number in range(10)] + [failed(5, "room_full: no place")]
    whole = account_of(given if heard is None else heard)
    looks = Looks([2.0, 4.0], [0.0, 0.0], [0.1, 0.3])
    change = Difference(parse_page(page(), "m"), parse_page(page(first_tokens=10, ttft_s=0.9, waited_s=0.2), "m"))
    run = TextRun(
        whole, {"interactive": whole}, Evidence(0.1, 500, callers), list(limits), Latencies(), Latencies(), looks, S
    )
    plan = TextPlan(
        concurrencies=[callers],
        schedules=[],
        duration_us=S,
        mix=mix_of("10", "4", context_tokens=64),
        mix_words="prompts of 10 tokens, texts of 4",
        context_tokens=64,
        max_sequences=8,
        objective=SLO,
        classes=CLASSES,
    )
    return make_text_point("m", plan, callers, run, change, f"m/concurrency={callers}/0/0", PROVENANCE)


def line(point: TextPoint) -> dict[str, Any]:
    """The point as it stands in the file."""
    document: dict[str, Any] = json.loads(json.dumps(point.as_json()))
    return document
