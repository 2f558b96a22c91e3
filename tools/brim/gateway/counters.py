"""Every inference by model, class, code and reason, and its time, on Envoy's own metrics page."""

from __future__ import annotations

from collections.abc import Mapping

from brim.gateway.admission import Admission
from brim.gateway.replies import HOST_ERRORS
from brim.gateway.routes import GRPC_STREAM
from brim.gateway.xds import AROUND_HEADER, NOT, REASON_HEADER, TYPE, Document, equal
from brim.units import US_PER_MS

STATS_PREFIX = "brim"
BOUNDS_MS = (*(1, 2, 5, 10, 20, 50, 100, 200, 500), *(1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 300_000))
"""Of the histogram of times; Envoy's own have nothing between 10 and 25."""
HISTOGRAMS_EVERY_S = 1
"""How often Envoy brings histograms up to date; counters always are."""

LAST_TIME: Document = {"header_filter": {"header": equal(AROUND_HEADER, "1") | NOT}}
"""What goes around once is noted when it comes back."""
STREAM_OUTCOMES = (
    *("admitted", "answered", "failed", "left", *(f"host_{reason}" for reason in HOST_ERRORS)),
    *("queue_full", "shed", "deadline_unreachable", "bad_request", "unknown_class"),
)
"""``stream.lua`` notes how many of a stream's requests had each. Those of the first line from the second on make ``admitted``."""


def counters() -> list[Document]:
    """What counts calls, and what counts the requests of a stream, when they end.

    The bounds on the number of series: models and classes are those of the configuration, and reasons and codes are few.
    """
    tags = [
        tag(name, text)
        for name, text in (
            ("model", "%DYNAMIC_METADATA(brim:model)%"),
            ("class", "%DYNAMIC_METADATA(brim:class)%"),
            ("code", "%RESPONSE_CODE%"),
            ("grpc_status", "%GRPC_STATUS_NUMBER%"),
            # Over SSE an error may come after the head of the answer.
            ("reason", f"%RESP({REASON_HEADER})%%DYNAMIC_METADATA(brim:broken)%"),
            ("flags", "%RESPONSE_FLAGS%"),
        )
    ]
    no_stream = {"header_filter": {"header": equal(":path", GRPC_STREAM) | NOT}}
    of_calls = logger(
        {"and_filter": {"filters": [LAST_TIME, no_stream]}},
        counters=[{"stat": {"name": "requests", "tags": tags}, "value_fixed": 1}],
        histograms=[
            {
                # Those of the counter, so that whoever compares the two finds the same requests in both.
                "stat": {"name": "request_duration", "tags": tags},
                "unit": "Milliseconds",
                "value_format": "%DURATION%",
            }
        ],
    )
    of_streams = logger(
        {"header_filter": {"header": equal(":path", GRPC_STREAM)}},
        counters=[
            {
                "stat": {"name": "stream_requests", "tags": [*tags[:2], tag("outcome", outcome)]},
                "value_format": f"%DYNAMIC_METADATA(brim:{outcome})%",
            }
            for outcome in STREAM_OUTCOMES
        ],
    )
    return [of_calls, of_streams]


def tag(name: str, text: str) -> Document:
    """A label of a series."""
    return {"name": name, "value_format": text}


def logger(which: Document, **stats: list[Document]) -> Document:
    """An access log that counts."""
    return {
        "name": "envoy.access_loggers.stats",
        "filter": which,
        "typed_config": {
            "@type": f"{TYPE}extensions.access_loggers.stats.v3.Config",
            "stat_prefix": STATS_PREFIX,
            **stats,
        },
    }


def bounds_ms(admitted: Mapping[str, Admission]) -> list[int]:
    """Of the histogram of times. Every objective is one of them, or how many were in time could only be guessed.

    Envoy cuts a time down to whole milliseconds, so such a part of an objective changes nothing.
    """
    objectives = {bound_ms(one) for bounds in admitted.values() for one in bounds.objectives_us}
    return sorted({*BOUNDS_MS, *objectives})


def bound_ms(objective_us: int) -> int:
    """The bound of the histogram that stands for an objective."""
    return max(1, objective_us // US_PER_MS)


def histogram_settings(admitted: Mapping[str, Admission]) -> Document:
    """``stats_config`` with those bounds (``envoy.config.metrics.v3.StatsConfig``)."""
    bounds = [float(bound) for bound in bounds_ms(admitted)]
    return {"histogram_bucket_settings": [{"match": {"prefix": f"{STATS_PREFIX}."}, "buckets": bounds}]}
