"""Is the GPU full? Are callers happy? Who is refused, and why?"""

from __future__ import annotations

from brim.dashboards.board import MODEL, Board, Needs, Panel, Row, Shape, Unit, lines
from brim.plan import series

FULL = Row(
    "Is the GPU full?",
    (
        Panel(
            "Fill",
            "Mean batch / largest batch. Near 1 the batcher gets what the model "
            "can take; low fill at high duty wants a delay or larger batches.",
            Unit.SHARE,
            lines((f"{series.FILL}{{{MODEL}}}", "{{model}}")),
            most=1,
        ),
        Panel(
            "Duty",
            "Time in which instances were taken / (wall time x instances). A small batch "
            "keeps an instance as busy as a full one, so look at fill beside it.",
            Unit.SHARE,
            lines((f"{series.DUTY}{{{MODEL}}}", "{{model}}")),
            most=1,
        ),
        Panel(
            "GPU utilisation",
            "Share of time in which any kernel ran, as the driver says. It is "
            "near 1 long before the GPU is full, so nothing is scaled by it.",
            Unit.SHARE,
            lines((f"avg by (gpu_uuid) ({series.GPU_UTILISATION})", "{{gpu_uuid}}")),
            most=1,
            needs=Needs.GPU,
        ),
    ),
)
HAPPY = Row(
    "Are callers happy?",
    (
        Panel(
            "Inside the objective, 5 minutes",
            "Answers within the objective / requests that it is for (their "
            "own errors and callers who left are not among them).",
            Unit.SHARE,
            lines((f'{series.GOODPUT_RATIO}{{{MODEL}, window="5m"}}', "{{model}} {{class}}")),
            most=1,
        ),
        Panel(
            "Error budget burnt",
            "How many times faster than it lasts, and where the fast alert's limit is. 1 uses it up exactly.",
            Unit.COUNT,
            lines(
                (f'{series.BURN}{{{MODEL}, window=~"5m|1h"}}', "{{model}} {{class}} over {{window}}"),
                (f'{series.BURN_LIMIT}{{{MODEL}, pace="fast"}}', "{{model}} {{class}} limit"),
            ),
        ),
        Panel(
            "Alerts firing",
            "All of Prometheus' alerts; each has a page in docs/runbooks.",
            Unit.COUNT,
            lines(('count(ALERTS{alertstate="firing"}) or vector(0)', "firing")),
            Shape.NUMBER,
        ),
        Panel(
            "Latency of right answers",
            "At the gateway, of answers only: refusals are fast and are "
            "not in it. Interpolated between the bounds of a histogram.",
            Unit.MICROSECONDS,
            lines(
                (f"{series.LATENCY_P50}{{{MODEL}}}", "{{model}} {{class}} p50"),
                (f"{series.LATENCY_P99}{{{MODEL}}}", "{{model}} {{class}} p99"),
            ),
        ),
        Panel(
            "Requests by outcome",
            "Every request that ended at the gateway. own_error is the caller's; expired, failed and refused are ours.",
            Unit.PER_SECOND,
            lines((f"sum by (outcome) ({series.OUTCOME_RATE}{{{MODEL}}})", "{{outcome}}")),
            Shape.STACK,
        ),
        Panel(
            "Goodput",
            "Answers within the objective a second. At overload it should stand still, not fall.",
            Unit.PER_SECOND,
            lines((f"{series.GOODPUT}{{{MODEL}}}", "{{model}} {{class}}")),
        ),
    ),
)
REFUSED = Row(
    "Who is refused, and why?",
    (
        Panel(
            "Refused, by class and reason",
            "queue_full and room_full: no room for anybody. shed: batch requests gave way. deadline and "
            "deadline_unreachable: an answer would have come too late. tenant_rate: one caller's share is used up.",
            Unit.PER_SECOND,
            lines(
                (
                    f"sum by (model, class, reason) ({series.REFUSED_RATE}{{{MODEL}}})",
                    "{{model}} {{class}} {{reason}}",
                )
            ),
            Shape.STACK,
        ),
        Panel(
            "In flight at the gateway",
            "Requests between gateway and servers, and the bound at which all "
            "classes are refused (less important ones are refused earlier).",
            Unit.COUNT,
            lines(
                (f"sum by (model) (brim_gateway_in_flight{{{MODEL}}})", "{{model}}"),
                (f"max by (model) (brim_gateway_in_flight_limit{{{MODEL}}})", "{{model}} limit"),
            ),
        ),
        Panel(
            "Wait for a batch",
            "Mean wait of the answered before their batch began, and what is too "
            "long (a quarter of the objective). Of a language model: for a seat.",
            Unit.MICROSECONDS,
            lines(
                (f"{series.QUEUED}{{{MODEL}}}", "{{model}}"),
                (f"{series.QUEUED_LIMIT}{{{MODEL}}}", "{{model}} limit"),
            ),
        ),
    ),
)
OVERVIEW = Board(
    "overview",
    "Brim: overview",
    "Is the GPU full, are callers happy, who is refused and why.",
    series.RATE,
    (FULL, HAPPY, REFUSED),
)
