"""Many replicas: how many are there and wanted, is one of them different, who is sent where."""

from __future__ import annotations

from brim.dashboards.board import MODEL, Board, Needs, Panel, Row, Shape, Unit, lines, per, rate
from brim.plan import series

ROWS, EXECUTIONS = "nv_inference_count", "nv_inference_exec_count"
SIZE = Row(
    "How many replicas?",
    (
        Panel(
            "Replicas",
            "That answer, that are known, and that the rules want.",
            Unit.COUNT,
            lines(
                (series.READY, "{{job}} ready"), (series.PRESENT, "{{job}} known"), (series.DESIRED, "{{job}} wanted")
            ),
        ),
        Panel(
            "Pressure",
            "The worst figure over its limit. At 1 a replica more is wanted, "
            "below one half one fewer, at 1.5 batch requests are shed.",
            Unit.SHARE,
            lines((series.PRESSURE, "{{job}}")),
        ),
        Panel(
            "What presses",
            "Each figure over its limit: waiting requests, wait, first token, KV cache. GPU utilisation is none of them.",
            Unit.SHARE,
            lines((f"max by (model, figure) ({series.PRESSURES}{{{MODEL}}})", "{{model}} {{figure}}")),
        ),
        Panel(
            "Batch requests are shed",
            "1 while the rules say so.",
            Unit.COUNT,
            lines((series.SHED, "{{job}}")),
            Shape.NUMBER,
        ),
        Panel(
            "Models whose figures are missing",
            "Nothing is scaled down while a figure is missing.",
            Unit.COUNT,
            lines((f"{series.INCOMPLETE} or 0 * {series.READY}", "{{job}}")),
            Shape.NUMBER,
        ),
        Panel(
            "Pages that Prometheus reads",
            "1 for each that answered the last time.",
            Unit.COUNT,
            lines(("up", "{{job}} {{instance}}")),
        ),
    ),
)
ALIKE = Row(
    "Is one of them different?",
    (
        Panel(
            "Rows a second, by replica",
            "Alike where replicas are alike. One that gets fewer is slow, new or being drained.",
            Unit.ROWS_PER_SECOND,
            lines((rate(ROWS, "instance, model"), "{{instance}} {{model}}")),
        ),
        Panel(
            "Mean batch, by replica",
            "Rows / executions.",
            Unit.COUNT,
            lines((per(rate(ROWS, "instance, model"), rate(EXECUTIONS, "instance, model")), "{{instance}} {{model}}")),
        ),
        Panel(
            "Waiting, by replica",
            "In Triton's queues, without what runs.",
            Unit.COUNT,
            lines((f"sum by (instance, model) ({series.PENDING}{{{MODEL}}})", "{{instance}} {{model}}")),
        ),
        Panel(
            "Queue time, by replica",
            "Mean wait of answered requests before their batch began.",
            Unit.MICROSECONDS,
            lines(
                (
                    per(rate(series.QUEUE_US, "instance, model"), rate(series.SUCCESS, "instance, model")),
                    "{{instance}} {{model}}",
                )
            ),
        ),
        Panel(
            "Requests under way, by cluster",
            "Between the gateway and all replicas, by Envoy's own count.",
            Unit.COUNT,
            lines((f"sum by ({series.CLUSTER_LABEL}) ({series.IN_FLIGHT})", f"{{{{{series.CLUSTER_LABEL}}}}}")),
        ),
        Panel(
            "Exporter's sources",
            "1 while the server, and the gateway, tell what they have counted.",
            Unit.COUNT,
            lines((f"min by (instance, source) ({series.SOURCE_UP})", "{{instance}} {{source}}")),
        ),
    ),
)
PICKED = Row(
    "Who is sent where?",
    (
        Panel(
            "Placed, by replica and reason",
            "By the picker: for the prompt's beginning, or for the least work.",
            Unit.PER_SECOND,
            lines((rate("brim_picker_picks_total", "replica, reason"), "{{replica}} {{reason}}")),
            Shape.STACK,
            needs=Needs.PICKER,
        ),
        Panel(
            "In flight, by replica",
            "As the picker counts them between two looks at the replicas.",
            Unit.COUNT,
            lines((f"sum by (replica) (brim_picker_in_flight{{{MODEL}}})", "{{replica}}")),
            needs=Needs.PICKER,
        ),
        Panel(
            "Blocks of prompts thought to be held",
            "By replica. The picker guesses what a replica's cache still has; a restart empties it.",
            Unit.COUNT,
            lines((f"sum by (replica) (brim_picker_prefix_blocks{{{MODEL}}})", "{{replica}}")),
            needs=Needs.PICKER,
        ),
    ),
)
FLEET = Board(
    "fleet",
    "Brim: replicas",
    "How many replicas there are and should be, whether one is different, and who is sent where.",
    ROWS,
    (SIZE, ALIKE, PICKED),
)
