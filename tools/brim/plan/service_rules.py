"""What operators look at of each service, as Prometheus' rules: rates, goodput, burn, batches, waits.

Everything is by ``model``, over all replicas. What the expressions take care of:

- What is good and what counts at all come from one histogram of the gateway, so that they are of the same requests.
- Where nobody asks there is no value: no ratio is 0/0, and an idle model dilutes no mean.
- Where everybody asks and nobody is answered, what is good is 0 and not missing, or no alert would ever fire.
- ``rate`` knows that a counter began anew. It is taken of each series before any sum.
- A bound is written ``500`` by Envoy and ``500.0`` by Prometheus 3, which rewrites what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from brim.engine.metrics import ENDS, REFUSALS, TTFT, WAITING
from brim.gateway.admission import first_classes, objectives_us
from brim.gateway.counters import bound_ms
from brim.gateway.outcomes import DURATION, ELIGIBLE, RIGHT
from brim.plan.alerts import Document
from brim.plan.burn import TIMING, Timing, budget, burn_limit, duration
from brim.plan.queue_wait import of_fleet, vllm_name, wait_of_tensors, wait_of_texts
from brim.plan.scaling import thresholds_of
from brim.plan.series import (
    BATCH_ROWS,
    BURN,
    BURN_LIMIT,
    BUSY_US,
    DUTY,
    ELIGIBLE_RATE,
    ERROR_BUDGET,
    EVERY_CLASS,
    EXPORTER_JOB,
    FILL,
    GATEWAY_JOB,
    GOOD,
    GOODPUT,
    GOODPUT_RATIO,
    INSTANCES,
    LATENCY_P50,
    LATENCY_P99,
    MAX_ROWS,
    MEAN_BATCH,
    OUTCOME_RATE,
    PENDING,
    QUEUED,
    QUEUED_LIMIT,
    RATE,
    REFUSED_RATE,
    REQUESTS,
    WAITING_NOW,
)
from brim.plan.service_alerts import service_alerts
from brim.service.schema import Service
from brim.units import US_PER_MS, US_PER_S, ms_to_us

EXPORTED = f'{{job="{EXPORTER_JOB}"}}'
MODULES = "brim.plan.service_rules"
Wait = Callable[[str, str, str], str]
"""Series, labels to keep and window -> expression of a mean wait."""


def service_rules(services: Sequence[Service], timing: Timing = TIMING) -> Document:
    """The whole rule file for these services; with other times, the same expressions over other windows."""
    window = duration(timing.rate_s)
    tensors = [service for service in services if service.generation is None]
    texts = [service for service in services if service.generation is not None]
    every = duration(timing.every_s)
    return {
        "groups": [
            {"name": "brim-service-limits", "interval": every, "rules": _limits(services, timing)},
            {"name": "brim-service", "interval": every, "rules": _now(tensors, texts, window)},
            # One group: each rule sees what those before it have just recorded.
            {"name": "brim-service-objective", "interval": every, "rules": _objective(tensors, texts, timing)},
            {"name": "brim-service-alerts", "interval": every, "rules": service_alerts(timing)},
        ]
    }


def _record(name: str, expression: str, **labels: str) -> Document:
    return {"record": name, "expr": expression, **({"labels": labels} if labels else {})}


def _limits(services: Sequence[Service], timing: Timing) -> list[Document]:
    records = []
    for service in services:
        records.append(_record(ERROR_BUDGET, f"vector({budget(service):.12g})", model=service.name))
        queue_us = thresholds_of(service).queue_us
        if queue_us is not None:
            records.append(_record(QUEUED_LIMIT, f"vector({queue_us:.12g})", model=service.name))
        classes = first_classes(service) if service.generation is None else [EVERY_CLASS]
        for pace in timing.paces:
            limit = f"vector({burn_limit(service, pace):.12g})"
            records += [
                _record(BURN_LIMIT, limit, model=service.name, pace=pace.name, **{"class": kind}) for kind in classes
            ]
    return records


def _now(tensors: Sequence[Service], texts: Sequence[Service], window: str) -> list[Document]:
    def rate(series: str, by: str = "model", where: str = EXPORTED) -> str:
        return f"sum by ({by}) (rate({series}{where}[{window}]))"

    refused = f'{{job="{EXPORTER_JOB}", outcome="refused"}}'
    most_rows = f"sum by (model) (rate({BATCH_ROWS}_count{EXPORTED}[{window}]) * {MAX_ROWS}{EXPORTED})"
    return [
        _record(OUTCOME_RATE, rate(REQUESTS, "model, class, outcome")),
        _record(RATE, f"sum by (model) ({OUTCOME_RATE})"),
        _record(REFUSED_RATE, rate(REQUESTS, "model, class, reason", refused)),
        _record(MEAN_BATCH, f"{rate(f'{BATCH_ROWS}_sum')} / ({rate(f'{BATCH_ROWS}_count')} > 0)"),
        _record(FILL, f"{rate(f'{BATCH_ROWS}_sum')} / ({most_rows} > 0)"),
        _record(DUTY, f"{rate(BUSY_US)} / {US_PER_S} / (sum by (model) ({INSTANCES}{EXPORTED}) > 0)"),
        *(_of_queues(tensors, PENDING, wait_of_tensors, window) if tensors else ()),
        *(_of_queues(texts, vllm_name(WAITING), wait_of_texts, window) if texts else ()),
        *(_latency(name, part, window) for name, part in ((LATENCY_P50, 0.5), (LATENCY_P99, 0.99))),
    ]


def _of_queues(services: Sequence[Service], gauge: str, wait: Wait, window: str) -> list[Document]:
    where = of_fleet(service.name for service in services)
    return [
        _record(QUEUED, wait(where, "model", window)),
        _record(WAITING_NOW, f"sum by (model) ({gauge}{where})"),
    ]


def _latency(name: str, part: float, window: str) -> Document:
    buckets = f'sum by (model, class, le) (rate({DURATION}_bucket{{job="{GATEWAY_JOB}", {RIGHT}}}[{window}]))'
    # A percentile of nothing is NaN, which no comparison lets through.
    return _record(name, f"{US_PER_MS} * histogram_quantile({part:g}, {buckets}) >= 0")


def _objective(tensors: Sequence[Service], texts: Sequence[Service], timing: Timing) -> list[Document]:
    now = duration(timing.rate_s)
    records: list[Document] = []
    for window in map(duration, timing.windows_s):
        records += _window(tensors, texts, window)
    good = [
        *(_record(GOODPUT, expression) for _, _, expression in _good_of_tensors(tensors, now)),
        *(
            _record(GOODPUT, _good_of_text(service, now), **{"class": EVERY_CLASS})
            for service in texts
            if service.slo.ttft_ms is not None
        ),
    ]
    return [
        *good,
        *records,
        _record(GOODPUT_RATIO, f"{GOOD} / ({ELIGIBLE_RATE} > 0)"),
        # What was counted at the edge of a window, and the making up of rates, can leave a little more than all of them good.
        _record(BURN, f"clamp_min(1 - {GOODPUT_RATIO}, 0) / on (model) group_left () {ERROR_BUDGET}"),
    ]


def _window(tensors: Sequence[Service], texts: Sequence[Service], window: str) -> Iterable[Document]:
    if tensors:
        models = "|".join(service.name for service in tensors)
        where = f'{{job="{GATEWAY_JOB}", model=~"{models}", {ELIGIBLE}}}'
        eligible = f"sum by (model, class) (rate({DURATION}_count{where}[{window}]))"
        yield _record(ELIGIBLE_RATE, eligible, window=window)
    for model, kind, expression in _good_of_tensors(tensors, window):
        yield _record(GOOD, _or_none(expression, model, kind, window), window=window)
    for service in texts:
        if service.slo.ttft_ms is not None:
            labels = {"class": EVERY_CLASS, "window": window}
            yield _record(ELIGIBLE_RATE, _eligible_of_text(service, window), **labels)
            yield _record(GOOD, _good_of_text(service, window), **labels)


def _good_of_tensors(services: Sequence[Service], window: str) -> Iterable[tuple[str, str, str]]:
    """Model, class, and the rate of answers within its objective."""
    for service in services:
        for kind, objective_us in objectives_us(service).items():
            within = f'model="{service.name}", class="{kind}", {RIGHT}, le=~"{_bound(bound_ms(objective_us))}"'
            where = f'{{job="{GATEWAY_JOB}", {within}}}'
            yield service.name, kind, f"sum by (model, class) (rate({DURATION}_bucket{where}[{window}]))"


def _or_none(good: str, model: str, kind: str, window: str) -> str:
    asked = f'{ELIGIBLE_RATE}{{model="{model}", class="{kind}", window="{window}"}}'
    return f"{good} or on (model, class) (0 * {asked})"


def _good_of_text(service: Service, window: str) -> str:
    """First tokens within the objective, or within the next bound of the host's histogram."""
    assert service.slo.ttft_ms is not None
    objective_s = ms_to_us(service.slo.ttft_ms) / US_PER_S
    bound = next((one for one in TTFT.buckets if one >= objective_s), TTFT.buckets[-1])
    where = of_fleet([service.name]).removesuffix("}") + f', le=~"{_bound(bound)}"}}'
    return f"sum by (model) (rate({vllm_name(TTFT)}_bucket{where}[{window}]))"


def _eligible_of_text(service: Service, window: str) -> str:
    """First tokens, refusals that are not the caller's own fault, and what expired or failed."""
    where = of_fleet([service.name]).removesuffix("}")
    firsts = f"sum by (model) (rate({vllm_name(TTFT)}_count{where}}}[{window}]))"
    others = [
        f'sum by (model) (rate({REFUSALS.name}{where}, reason!~"too_long_.*"}}[{window}]))',
        f'sum by (model) (rate({ENDS.name}{where}, end=~"expired|failed"}}[{window}]))',
    ]
    # Triton's vLLM backend does not tell these two.
    return " + ".join([firsts, *(f"({one} or 0 * {firsts})" for one in others)])


def _bound(value: float) -> str:
    text = f"{value:.12g}"
    # An exact point, and not any character.
    exact = text.replace(".", "[.]")
    return exact if "." in text else f"{exact}([.]0)?"
