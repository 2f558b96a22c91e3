"""Reading what perf_analyzer 2.60.0 really wrote, with its units, and refusing what it did not."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import BrimError, InputError, ServerFailed
from brim.measure.perf_analyzer import MeasurementFailed, RequestsFailed, failure
from brim.measure.report import (
    UnreadableReport,
    Window,
    explanation,
    parse_console,
    parse_csv,
    parse_request_latencies,
    percentiles_us,
)

DATA = Path(__file__).parent / "data" / "measure"


def read(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def test_a_recorded_row() -> None:
    (row,) = parse_csv(read("rate_behind.csv"))
    assert row.value == 4000
    assert row.throughput == 3665.35
    assert row.latency_us == {50: 21286, 90: 48043, 95: 68581, 99: 131996}
    assert row.split_us["server_queue"] == 2208
    assert list(row.split_us) == [
        "client_send",
        "network",
        "server_queue",
        "server_compute_input",
        "server_compute_infer",
        "server_compute_output",
        "client_recv",
    ]


def test_rows_sorted_by_throughput_come_back_by_value() -> None:
    lines = read("sweep.csv").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "9", "5", "13"]
    assert [row.value for row in parse_csv(read("sweep.csv"))] == [1, 5, 9, 13]


def test_case_18_is_read_in_microseconds_and_by_value(cases: Path) -> None:
    rows = {row.value: row for row in parse_csv((cases / "18_sweep.csv").read_text(encoding="utf-8"))}
    assert list(rows) == [1, 2, 4, 8, 16, 32]
    assert (rows[8].throughput, rows[8].latency_us[99]) == (655, 12_400)
    assert (rows[16].throughput, rows[16].latency_us[99]) == (655, 19_900)
    assert (rows[1].latency_us[50], rows[1].latency_us[99]) == (5_900, 6_100)


def test_a_further_percentile_has_its_own_column() -> None:
    (row,) = parse_csv(read("percentile_75.csv"))
    assert set(row.latency_us) == {50, 75, 90, 95, 99}
    assert list(row.latency_us.values()) == sorted(row.latency_us.values())


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_rows_and_columns_does_not_matter(seed: int) -> None:
    heading, *rows = csv.reader(io.StringIO(read("sweep.csv")))
    shuffle = random.Random(seed)
    order = list(range(len(heading)))
    shuffle.shuffle(order)
    shuffle.shuffle(rows)
    text = "\n".join(",".join(line[i] for i in order) for line in [heading, *rows])
    assert parse_csv(text) == parse_csv(read("sweep.csv"))


@pytest.mark.parametrize(
    ("unit", "factor"), [("usec", 1), ("us", 1), ("ms", 1000), ("msec", 1000), ("ns", 0.001), ("s", 1e6)]
)
@pytest.mark.parametrize("brackets", ["()", "[]"])
def test_a_heading_may_name_another_unit(unit: str, factor: float, brackets: str) -> None:
    text = f"Concurrency,Inferences/Second,p99 latency {brackets[0]}{unit}{brackets[1]}\n1,10,2500\n"
    assert parse_csv(text)[0].latency_us == {99: round(2500 * factor)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Inferences/Second,p99 latency\n1,2\n",
        "Concurrency,p99 latency\n1,2\n",
        "Concurrency,Inferences/Second\n1\n",
        "Concurrency,Inferences/Second\none,2\n",
        "Concurrency,Inferences/Second,p99 latency\n1,2,fast\n",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UnreadableReport):
        parse_csv(text)


def test_windows_that_never_agree_are_a_state() -> None:
    console = parse_console(read("console_unstable.txt"))
    assert not console.stable
    assert len(console.windows) == 3
    assert console.windows[0].percentile == 99
    assert all(window.latency_us > 0 for window in console.windows)


def test_a_generator_that_fell_behind_says_so() -> None:
    console = parse_console(read("console_rate_behind.txt"))
    assert console.stable
    assert console.sent_rate == 3689.55
    assert console.delayed_ratio == pytest.approx(0.7396)
    assert console.overhead_ratio == pytest.approx(0.0105)
    assert console.windows[2] == Window(3265.33, 99, 148504)


def test_a_generator_that_kept_up_says_nothing() -> None:
    console = parse_console(read("console_percentile_75.txt"))
    assert (console.sent_rate, console.delayed_ratio) == (None, None)
    assert {window.percentile for window in console.windows} == {75}


def test_a_window_in_another_unit() -> None:
    text = "  Pass [1] throughput: 1e+03 infer/sec. p95 latency: 2.5 msec\n"
    assert parse_console(text).windows == (Window(1000.0, 95, 2500),)


def test_exported_requests_agree_with_the_report() -> None:
    latencies = parse_request_latencies(read("requests.json"))
    (row,) = parse_csv(read("requests.csv"))
    assert len(latencies) == 35
    assert min(latencies) <= row.latency_us[50] <= max(latencies)
    # perf_analyzer interpolates differently: its percentiles lie within one rank of the nearest-rank ones.
    ordered = sorted(latencies)
    for percentile, reported in row.latency_us.items():
        rank = ordered.index(percentiles_us(latencies, [percentile])[percentile])
        near = ordered[max(0, rank - 1) : rank + 2]
        assert min(near) - 1 <= reported <= max(near) + 1


@pytest.mark.parametrize("text", ["", "[]", '{"experiments": [{}]}', '{"experiments": [{"requests": [{}]}]}'])
def test_another_export_is_refused(text: str) -> None:
    with pytest.raises(UnreadableReport):
        parse_request_latencies(text)


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(0.001, 100))
def test_nearest_rank(latencies: list[int], percentile: float) -> None:
    value = percentiles_us(latencies, [percentile])[percentile]
    at_or_below = sum(one <= value for one in latencies)
    below = sum(one < value for one in latencies)
    assert value in latencies
    assert at_or_below * 100 >= percentile * len(latencies) * (1 - 1e-9)
    assert below * 100 < percentile * len(latencies) * (1 + 1e-9)


def test_no_latencies_have_no_percentile() -> None:
    assert percentiles_us([], [50]) == {}


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("failing", RequestsFailed, "negative value"),
        ("wrong_type", InputError, "unable to find float data"),
        ("dynamic", InputError, "dynamic shape"),
        ("unknown", InputError, "'nope' is not found"),
        ("usage", InputError, "Unsupported type provided"),
        ("short", MeasurementFailed, "No valid requests"),
        ("dead_http", ServerFailed, "connect"),
        ("dead_grpc", ServerFailed, "onnect"),
    ],
)
def test_a_failed_run_becomes_one_error_in_perf_analyzers_words(name: str, kind: type[BrimError], words: str) -> None:
    error = failure(read(f"console_{name}.txt"), "here")
    assert type(error) is kind
    assert error.message.startswith("here: ")
    assert words in error.message
    assert error.hint
    assert len(error.message) < 400, "the usage text does not belong in it"


def test_an_explanation_repeats_nothing() -> None:
    lines = explanation(read("console_failing.txt")).split("; ")
    assert len(lines) == len(set(lines))
