"""Prometheus' alerts: what they have in common, and those about a fleet, over what ``brim.plan.rules`` records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brim.gateway.admission import first_classes
from brim.plan.series import (
    FLEET_JOB,
    GATEWAY_JOB,
    GATEWAY_REQUESTS,
    INCOMPLETE,
    MOST,
    PENDING,
    PRESSURE,
    RATE_WINDOW_S,
    REFUSALS,
    SUCCESS,
    UNBOUNDED,
)
from brim.service.schema import Service

Document = dict[str, Any]
RUNBOOKS = "docs/runbooks"
"""In the checkout."""


def scaling_alerts(services: Sequence[Service]) -> list[Document]:
    """What tells people that a fleet is short, that callers are refused, or that figures and replicas are missing."""
    most_important = "|".join(sorted({name for service in services for name in first_classes(service)}))
    waiting = f'sum by (job, model, instance) ({PENDING}{{job="{FLEET_JOB}"}})'
    answered = f'sum by (job, model, instance) (rate({SUCCESS}{{job="{FLEET_JOB}"}}[{RATE_WINDOW_S}s]))'
    return [
        alert(
            "BrimFleetShort",
            f"{PRESSURE} >= 1",
            "2m",
            "warning",
            "{{ $labels.job }} is at {{ $value }} of its limit: more replicas are wanted than are ready",
        ),
        alert(
            "BrimFleetAtMaximum",
            f"({UNBOUNDED} > {MOST}) and {PRESSURE} >= 1",
            "5m",
            "page",
            "{{ $labels.job }} wants {{ $value }} replicas, more than it may have",
        ),
        alert(
            "BrimBatchShed",
            _refused('reason="shed"'),
            "1m",
            "info",
            "{{ $labels.model }}: {{ $value }} batch requests a second are refused so that others are answered in time",
        ),
        alert(
            "BrimInteractiveRefused",
            _refused(f'class=~"{most_important}", reason=~"{REFUSALS}"'),
            "1m",
            "page",
            "{{ $labels.model }}: {{ $value }} of the most important requests a second are refused",
        ),
        alert(
            "BrimMetricsMissing",
            f'{INCOMPLETE} > 0 or absent(up{{job="{FLEET_JOB}"}})',
            "5m",
            "warning",
            "{{ $labels.job }}: figures are missing, so the number of replicas is not lowered",
        ),
        alert(
            "BrimReplicaDown",
            # One that starts does not answer either, and may take its time.
            f'up{{job="{FLEET_JOB}"}} == 0',
            "10m",
            "warning",
            "{{ $labels.instance }} does not answer",
        ),
        alert(
            "BrimReplicaSilent",
            f"({waiting} > 0) and ({answered} == 0)",
            "1m",
            "page",
            "{{ $labels.instance }} is ready, {{ $value }} requests for {{ $labels.model }} wait, and it answers none",
        ),
    ]


def _refused(which: str) -> str:
    return f'sum by (job, model) (rate({GATEWAY_REQUESTS}{{job="{GATEWAY_JOB}", {which}}}[{RATE_WINDOW_S}s])) > 0'


def alert(name: str, expression: str, lasting: str, severity: str, summary: str) -> Document:
    """A rule that tells people, and where they read what to do: each has a page of its name in the documentation."""
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "runbook_url": f"{RUNBOOKS}/{name}.md"},
    }
