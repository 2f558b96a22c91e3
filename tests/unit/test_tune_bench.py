"""The bench on a machine that others use: which runs are made again, and what counts as the generator's fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.errors import InputError
from brim.measure.accounting import Account, Objective, Outcome, Reply
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_limits import Evidence
from brim.measure.plan import usable_cores
from brim.server.endpoint import Endpoint
from brim.tune import server_bench
from brim.tune.bystanders import watch_bystanders
from brim.tune.demand import demand_of
from brim.tune.run import Load, Purpose, Run, figures
from brim.tune.server_bench import RETRIES, ServerBench
from brim.tune.setting import DEFAULT
from tests.unit.tuning_bench import service

GOOD = Run(
    setting=DEFAULT,
    purpose=Purpose.CLIMB,
    repeat=0,
    rate_per_s=100.0,
    duration_us=1_000_000,
    offered=100,
    answered=100,
    in_slo=100,
    p50_us=1_000,
    p99_us=2_000,
    latency_us=2_000,
    mean_batch=1.0,
    bystander_cores=0.0,
)
BAD = replace(GOOD, in_slo=50)
DISTURBED = replace(BAD, bystander_cores=float(usable_cores()))
STARVED = replace(BAD, in_slo=60, limits=("its event loop came 9 ms late",))
LOAD = Load(Purpose.CLIMB, 0, 100.0, np.arange(0, 1_000_000, 10_000))


@contextmanager
def never(repository: Path) -> Iterator[Endpoint]:
    raise AssertionError("no server is needed here")
    yield


@pytest.mark.parametrize(
    ("runs", "sent", "kept"),
    [
        ([GOOD], 1, GOOD),
        ([BAD], 1, BAD),
        ([DISTURBED, GOOD], 2, GOOD),
        ([STARVED, BAD], 3, STARVED),
        ([STARVED, DISTURBED, DISTURBED, GOOD], 1 + RETRIES, STARVED),
    ],
    ids=["in time", "too slow", "disturbed once", "no better", "disturbed for ever"],
)
def test_a_failed_run_is_made_again_only_when_something_else_may_be_why(
    runs: list[Run], sent: int, kept: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_bench, "PAUSE_S", 0.0)
    bench = ServerBench(tmp_path, never, [{"X": np.zeros((1, 4))}], demand_of(service()), scratch=tmp_path)
    given = iter([*runs, *runs[-1:] * RETRIES])
    count = 0

    def send(*_: object) -> Run:
        nonlocal count
        count += 1
        return next(given)

    monkeypatch.setattr(bench, "_send", send)
    assert bench._undisturbed(None, DEFAULT, LOAD) == kept  # type: ignore[arg-type]
    assert count == sent


def result(latency_us: int, late_us: int, *, unsent: int = 0) -> OpenLoopResult:
    plan = OpenLoopPlan(1_000_000, objective=Objective(99, 100_000))
    account = Account(plan.objective, late_us=plan.late_after_us)
    for due_us in range(0, 1_000_000, 10_000):
        account.add(due_us, due_us + late_us, due_us + late_us + latency_us, Reply(Outcome.ANSWERED))
    for _ in range(unsent):
        account.add_unsent()
    return OpenLoopResult(plan, (account,), Evidence(loop_cores=0.1, lag_us=100, most_under_way=5))


def test_a_late_generator_is_no_excuse_for_a_slow_server(tmp_path: Path) -> None:
    bench = ServerBench(tmp_path, never, [{"X": np.zeros((1, 4))}], demand_of(service()), scratch=tmp_path)
    assert bench._limits(result(20_000, 90_000)), "fast answers, sent late"
    assert not bench._limits(result(120_000, 90_000)), "slow answers, whenever they were sent"
    assert bench._limits(result(120_000, 0, unsent=3)), "what was not sent was never asked of the server"
    assert not bench._limits(result(20_000, 0))


def test_nothing_to_send_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row"):
        ServerBench(tmp_path, never, [], demand_of(service()), scratch=tmp_path)


def test_own_work_is_not_a_bystanders() -> None:
    with watch_bystanders() as seen:
        assert seen.cores is None
        total = sum(number * number for number in range(300_000))
    assert total > 0
    assert seen.cores is not None
    assert seen.cores >= 0


def test_figures_of_repeats_are_their_median() -> None:
    runs = [
        replace(GOOD, repeat=0, rate_per_s=100.0),
        replace(GOOD, repeat=1, rate_per_s=100.0),
        replace(BAD, repeat=2, rate_per_s=100.0),
        replace(
            GOOD, repeat=0, purpose=Purpose.EXPECTED, p50_us=500, rate_per_s=50.0, offered=50, answered=50, in_slo=50
        ),
    ]
    found = figures(runs, share=0.99, ceiling_per_s=4_000)
    assert (found.goodput_per_s, found.capacity_per_s, found.spread) == (100.0, 100.0, 0.0)
    assert (found.p50_us, found.in_slo_expected, found.in_slo_peak) == (500, 1.0, None)
    assert not found.limited_by_generator
    two = figures([runs[0], runs[2]], share=0.99, ceiling_per_s=4_000)
    assert two.spread == 2.0, "nothing and a hundred differ by twice their mean"
    assert figures([runs[0]], share=0.99, ceiling_per_s=100).limited_by_generator
    assert figures([STARVED], share=0.99, ceiling_per_s=4_000).limited_by_generator
    assert figures([BAD], share=0.99, ceiling_per_s=4_000).goodput_per_s == 0
