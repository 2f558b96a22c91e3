"""Overload: who counts what, when it agrees, the verdicts, and what is shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.bench.conditions import Conditions
from brim.bench.overload import overload
from brim.bench.overload_burst import Burst
from brim.bench.overload_case import BATCH, INTERACTIVE, MODEL, QUICK, SLOW, Case, Effort
from brim.bench.overload_check import Found, Judged, OverloadCheck, accounting_faults, judged
from brim.bench.overload_cost import Cost
from brim.bench.overload_leave import Leave
from brim.bench.overload_load import PERCENTILE, Load, steady_per_s
from brim.bench.overload_seen import Counted, counted
from brim.bench.verdict import ExitCode, Verdict
from brim.cli.commands.bench_overload import shown
from brim.errors import CouldNotTell, InputError
from brim.measure.accounting import Account, Objective, Outcome, Reply
from brim.measure.known_time import Execution
from brim.measure.openloop import OpenLoopPlan, OpenLoopResult
from brim.measure.openloop_limits import Evidence
from brim.measure.openloop_run import messages
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from tests.conftest import Brim

CASE = Case()
CONDITIONS = Conditions("a processor", 2, 1.0, 2.0, 0.0, {"Triton": "24.10"})
LATE = Evidence(loop_cores=0.95, lag_us=100, most_under_way=5, wall_us=10_000_000)
IDLE = replace(LATE, loop_cores=0.1)
ENDPOINT = Endpoint("127.0.0.1:1", "127.0.0.1:2")

PAGE = """# TYPE envoy_brim_requests counter
envoy_brim_requests{model="overload",class="interactive",code="200",grpc_status="",reason="",flags="-"} 7
envoy_brim_requests{model="overload",class="interactive",code="200",grpc_status="0",reason="",flags="-"} 5
envoy_brim_requests{model="overload",class="interactive",code="429",grpc_status="",reason="queue_full",flags="-"} 3
envoy_brim_requests{model="overload",class="batch",code="200",grpc_status="8",reason="shed",flags="-"} 4
envoy_brim_requests{model="overload",class="batch",code="504",grpc_status="",reason="deadline",flags="UT"} 2
envoy_brim_requests{model="overload",class="batch",code="200",grpc_status="4",reason="deadline",flags="-"} 1
envoy_brim_requests{model="overload",class="batch",code="0",grpc_status="",reason="",flags="DC"} 6
envoy_brim_requests{model="overload",class="batch",code="0",grpc_status="",reason="",flags="DR"} 8
envoy_brim_requests{model="overload",class="batch",code="503",grpc_status="",reason="unavailable",flags="UF"} 9
envoy_brim_requests{model="overload",class="batch",code="200",grpc_status="13",reason="",flags="-"} 10
envoy_brim_requests{model="overload_slow",class="batch",code="200",grpc_status="",reason="",flags="-"} 1000
envoy_brim_request_duration_count{model="overload",class="batch",code="200"} 1000
"""


def test_the_gateway_counts_every_request_under_one_end() -> None:
    found = counted(PAGE, MODEL)
    assert found.total == sum((7, 5, 3, 4, 2, 1, 6, 8, 9, 10))
    ends = {end: found.of(end) for end in Outcome if found.of(end)}
    assert ends == {
        Outcome.ANSWERED: 12,
        Outcome.REFUSED: 7,
        Outcome.EXPIRED: 3,
        Outcome.CANCELLED: 14,
        Outcome.FAILED: 19,
    }
    assert (found.of(Outcome.REFUSED, INTERACTIVE), found.of(Outcome.REFUSED, BATCH)) == (3, 4)
    assert found.reasons[BATCH, "shed"] == 4 and found.reasons[INTERACTIVE, "queue_full"] == 3
    assert counted(PAGE, SLOW).total == 1000 and counted("", MODEL).total == 0
    assert found.since(found).total == 0
    assert found.since(counted(PAGE.replace("} 7", "} 2"), MODEL)).outcomes == {(INTERACTIVE, Outcome.ANSWERED): 5}


def test_the_bound_lets_the_last_one_in_only_when_it_is_answered_in_time() -> None:
    batches = CASE.bound // CASE.max_rows
    assert CASE.bound == batches * CASE.max_rows
    # An idle server executes the first one alone.
    assert CASE.time.time_us(1) + batches * CASE.full_batch_us < CASE.slo_us
    assert set(CASE.admitted()) == set(CASE.models()) == {MODEL, SLOW, QUICK}
    for admission in CASE.admitted().values():
        interactive, batch = admission.classes
        assert (interactive.name, batch.name) == (INTERACTIVE, BATCH)
        assert interactive.in_flight == admission.in_flight == CASE.bound
        assert batch.in_flight is not None and 0 < batch.in_flight <= CASE.bound - CASE.max_rows


def executions(*ends_and_rows: tuple[int, int]) -> list[Execution]:
    return [Execution("i", rows, end_ms * 1_000_000 - 1, 0, end_ms * 1_000_000) for end_ms, rows in ends_and_rows]


def test_a_closed_loop_counts_between_the_ends_of_two_executions() -> None:
    edge, tail = [(10, 1), (300, 60)], [(2_400, 50), (2_500, 3)]
    whole = executions(*edge, (800, 100), (1_300, 100), (1_800, 80), *tail)
    assert steady_per_s(whole) == pytest.approx(180)
    with pytest.raises(CouldNotTell, match="5 executions"):
        steady_per_s(whole[:5])


def result(
    latencies_us: Sequence[int] = (),
    refused_us: Sequence[int] = (),
    evidence: Evidence = IDLE,
    **ends: int,
) -> OpenLoopResult:
    """Answers and refusals after these times; sent when they were due but for the refused, who left 1 ms late."""
    plan = OpenLoopPlan(10_000_000, objective=Objective(PERCENTILE, CASE.slo_us))
    account = Account(plan.objective, late_us=plan.late_after_us)
    for took_us in latencies_us:
        account.add(0, 0, took_us, Reply(Outcome.ANSWERED))
    for took_us in refused_us:
        account.add(0, 1_000, 1_000 + took_us, Reply(Outcome.REFUSED))
    for name, count in ends.items():
        for _ in range(count):
            account.add(0, 0, 1, Reply(Outcome(name)))
    return OpenLoopResult(plan, (account,), evidence)


def load(factor: float, groups: dict[str, OpenLoopResult], **given: object) -> Load:
    """Everybody agrees, unless something else is given."""
    outcomes = Counter(
        {
            (name, end): count
            for name, one in groups.items()
            for end, count in one.whole.counts.items()
            if count and end is not Outcome.NOT_SENT
        }
    )
    answered = sum(one.whole.counts[Outcome.ANSWERED] for one in groups.values())
    made = Load(f"{factor:g}x", factor, groups, Counted(outcomes), answered, 290, 190, 400)
    return replace(made, **given)  # type: ignore[arg-type]


def alone(factor: float, answers: int = 100, refused: int = 50, **given: object) -> Load:
    evidence = given.pop("evidence", IDLE)
    assert isinstance(evidence, Evidence)
    one = result([1_000_000] * answers, [2_000] * refused, evidence)
    return load(factor, {INTERACTIVE: one}, **given)


def mix(factor: float, refused: tuple[int, int] = (0, 50), **given: object) -> Load:
    groups = {
        INTERACTIVE: result([1_000_000] * 100, [2_000] * refused[0]),
        BATCH: result([1_000_000] * 50, [2_000] * refused[1]),
    }
    return load(factor, groups, **given)


def burst(**given: object) -> Burst:
    made = Burst(1_000, 300, 300, 700, 1_800_000, 200_000, 180_000, 105_000, 108_000, 300, 302)
    return replace(made, **given)  # type: ignore[arg-type]


def leave(protocol: Protocol = Protocol.GRPC, **given: object) -> Leave:
    made = Leave(protocol, True, 200, 100, 200, 1, 0, 300, 8_000, 0, 200, 300)
    return replace(made, **given)  # type: ignore[arg-type]


COSTS = tuple(Cost(protocol, 300, 500 + number, 8_000, 4_000) for protocol in Protocol for number in range(5))
GOOD = Found(
    CASE,
    {200: 190.0, 300: 195.0},
    175.5,
    (alone(1.0, refused=0), alone(2.0), alone(10.0, answers=97)),
    (mix(0.8, (0, 0)), mix(2.0)),
    (load(2.0, {"patient": result([1_000_000] * 9), "leaving": result(cancelled=5), "deadline": result(expired=4)}),),
    tuple(burst() for _ in range(5)),
    (leave(), leave(Protocol.HTTP, executed_for_nobody=200, newcomers_refused=190)),
    COSTS,
)


def verdicts(found: Found, *, others: bool = False) -> dict[str, Verdict]:
    """Of every figure with a target, by part and figure."""
    found_ = [one for one in judged(found, others=others) if one.verdict is not None]
    named = {f"{one.part}: {one.figure}": one.verdict for one in found_ if one.verdict is not None}
    assert len(named) == len(found_)
    return named


def check(found: Found, **conditions: float) -> OverloadCheck:
    return OverloadCheck(found, replace(CONDITIONS, **conditions), {"command": "brim bench overload"})  # type: ignore[arg-type]


def test_every_target_is_met_by_a_good_run() -> None:
    assert set(verdicts(GOOD).values()) == {Verdict.MET}
    assert check(GOOD).exit_code is ExitCode.YES


def with_load(number: int, changed: Load) -> Found:
    loads = list(GOOD.loads)
    loads[number] = changed
    return replace(GOOD, loads=tuple(loads))


SPEED: dict[str, Found] = {
    "goodput at 10x / best": with_load(2, alone(10.0, answers=94)),
    "accepted p99 at 2x, ms": with_load(1, load(2.0, {INTERACTIVE: result([1_000_000] * 100 + [2_000_001] * 2)})),
    "refusal p99 at 2x, ms from sending": with_load(
        1, load(2.0, {INTERACTIVE: result([1_000_000] * 100, [20_100] * 9)})
    ),
    "interactive answered at 2x, ratio": replace(GOOD, mixes=(mix(2.0, (1, 50)),)),
    "refusals of batch at 2x / all": replace(GOOD, mixes=(mix(2.0, (1, 50)),)),
    "refused at 0.8x": replace(GOOD, mixes=(mix(0.8, (0, 1)),)),
    "answered in time, least": replace(GOOD, bursts=(*GOOD.bursts[1:], burst(in_slo=299))),
    "answered late, most": replace(GOOD, bursts=(*GOOD.bursts[1:], burst(in_slo=299))),
    "all refusals / as many health answers": replace(GOOD, bursts=tuple(burst(health_us=100_000) for _ in range(5))),
    "a lone request right after, ms": replace(GOOD, bursts=(*GOOD.bursts[1:], burst(lone_after_us=500_001))),
}
COUNTS: dict[str, Found] = {
    "most in flight at 2x": with_load(1, alone(2.0, most_in_flight=301)),
    "not accounted for at 10x": with_load(2, alone(10.0, executed=98)),
    "not accounted for": replace(GOOD, bursts=(burst(answered=299, in_slo=299, executed=301),)),
    "most in flight": replace(GOOD, bursts=(burst(most_in_flight=301),)),
    "200 over grpc: executed": replace(GOOD, leaves=(leave(executed_for_nobody=1),)),
    "200 over http: let in above the bound": replace(GOOD, leaves=(leave(Protocol.HTTP, refused_at_bound=0),)),
    "200 over grpc: new callers refused": replace(GOOD, leaves=(leave(newcomers_refused=1),)),
}


def of(found: Found, figure: str, *, others: bool = False) -> Verdict:
    (verdict,) = {
        one.verdict for one in judged(found, others=others) if one.figure == figure and one.verdict is not Verdict.MET
    }
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("figure", SPEED)
def test_a_miss_of_speed_is_no_answer_on_a_busy_machine(figure: str) -> None:
    assert of(SPEED[figure], figure) is Verdict.MISSED
    assert of(SPEED[figure], figure, others=True) is Verdict.UNCLEAR
    assert check(SPEED[figure]).exit_code is ExitCode.NO
    assert check(SPEED[figure], other_cores=1.0).exit_code is ExitCode.COULD_NOT_TELL


@pytest.mark.parametrize("figure", COUNTS)
def test_a_miss_of_a_count_is_a_miss_on_any_machine(figure: str) -> None:
    for others in (False, True):
        assert of(COUNTS[figure], figure, others=others) is Verdict.MISSED
    assert check(COUNTS[figure], other_cores=1.0).exit_code is ExitCode.NO


def test_a_driver_at_its_limit_tells_nothing_of_speed_and_all_of_counts() -> None:
    found = verdicts(with_load(2, alone(10.0, answers=97, evidence=LATE)))
    unclear = {figure for figure, verdict in found.items() if verdict is not Verdict.MET}
    part = "one kind of callers: "
    assert unclear == {
        f"{part}{figure}"
        for figure in ("goodput at 10x / best", "accepted p99 at 10x, ms", "refusal p99 at 10x, ms from sending")
    }
    assert {found[figure] for figure in unclear} == {Verdict.UNCLEAR}


def test_refusals_that_the_driver_noticed_late_are_not_the_gateways() -> None:
    slow = result([1_000_000] * 100, [30_000] * 9, replace(IDLE, lag_us=15_000))
    assert of(with_load(1, load(2.0, {INTERACTIVE: slow})), "refusal p99 at 2x, ms from sending") is Verdict.UNCLEAR


def test_leavers_that_were_not_in_the_queue_tell_nothing() -> None:
    found = verdicts(replace(GOOD, leaves=(leave(queued=False, executed_for_nobody=7),)))
    assert [verdict for figure, verdict in found.items() if "200 over grpc" in figure] == [Verdict.UNCLEAR]


def test_a_load_without_an_answer_is_no_figure_and_still_json() -> None:
    nothing = load(1.0, {INTERACTIVE: result(refused_us=[2_000])})
    answer = check(replace(GOOD, loads=(nothing,)))
    assert of(answer.found, "accepted p99 at 1x, ms") is Verdict.UNCLEAR
    json.dumps(answer.as_json(), allow_nan=False)
    assert shown(answer)


def test_goodput_is_over_the_time_to_the_last_answer() -> None:
    one = alone(2.0, evidence=replace(IDLE, wall_us=12_500_000))
    assert one.goodput_per_s == pytest.approx(100 / 12.5)


CHANGES: dict[str, Callable[[Load], Load]] = {
    "gateway": lambda one: replace(one, gateway=Counted(one.gateway.outcomes + Counter({("x", Outcome.ANSWERED): 1}))),
    "swapped": lambda one: replace(
        one,
        gateway=Counted(
            one.gateway.outcomes
            + Counter({(INTERACTIVE, Outcome.REFUSED): 1})
            - Counter({(INTERACTIVE, Outcome.ANSWERED): 1})
        ),
    ),
    "too few rows": lambda one: replace(one, executed=one.executed - 1),
    "too many rows": lambda one: replace(one, executed=one.executed + 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whoever_counts_differently_is_named(change: str) -> None:
    one = alone(2.0)
    assert accounting_faults(one) == []
    assert accounting_faults(CHANGES[change](one))


@pytest.mark.parametrize("end", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_request_that_failed_is_a_fault_even_where_all_agree(end: Outcome) -> None:
    one = load(2.0, {INTERACTIVE: result([1] * 5, **{end.value: 1})})
    assert any(end.value in fault for fault in accounting_faults(one))


def test_a_leaver_may_have_been_answered_in_that_moment_and_executed_for_nobody() -> None:
    groups = {INTERACTIVE: result([1] * 5, cancelled=3, expired=2)}
    one = load(2.0, groups)
    answered_leaver = Counter({(INTERACTIVE, Outcome.ANSWERED): 6, (INTERACTIVE, Outcome.CANCELLED): 2})
    answered_leaver[INTERACTIVE, Outcome.EXPIRED] = 2
    assert accounting_faults(replace(one, gateway=Counted(answered_leaver), executed=6)) == []
    assert accounting_faults(replace(one, executed=10)) == []
    assert accounting_faults(replace(one, executed=11)) != []


def test_the_answer_is_json_and_a_table_a_part() -> None:
    answer = check(GOOD)
    read = json.loads(json.dumps(answer.as_json()))
    assert read["benchmark"] == "overload" and read["case"]["bound"] == CASE.bound
    assert len(read["judged"]) == len(answer.judged)
    text = shown(answer)
    for one in answer.judged:
        assert one.part in text and one.figure in text
    assert "97 answered, 50 refused" in text
    assert "200" in text and "not notice" in text


def test_a_figure_without_target_has_no_verdict() -> None:
    of_cost = [one for one in judged(GOOD, others=False) if one.part == "cost of the gateway"]
    assert [(one.value, one.verdict) for one in of_cost] == [(202, None), (0.5, None)] * 2
    assert all(isinstance(one, Judged) and not one.target for one in of_cost)


def test_an_effort_that_does_not_fit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bound of 300"):
        overload(
            CASE, Effort(leavers=300), launcher=None, cache=tmp_path, folder=tmp_path / "run", log_file=tmp_path / "log"
        )
    assert not (tmp_path / "run").exists()


def test_the_command_takes_no_options_of_others(brim: Brim) -> None:
    found = brim("bench", "overload", "image_classifier", "--points", "3")
    assert found.code == 2 and "takes no a service and no --points" in found.err


def test_refusals_count_from_sending_as_well() -> None:
    account = result([5], [2_000, 4_000]).whole
    assert account.refused_since_sent.max_us == 4_000 and account.until_refused.max_us == 5_000
    again = Account.from_json(json.loads(json.dumps(account.as_json())))
    assert again.refused_since_sent.count == 2
    again.merge(account)
    assert again.refused_since_sent.count == 4


def test_headers_of_a_class_are_in_every_http_message_and_in_no_grpc_one() -> None:
    rows = [{"X": np.zeros((1, 4), np.float32)}] * 2
    plain = messages(ENDPOINT, Protocol.HTTP, MODEL, rows)
    named = messages(ENDPOINT, Protocol.HTTP, MODEL, rows, {"x-brim-class": BATCH})
    for before, after in zip(plain, named, strict=True):
        head, _, body = after.partition(b"\r\n\r\n")
        assert b"\r\nx-brim-class: batch" in head
        assert after.replace(b"\r\nx-brim-class: batch", b"") == before and before.endswith(body)
    with pytest.raises(InputError, match="gRPC"):
        messages(ENDPOINT, Protocol.GRPC, MODEL, rows, {"x-brim-class": BATCH})
