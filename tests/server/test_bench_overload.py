"""`brim bench overload` in its smallest form on the real server: what is counted and by whom, not how fast it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.bench.overload import ANSWER_FILE, overload
from brim.bench.overload_case import BATCH, INTERACTIVE, Case, Effort
from brim.bench.overload_check import Found, accounting_faults
from brim.measure.accounting import Outcome
from brim.measure.known_time import KnownTime
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.report import overloaded
from brim.report.run_folder import read_run

# 20 rows take 150 ms: 133 a second, and at most 60 requests in flight.
CASE = Case(KnownTime(tau0_us=50_000, alpha_us=5_000, max_batch=20, record=True), slo_us=700_000, slow_us=700_000)
LEAVERS = 40
TINY = Effort(
    seconds=1.5,
    factors=(3.0,),
    mix_factors=(2.0,),
    mix_lengths=1.0,
    tries=1,
    callers=(40,),
    burst=200,
    burst_rounds=1,
    leavers=LEAVERS,
    cost_rounds=0,
)


@pytest.fixture(scope="module")
def found(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("overload")
    said: list[str] = []
    check = overload(
        CASE,
        TINY,
        launcher=None,
        cache=Project(checkout).cache,
        folder=folder,
        log_file=folder / "triton.log",
        on_progress=said.append,
    )
    read = json.loads((folder / ANSWER_FILE).read_text())
    assert read["case"]["bound"] == CASE.bound == 60 and len(read["judged"]) == len(check.judged)
    assert any(words.startswith("capacity") for words in said)
    reported = read_run(folder).overload
    assert reported is not None and overloaded.section(reported).figures[0].picture is not None
    return check.found


def test_driver_gateway_and_model_count_the_same(found: Found) -> None:
    for load in (*found.loads, *found.mixes, *found.leaving):
        assert accounting_faults(load) == []
        assert load.sent == load.gateway.total > 0
        assert load.samples > 10
        assert load.most_in_flight <= CASE.bound
        # Nobody is refused without a reason.
        refused = load.count(Outcome.REFUSED)
        reasons = sum(
            count for (_, why), count in load.gateway.reasons.items() if why in ("queue_full", "shed", "tenant_rate")
        )
        assert refused <= reasons <= refused + load.count(Outcome.CANCELLED)


def test_three_times_the_capacity_is_refused_in_part(found: Found) -> None:
    (load,) = found.loads
    # What comes in 1.5 s, less what can be executed meanwhile and what may wait, is refused whatever the machine does.
    assert load.count(Outcome.REFUSED) > 0 and load.count(Outcome.ANSWERED) > CASE.bound
    assert load.gateway.reasons.keys() == {(INTERACTIVE, "queue_full")}


def test_batch_is_shed_before_interactive(found: Found) -> None:
    (load,) = found.mixes
    refused = {name: load.gateway.of(Outcome.REFUSED, name) for name in (INTERACTIVE, BATCH)}
    # Without classes both are refused alike: as many come of one as of the other.
    assert refused[BATCH] > 0 and refused[BATCH] >= 1.5 * refused[INTERACTIVE]
    assert load.gateway.reasons[BATCH, "shed"] == refused[BATCH]
    answered = {name: load.accounts[name].counts[Outcome.ANSWERED] for name in (INTERACTIVE, BATCH)}
    assert answered[INTERACTIVE] > answered[BATCH]


def test_a_burst_is_answered_up_to_the_bound_and_else_refused(found: Found) -> None:
    (burst,) = found.bursts
    assert burst.answered + burst.refused == burst.requests
    assert burst.answered >= CASE.bound and burst.most_in_flight <= CASE.bound
    assert burst.executed == burst.answered + 2


def test_grpc_callers_that_leave_the_queue_are_not_executed(found: Found) -> None:
    (leave,) = (one for one in found.leaves if one.protocol is Protocol.GRPC)
    assert leave.queued, "the batch before them was over before they had left, three times"
    assert (leave.executed_for_nobody, leave.cancelled, leave.refused_at_bound) == (0, LEAVERS, 1)
    assert leave.newcomers_refused == 0
    assert leave.answered == leave.stayers + leave.newcomers
    assert leave.most_in_flight <= CASE.bound


def test_triton_executes_http_callers_that_have_left(found: Found) -> None:
    (leave,) = (one for one in found.leaves if one.protocol is Protocol.HTTP)
    assert leave.queued and leave.cancelled == LEAVERS
    # Otherwise server#7077 is mended, and the gateway need not count them as if they still waited.
    assert leave.executed_for_nobody == LEAVERS
    assert leave.answered == leave.stayers + leave.newcomers - leave.newcomers_refused
