"""A plan refuses what perf_analyzer would answer with nothing, and becomes the right command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.measure.perf_analyzer import ANY_STABILITY_PERCENT, any_stability, arguments
from brim.measure.plan import Distribution, Mode, Plan, Protocol
from brim.server.endpoint import Endpoint

ENDPOINT = Endpoint("127.0.0.1:1", "127.0.0.1:2")
PLAN = Plan(Mode.CONCURRENCY, (1, 8))


def test_all_faults_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Plan(
            Mode.CONCURRENCY,
            (0, 1.5),
            window_ms=0,
            max_trials=2,
            stability_percent=0,
            percentile=100,
            percentiles=(0, 101),
            max_threads=0,
            input_data=tmp_path / "absent.json",
        )
    for part in (
        "value 0:",
        "1.5: must be a whole number",
        "window_ms 0",
        "max_trials 2",
        "stability_percent 0",
        "stable percentile 100",
        "percentile 0:",
        "percentile 101",
        "max_threads 0",
        "absent.json",
    ):
        assert part in caught.value.message
    with pytest.raises(InputError, match="values is empty"):
        Plan(Mode.RATE, ())


def test_rates_need_not_be_whole() -> None:
    assert Plan(Mode.RATE, (0.5,)).values == (0.5,)


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (2, 2), (8, 4), (32, 16), (128, 16)])
def test_threads_leave_cores_to_the_server(cores: int, threads: int) -> None:
    assert PLAN.threads(cores) == threads
    assert replace(PLAN, max_threads=7).threads(cores) == 7


def test_the_command_line_of_a_closed_loop(tmp_path: Path) -> None:
    given = arguments(PLAN, ENDPOINT, "m", 8.0, tmp_path)
    assert given[given.index("-u") + 1] == ENDPOINT.grpc
    assert given[given.index("-b") + 1] == "1"
    assert {"--async", "--concurrency-range=8", "--verbose-csv", "-v"} <= set(given)
    assert not any(part.startswith(("--request-rate", "--profile-export")) for part in given)


def test_the_command_line_of_an_open_loop(tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    data.write_text("{}", encoding="utf-8")
    plan = Plan(
        Mode.RATE,
        (250.5,),
        Protocol.HTTP,
        Distribution.CONSTANT,
        input_data=data,
        shapes={"X": (2, 3), "A": (1,)},
        percentiles=(99.9,),
    )
    given = arguments(plan, ENDPOINT, "m", 250.5, tmp_path)
    assert given[given.index("-u") + 1] == ENDPOINT.http
    assert {"--request-rate-range=250.500000", "--request-distribution=constant", f"--input-data={data}"} <= set(given)
    assert [given[i + 1] for i, part in enumerate(given) if part == "--shape"] == ["A:1", "X:2,3"]
    assert f"--profile-export-file={tmp_path / 'requests.json'}" in given
    assert not any(part.startswith("--concurrency") for part in given)


def test_a_second_run_takes_any_three_windows() -> None:
    again = any_stability(replace(PLAN, max_trials=9))
    assert (again.max_trials, again.stability_percent) == (3, ANY_STABILITY_PERCENT)


def test_the_fingerprint_changes_with_everything_but_the_values(tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    data.write_text("1", encoding="utf-8")
    plan = replace(PLAN, input_data=data)
    assert replace(plan, values=(3,)).fingerprint() == plan.fingerprint()
    others = [
        replace(plan, mode=Mode.RATE),
        replace(plan, mode=Mode.RATE, distribution=Distribution.CONSTANT),
        replace(plan, protocol=Protocol.HTTP),
        replace(plan, input_data=None),
        replace(plan, shapes={"X": (2,)}),
        replace(plan, window_ms=7),
        replace(plan, stability_percent=7),
        replace(plan, max_trials=7),
        replace(plan, max_threads=7),
        replace(plan, percentile=7),
        replace(plan, percentiles=(7,)),
    ]
    seen = {other.fingerprint() for other in others} | {plan.fingerprint()}
    data.write_text("2", encoding="utf-8")
    seen.add(plan.fingerprint())
    assert len(seen) == len(others) + 2
