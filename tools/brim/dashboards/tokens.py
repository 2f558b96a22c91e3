"""Text generation: how soon texts begin, how fast they go on, who waits, what the cache holds."""

from __future__ import annotations

from brim.dashboards.board import MODEL, WINDOW, Board, Panel, Row, Shape, Unit, lines, per, percentile, rate
from brim.engine import metrics as m


def _p50_p99(family: m.Family, what: str) -> tuple[tuple[str, str], ...]:
    bucket = f"{family.name}_bucket"
    return (
        (percentile(0.5, bucket), f"{{{{model}}}} {what} p50"),
        (percentile(0.99, bucket), f"{{{{model}}}} {what} p99"),
    )


def _mean(family: m.Family) -> str:
    return per(rate(f"{family.name}_sum", "model"), rate(f"{family.name}_count", "model"))


def _now(family: m.Family, how: str = "sum") -> str:
    return f"{how} by (model) ({family.name}{{{MODEL}}})"


FELT = Row(
    "What do callers feel?",
    (
        Panel(
            "Time to the first token",
            "From the scheduler's hearing of a request to the end of the step with its "
            "first token. What comes before it (gateway, network, parsing) is not in it.",
            Unit.SECONDS,
            lines(*_p50_p99(m.TTFT, "TTFT")),
        ),
        Panel(
            "Between tokens",
            "ITL: every gap of every text, so long texts weigh most. TPOT: one mean a text, in which a single stall hides.",
            Unit.SECONDS,
            lines(*_p50_p99(m.ITL, "ITL"), *_p50_p99(m.TPOT, "TPOT")),
        ),
        Panel(
            "Whole texts, and the wait for a seat",
            "From submission to the end of the text, and to the first seat.",
            Unit.SECONDS,
            lines(*_p50_p99(m.E2E, "text"), *_p50_p99(m.QUEUE_WAIT, "seat")),
        ),
    ),
)
WORK = Row(
    "How much is done?",
    (
        Panel(
            "Tokens",
            "Prompt tokens whose prefill is done, and tokens delivered, a second.",
            Unit.TOKENS_PER_SECOND,
            lines(
                (rate(m.TOKENS_IN.name, "model"), "{{model}} in"), (rate(m.TOKENS_OUT.name, "model"), "{{model}} out")
            ),
        ),
        Panel(
            "Step time",
            "Of one step of the engine. It bounds how soon anybody gets a token, and how soon a seat is given away again.",
            Unit.SECONDS,
            lines(*_p50_p99(m.STEP_TIME, "step")),
        ),
        Panel(
            "Tokens a step",
            "Prefilled and decoded, on average: what iteration-level batching makes of the load.",
            Unit.COUNT,
            lines((_mean(m.STEP_TOKENS), "{{model}}")),
        ),
    ),
)
WAIT = Row(
    "Who waits, and who is turned away?",
    (
        Panel(
            "Running and waiting",
            "Requests with a seat, and those that wait for one (preempted ones among them).",
            Unit.COUNT,
            lines((_now(m.RUNNING), "{{model}} running"), (_now(m.WAITING), "{{model}} waiting")),
        ),
        Panel(
            "Refusals by reason",
            "By the model's host. shed: a batch request gave its place to an interactive one.",
            Unit.PER_SECOND,
            lines((rate(m.REFUSALS.name, "model, reason"), "{{model}} {{reason}}")),
            Shape.STACK,
        ),
        Panel(
            "How requests ended",
            "stop and length are complete texts.",
            Unit.PER_SECOND,
            lines((rate(m.ENDS.name, "model, end"), "{{model}} {{end}}")),
            Shape.STACK,
        ),
    ),
)
CACHE = Row(
    "What does the KV cache hold?",
    (
        Panel(
            "KV cache in use",
            "Blocks that sequences hold / all. Cached prefixes of texts that have ended count as free.",
            Unit.SHARE,
            lines((_now(m.KV_USAGE, "avg"), "{{model}}")),
            most=1,
        ),
        Panel(
            "KV blocks",
            "Held, promised to running texts for their whole lives (admission goes by these), and all.",
            Unit.COUNT,
            lines(
                (_now(m.BLOCKS_USED), "{{model}} held"),
                (_now(m.BLOCKS_PROMISED), "{{model}} promised"),
                (_now(m.BLOCKS_TOTAL), "{{model}} all"),
            ),
        ),
        Panel(
            "Prompt tokens found in the cache",
            "Expected hits / tokens looked up when a seat was given.",
            Unit.SHARE,
            lines((per(rate(m.PREFIX_HIT.name, "model"), rate(m.PREFIX_ASKED.name, "model")), "{{model}}")),
            most=1,
        ),
        Panel(
            "Preemptions",
            "Running batch requests that were sent back to wait, each of which costs a prefill.",
            Unit.PER_SECOND,
            lines((rate(m.PREEMPTIONS.name, "model"), "{{model}}")),
        ),
        Panel(
            "Engines up",
            "One for each replica whose engine takes requests.",
            Unit.COUNT,
            lines((_now(m.ENGINE_UP), "{{model}}")),
            Shape.NUMBER,
        ),
        Panel(
            "Engines started anew",
            "In place of lost ones, whose texts ended with engine_lost.",
            Unit.COUNT,
            lines(
                (f"sum by (model) (increase({m.ENGINE_RESTARTS.name}{{{MODEL}}}[{WINDOW}]))", "{{model}}"),
            ),
        ),
    ),
)
TOKENS = Board(
    "tokens",
    "Brim: text generation",
    "How soon texts begin, how fast they go on, who waits, and what the KV cache holds.",
    m.RUNNING.name,
    (FELT, WORK, WAIT, CACHE),
)
