"""``brim measure --open-loop`` as it is typed: whatever is wrong with its arguments, and what it makes of a service file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brim.cli.commands.measure_open import OpenLoopOptions, plan_of, remarks
from brim.errors import InputError
from brim.measure.accounting import Objective, Outcome
from brim.measure.plan import Protocol
from brim.measure.schedule import Arrivals
from brim.service.load import find_service
from brim.service.schema import Service
from tests.conftest import Brim
from tests.unit.open_example import open_point

OPTIONS = OpenLoopOptions(
    rates=None,
    arrival=None,
    trace=None,
    duration_s=1.0,
    give_up_ms=None,
    processes=1,
    protocol=Protocol.HTTP,
    stability_percent=10.0,
    seed=0,
)


@pytest.fixture
def service(checkout: Path) -> Service:
    return find_service(checkout / "services", "image_classifier")


def test_the_service_file_says_what_is_usual(service: Service) -> None:
    plan = plan_of(OPTIONS, service)
    assert [(one.arrivals, one.rate_per_s) for one in plan.schedules] == [
        (Arrivals.POISSON, service.traffic.rate_per_s),
        (Arrivals.POISSON, service.traffic.peak_per_s),
    ]
    assert plan.objective == Objective(99, 50_000) and plan.give_up_us == 1_000_000
    assert plan.schedules[0].duration_us == 1_000_000
    assert plan_of(replace(OPTIONS, give_up_ms=70.0), service).give_up_us == 70_000
    longest = plan_of(replace(OPTIONS, duration_s=None, rates=(5.0,)), service)
    assert longest.schedules[0].duration_us == 10_000_000


def test_one_run_goes_through_all_rates(service: Service) -> None:
    plan = plan_of(replace(OPTIONS, rates=(10.0, 50.0, 20.0), arrival=Arrivals.STEPS), service)
    assert [one.in_words for one in plan.schedules] == ["steps 10, 50, 20/s"]
    many = plan_of(replace(OPTIONS, rates=(10.0, 50.0), arrival=Arrivals.BURSTY), service)
    assert [one.in_words for one in many.schedules] == ["bursty 10/s", "bursty 50/s"]


def test_a_trace_is_a_run(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"offset_us": 0, "user": "a"}\n{"offset_us": 1500000}\n', encoding="utf-8")
    (cut,) = plan_of(replace(OPTIONS, trace=path), service).schedules
    assert (list(cut.due_us), cut.duration_us) == ([0], 1_000_000), "--duration cuts it"
    (whole,) = plan_of(replace(OPTIONS, trace=path, duration_s=None), service).schedules
    assert len(whole.due_us) == 2
    with pytest.raises(InputError, match="--trace beside --rate"):
        plan_of(replace(OPTIONS, trace=path, arrival=Arrivals.RAMP), service)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--open-loop", "--concurrency", "3"), "--concurrency beside --open-loop"),
        (
            ("--open-loop", "--constant", "--window-ms", "200", "--max-trials", "5"),
            "--constant, --window-ms, --max-trials",
        ),
        (("--arrival", "bursty", "--duration", "3"), "--arrival, --duration without --open-loop"),
        (("--trace", "x", "--processes", "2", "--give-up-ms", "5"), "--trace, --give-up-ms, --processes without"),
        (("--open-loop", "--rate", "1,x"), "'x': a number is expected"),
        (("--open-loop", "--rate", "0"), "nothing is due"),
        (("--open-loop", "--rate", "-3"), "a rate of -3"),
        (("--open-loop", "--rate", "5", "--arrival", "ramp"), "a ramp with 1 rates"),
        (("--open-loop", "--rate", "5", "--arrival", "weekly"), "weekly"),
        (("--open-loop", "--arrival", "trace"), "--arrival trace without --trace"),
        (("--open-loop", "--trace", "x", "--rate", "5"), "--trace beside --rate"),
        (("--open-loop", "--trace", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        (("--open-loop", "--duration", "nan", "--give-up-ms", "inf"), "--duration nan, --give-up-ms inf"),
        (("--open-loop", "--duration", "-1"), "--duration -1"),
        (("--open-loop", "--duration", "1e9"), "at most a day"),
        (("--open-loop", "--processes", "0"), "--processes"),
        (("--open-loop", "--stability-percent", "nan", "--rate", "5", "--duration", "1"), "stability_percent nan"),
    ],
)
def test_wrong_arguments(
    brim: Brim, arguments: tuple[str, ...], words: str, tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(checkout))
    code, out, err = brim("measure", "image_classifier", *arguments, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert words in err and err.count("error: ") == 1 and "\nhint: " in err
    assert not (tmp_path / "run").exists()


def test_remarks_say_what_a_row_cannot() -> None:
    def became(number: int) -> tuple[Outcome, int]:
        return (Outcome.REFUSED, 500) if number % 2 else (Outcome.ANSWERED, 9_000)

    said = "\n".join(remarks(open_point((100,), became, late_us=3_000)))
    for words in (
        "SLO p99 within 50 ms: could not tell, 50 of 100 offered requests were answered in time",
        "not answered: 50 refused",
        "50 times: told: refused",
        "100 requests left late; counted from sending, p99 would be 6.00 ms",
        "the driver is the limit: 100 of 100 requests left more than 2.5 ms late",
    ):
        assert words in said, words
    assert remarks(open_point((100,))) == [
        "SLO p99 within 50 ms: met, 100 of 100 offered requests were answered in time"
    ]
