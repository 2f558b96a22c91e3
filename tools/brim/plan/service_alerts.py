"""Prometheus' alerts about what callers of a service notice, over what ``brim.plan.service_rules`` records."""

from __future__ import annotations

from brim.engine.metrics import ENGINE_UP, KV_USAGE, TOKENS_OUT
from brim.plan.alerts import Document, alert
from brim.plan.burn import Pace, Timing, duration
from brim.plan.queue_wait import vllm_name
from brim.plan.series import (
    BURN,
    BURN_LIMIT,
    EXPORTER_JOB,
    FLEET_JOB,
    MODEL_LOADED,
    OUTCOME_RATE,
    QUEUED,
    QUEUED_LIMIT,
    REQUESTS,
    SOURCE_UP,
)

KV_NEARLY_FULL = 0.95
"""Used part of the KV cache at which running texts begin to be sent back to wait."""


def service_alerts(timing: Timing) -> list[Document]:
    """Symptoms first: objectives missed, nobody answered, unavailable; then what explains them."""
    window = duration(timing.rate_s)
    tokens = f'sum by (model) (rate({vllm_name(TOKENS_OUT)}{{job="{FLEET_JOB}"}}[{window}])) > 0'
    asked = f'sum by (model) ({OUTCOME_RATE}{{outcome=~"right|refused|expired|failed"}}) > 0'
    answered = f'sum by (model) ({OUTCOME_RATE}{{outcome="right"}}) > 0'
    unavailable = f'sum by (model) (rate({REQUESTS}{{job="{EXPORTER_JOB}", reason="unavailable"}}[{window}])) > 0'
    unloaded = f'max by (model) ({MODEL_LOADED}{{job="{EXPORTER_JOB}"}}) == 0'
    kv = f'max by (job, instance, model) ({vllm_name(KV_USAGE)}{{job="{FLEET_JOB}"}})'
    blind = f'({SOURCE_UP}{{job="{EXPORTER_JOB}"}} == 0) or (up{{job="{EXPORTER_JOB}"}} == 0) or absent(up{{job="{EXPORTER_JOB}"}})'
    return [
        *(_burning(pace, timing) for pace in timing.paces),
        alert(
            "BrimNobodyAnswered",
            # A long text ends late; while it goes on its model answers.
            f"({asked}) unless on (model) ({answered}) unless on (model) ({tokens})",
            timing.lasting(60),
            "page",
            "{{ $labels.model }}: {{ $value | humanize }} requests a second come, and none is answered",
        ),
        alert(
            "BrimModelUnavailable",
            f"({unavailable}) or ({unloaded})",
            timing.lasting(60),
            "page",
            "{{ $labels.model }} takes no requests: its canary is not answered, or no replica has it loaded",
        ),
        alert(
            "BrimEngineDown",
            f'min by (job, instance, model) ({ENGINE_UP.name}{{job="{FLEET_JOB}"}}) == 0',
            timing.lasting(60),
            "page",
            "{{ $labels.instance }}: the engine of {{ $labels.model }} is down, and no text is taken",
        ),
        alert(
            "BrimQueueLong",
            f"{QUEUED} > on (model) {QUEUED_LIMIT}",
            timing.lasting(120),
            "warning",
            '{{ $labels.model }}: requests wait {{ $value | printf "%.0f" }} us on average, more than the objective leaves room for',
        ),
        alert(
            "BrimKvNearlyFull",
            f"{kv} >= {KV_NEARLY_FULL:g}",
            timing.lasting(120),
            "warning",
            "{{ $labels.instance }}: {{ $value | humanizePercentage }} of the KV cache of {{ $labels.model }} is in use",
        ),
        alert(
            "BrimExporterBlind",
            blind,
            timing.lasting(300),
            "warning",
            "the exporter {{ $labels.instance }} {{ $labels.source }} does not tell: batch sizes or outcomes are missing",
        ),
    ]


def _burning(pace: Pace, timing: Timing) -> Document:
    def above(window_s: float) -> str:
        limit = f'{BURN_LIMIT}{{pace="{pace.name}"}}'
        # Only the most important class of each service has a limit.
        return f'({BURN}{{window="{duration(window_s)}"}} > on (model, class) {limit})'

    return alert(
        f"BrimSloBurning{pace.name.capitalize()}",
        f"{above(pace.short_s)} and on (model, class) {above(pace.long_s)}",
        duration(pace.lasting_s),
        pace.severity,
        "{{ $labels.model }}, {{ $labels.class }}: the objective is missed {{ $value | humanize }} times as often as it may be",
    )
