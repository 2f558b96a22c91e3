"""The server's side of a run, from two readings of its metrics page, and where the time to the first token goes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from brim.engine.lifecycle import End, Reason
from brim.engine.metrics import (
    ENDS,
    PREFIX_HIT,
    QUEUE_WAIT,
    REFUSALS,
    RUNNING,
    STEP_TIME,
    TTFT,
    Metrics,
)
from brim.engine.metrics_page import MetricsPage
from brim.measure.batch_stats import CountersWentBackwards
from brim.measure.histogram import Latencies
from brim.measure.text.gap import ttft_parts
from brim.measure.text.server_side import Difference, Looks, ServerSide, gauge, is_idle, parse_page, read_page
from tests.unit.text_example import S, page, text_point


class Printed:
    """Triton's metrics as far as a page needs them, and the page."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}

    class MetricFamily:
        COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
        page: Printed

        def __init__(self, name: str, description: str, kind: str) -> None:
            self.name, self.kind = name, kind

        def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Printed.Metric:  # noqa: N802
            return Printed.Metric(self.name, labels, buckets)

    class Metric:
        made: ClassVar[list[Printed.Metric]] = []

        def __init__(self, name: str, labels: dict[str, str], buckets: list[float] | None) -> None:
            self.name, self.labels, self.bounds = name, labels, buckets
            self.value, self.seen = 0.0, list[float]()
            Printed.Metric.made.append(self)

        def increment(self, amount: float) -> None:
            self.value += amount

        def set(self, amount: float) -> None:
            self.value = amount

        def observe(self, value: float) -> None:
            self.seen.append(value)

        def text(self) -> list[str]:
            labels = ",".join(f'{key}="{value}"' for key, value in self.labels.items())
            if self.bounds is None:
                return [f"{self.name}{{{labels}}} {self.value:g}"]
            upto = [(bound, sum(value <= bound for value in self.seen)) for bound in [*self.bounds, float("inf")]]
            return [
                *(f'{self.name}_bucket{{{labels},le="{bound:g}"}} {count}' for bound, count in upto),
                f"{self.name}_sum{{{labels}}} {sum(self.seen)}",
                f"{self.name}_count{{{labels}}} {len(self.seen)}",
            ]


@pytest.fixture
def metrics() -> tuple[Metrics, MetricsPage]:
    Printed.Metric.made = []
    metrics = Metrics()
    return metrics, MetricsPage(Printed, metrics, "m", "1")


def printed() -> str:
    return "\n".join(line for metric in Printed.Metric.made for line in metric.text())


def test_what_the_engine_counts_is_read_back(metrics: tuple[Metrics, MetricsPage]) -> None:
    counted, published = metrics
    before = parse_page(printed(), "m")
    counted.add(PREFIX_HIT, 64)
    counted.add(REFUSALS, 3, Reason.SHED.value)
    counted.add(ENDS, 2, End.LENGTH.value)
    counted.set({RUNNING: 5})
    for us in (4_000, 12_000, 900_000):
        counted.observe_us(TTFT, us)
    published.publish()
    change = Difference(before, parse_page(printed(), "m"))
    assert (change.counted(PREFIX_HIT), change.by_label(REFUSALS), change.by_label(ENDS)) == (
        64,
        {"shed": 3},
        {"length": 2},
    )
    observed = change.observed(TTFT)
    assert observed is not None and observed.count == 3 and observed.mean_us == pytest.approx(916_000 / 3)
    assert [observed.percentile_us(p) for p in (1, 50, 99)] == [5_000, 15_000, 1_000_000]
    assert gauge(change.after, RUNNING) == 5 and is_idle(before) and not is_idle(change.after)
    assert not parse_page(printed(), "other").values


def test_a_server_with_vllms_names_alone_is_read_under_those(metrics: tuple[Metrics, MetricsPage]) -> None:
    counted, published = metrics
    before = parse_page("", "m")
    counted.observe_us(TTFT, 5_000)
    counted.set({RUNNING: 2})
    published.publish()
    theirs = "\n".join(line for line in printed().splitlines() if line.startswith("vllm:"))
    change = Difference(before, parse_page(theirs, "m"))
    observed = change.observed(TTFT)
    assert observed is not None and observed.count == 1 and gauge(change.after, RUNNING) == 2
    assert change.observed(STEP_TIME) is None and change.by_label(REFUSALS) == {}
    assert ServerSide(change, Looks(), S).duty is None


def test_only_what_happened_between_the_readings_counts() -> None:
    before, after = parse_page(page(first_tokens=5, ttft_s=5.0), "m"), parse_page(page(first_tokens=7, ttft_s=5.4), "m")
    observed = Difference(before, after).observed(TTFT)
    assert observed is not None and observed.count == 2 and observed.mean_us == pytest.approx(200_000)
    with pytest.raises(CountersWentBackwards, match="went back by 2"):
        Difference(after, before).observed(TTFT)


def test_duty_and_running_sequences() -> None:
    change = Difference(parse_page(page(), "m"), parse_page(page(steps=10, step_s=0.5), "m"))
    looks = Looks()
    for running in (1, 3):
        looks.add(
            parse_page(
                page().replace('running{model="m",process="7",version="1"} 0', f'running{{model="m"}} {running}'), "m"
            )
        )
    side = ServerSide(change, looks, S)
    assert (side.duty, side.mean_running) == (pytest.approx(0.5), 2)
    figures = side.figures()
    assert (figures["steps"], figures["most_running"], figures["looks"], figures["kv_usage"]) == (10, 3, 2, None)
    assert ServerSide(change, Looks(), S).mean_running is None


def test_no_page_is_no_reading() -> None:
    assert read_page("127.0.0.1:1", "m") is None


def of(*values_us: int) -> Latencies:
    found = Latencies()
    for us in values_us:
        found.record(us)
    return found


def test_the_parts_of_the_time_to_the_first_token_add_up() -> None:
    change = Difference(parse_page(page(), "m"), parse_page(page(first_tokens=2, ttft_s=0.2, waited_s=0.06), "m"))
    assert change.observed(QUEUE_WAIT) is not None
    parts = ttft_parts(of(120_000, 130_000), of(119_000, 129_000), of(4_000), of(500), change)
    assert parts["client"] == 125_000 and parts["sent_late"] == 1_000 and parts["server"] == pytest.approx(100_000)
    assert parts["queue"] == pytest.approx(30_000) and parts["prefill"] == pytest.approx(70_000)
    assert parts["outside_server"] == pytest.approx(24_000) and parts["delivery"] == pytest.approx(20_000)
    assert parts["client_lag"] == 500 and (parts["client_count"], parts["server_count"]) == (2, 2)
    summed = sum(parts[name] or 0 for name in ("sent_late", "turnaround", "queue", "prefill", "delivery"))
    assert summed == pytest.approx(parts["client"])


def test_without_the_servers_side_there_is_only_the_clients() -> None:
    parts = ttft_parts(of(10), of(8), of(), of(), None)
    assert (parts["client"], parts["sent_late"]) == (10, 2)
    assert {name for name, value in parts.items() if value is None} == {
        *("server", "queue", "prefill", "outside_server", "turnaround", "delivery", "client_lag", "server_count")
    }


def test_a_point_says_what_both_sides_saw() -> None:
    point = text_point()
    assert (point.mean_batch, point.fill, point.settled) == (3.0, 3.0 / 8, True)
    assert (point.offered, point.answered, point.refused, point.refused_by) == (11, 10, 1, {"room_full": 1})
    assert point.server_us["ttft"]["mean"] == 90_000 and point.ttft_parts_us["queue"] == pytest.approx(20_000)
    assert (point.throughput, point.goodput, point.output_tokens_per_s) == (10, 10, 40)
    assert point.slo_met is False and text_point(limits=["slow"]).slo_met is None
