"""What the dynamic batcher makes of what comes."""

from __future__ import annotations

from brim.dashboards.board import MODEL, WINDOW, Board, Panel, Row, Shape, Unit, lines, per, percentile, rate
from brim.exporter.server_said import ROWS_BOUNDS
from brim.plan import series

ROWS, COUNT, BUCKETS = (f"{series.BATCH_ROWS}_{part}" for part in ("sum", "count", "bucket"))
LAUNCHES = "brim_launches_total"
COMPUTE_US = "nv_inference_compute_infer_duration_us"
FAILURES = "nv_inference_request_failure"
# Prometheus 3 writes 1 as 1.0.
COMMON_BOUNDS = f'le=~"({"|".join(map(str, ROWS_BOUNDS))})([.]0)?|[+]Inf"'
"""Each model has its largest batch as a bound of its own, too, which others lack: a sum over models would fall there."""
SIZES = Row(
    "How large are batches?",
    (
        Panel(
            "Rows of an execution",
            "How often each size was run. A band at the top is full batches; one at the bottom is callers that came alone.",
            Unit.COUNT,
            lines((f"sum by (le) (increase({BUCKETS}{{{MODEL}, {COMMON_BOUNDS}}}[{WINDOW}]))", "{{le}}")),
            Shape.HEATMAP,
        ),
        Panel(
            "Batch size",
            "Mean, median and 90th percentile of rows an execution.",
            Unit.COUNT,
            lines(
                (f"{series.MEAN_BATCH}{{{MODEL}}}", "{{model}} mean"),
                (percentile(0.5, BUCKETS), "{{model}} p50"),
                (percentile(0.9, BUCKETS), "{{model}} p90"),
            ),
        ),
        Panel(
            "Fill and duty",
            "Full and busy is what one wants of a GPU; busy and not full is a batcher that launches too early.",
            Unit.SHARE,
            lines((f"{series.FILL}{{{MODEL}}}", "{{model}} fill"), (f"{series.DUTY}{{{MODEL}}}", "{{model}} duty")),
            most=1,
        ),
    ),
)
LAUNCHED = Row(
    "When are they launched?",
    (
        Panel(
            "Launches by reason",
            "full: the largest batch. preferred: another preferred size. other: the delay "
            "was over, the queue was empty or a shape changed; Triton does not say which.",
            Unit.PER_SECOND,
            lines((rate(LAUNCHES, "model, reason"), "{{model}} {{reason}}")),
            Shape.STACK,
        ),
        Panel(
            "Share of full batches",
            "Executions of the largest size / all.",
            Unit.SHARE,
            lines((per(rate(LAUNCHES, "model", ', reason="full"'), rate(LAUNCHES, "model")), "{{model}}")),
            most=1,
        ),
        Panel(
            "Executions and rows",
            "A second, of all replicas.",
            Unit.ROWS_PER_SECOND,
            lines((rate(COUNT, "model"), "{{model}} executions"), (rate(ROWS, "model"), "{{model}} rows")),
        ),
    ),
)
TIMES = Row(
    "Where does the time go?",
    (
        Panel(
            "Time of an execution, and of a row",
            "Busy time / executions, and / rows. The second falls as batches "
            "grow; where it stands still, larger batches bring nothing.",
            Unit.MICROSECONDS,
            lines(
                (per(rate(series.BUSY_US, "model"), rate(COUNT, "model")), "{{model}} execution"),
                (per(rate(series.BUSY_US, "model"), rate(ROWS, "model")), "{{model}} row"),
            ),
        ),
        Panel(
            "Queue and inference of a request",
            "Means, by Triton's own sums: the wait before its batch began, and the inference of the batch that it was in.",
            Unit.MICROSECONDS,
            lines(
                (per(rate(series.QUEUE_US, "model"), rate(series.SUCCESS, "model")), "{{model}} queue"),
                (per(rate(COMPUTE_US, "model"), rate(series.SUCCESS, "model")), "{{model}} inference"),
            ),
        ),
        Panel(
            "Waiting now",
            "Requests in Triton's queues. Those that run are not among them.",
            Unit.COUNT,
            lines((f"sum by (model) ({series.PENDING}{{{MODEL}}})", "{{model}}")),
        ),
    ),
)
HELD = Row(
    "What is set, and what fails?",
    (
        Panel(
            "Instances",
            "That the configuration asks for, of all replicas.",
            Unit.COUNT,
            lines((f"sum by (model) ({series.INSTANCES}{{{MODEL}}})", "{{model}}")),
            Shape.NUMBER,
        ),
        Panel(
            "Largest batch",
            "max_batch_size of the configuration.",
            Unit.COUNT,
            lines((f"max by (model) ({series.MAX_ROWS}{{{MODEL}}})", "{{model}}")),
            Shape.NUMBER,
        ),
        Panel(
            "Failures in the server",
            "By Triton's reason. A row that is refused alone counts as a success there; the gateway's outcomes tell of it.",
            Unit.PER_SECOND,
            lines((rate(FAILURES, "model, reason"), "{{model}} {{reason}}")),
        ),
    ),
)
BATCHER = Board(
    "batcher",
    "Brim: batcher",
    "How large batches are, when they are launched, and where the time of a request goes.",
    f"{series.BATCH_ROWS}_count",
    (SIZES, LAUNCHED, TIMES, HELD),
)
