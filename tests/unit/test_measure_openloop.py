"""The open loop in virtual time: schedule, accounting, giving up, bounds, and when its own generator is the limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import CouldNotTell, InputError
from brim.measure.accounting import Account, Objective, Outcome, Reply, goodput_per_s, judge_slo, merged
from brim.measure.histogram import LONGEST_US, Latencies, nearest_rank
from brim.measure.openloop import Ask, OpenLoopPlan, OpenLoopResult, drive, merged_results
from brim.measure.openloop_limits import Evidence, limits_seen
from brim.measure.openloop_processes import job_as_json, job_from_json, result_as_json, result_from_json
from brim.measure.openloop_run import grpc_reply, http_reply
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.units import ms_to_us, us_to_ms
from tests.unit.virtual_time import VirtualLoop, run

ANSWERED = Reply(Outcome.ANSWERED)
ENDPOINT = Endpoint("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
IDLE = Evidence(loop_cores=0.1, lag_us=100, most_under_way=1)
latencies = st.lists(st.integers(0, LONGEST_US), min_size=1, max_size=200)


def exact_percentile(values: Sequence[int], percentile: float) -> int:
    return sorted(values)[nearest_rank(percentile, len(values)) - 1]


def go(
    offsets: Sequence[int], plan: OpenLoopPlan, ask: Ask, wait_until: Callable[[float], Awaitable[None]] | None = None
) -> OpenLoopResult:
    async def on_time(at_s: float) -> None:
        await asyncio.sleep(at_s - asyncio.get_running_loop().time())

    async def main() -> OpenLoopResult:
        begin_s = asyncio.get_running_loop().time()
        accounts, most = await drive(offsets, ask, plan, wait_until=wait_until or on_time, begin_s=begin_s)
        return OpenLoopResult(plan, accounts, Evidence(0.1, 100, most))

    return run(main())


def answer_after(ms: float) -> Ask:
    async def ask(number: int) -> Reply:
        await asyncio.sleep(ms / 1_000)
        return ANSWERED

    return ask


def test_the_stall_of_case_16_is_charged_from_the_schedule(cases: Path) -> None:
    account = Account(Objective(90, ms_to_us(100)))
    for line in (cases / "16_open_loop.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        account.add(*(ms_to_us(one[f"{name}_ms"]) for name in ("scheduled", "sent", "done")), ANSWERED)

    def ms(value_us: int | None) -> int:
        assert value_us is not None
        return round(us_to_ms(value_us))

    assert [ms(account.since_due.percentile_us(p)) for p in (50, 90)] == [200, 400]
    assert account.since_due.max_us == 450_000
    assert [ms(account.since_sent.percentile_us(p)) for p in (50, 90)] == [50, 50]
    assert account.late == 6
    verdict = judge_slo(account)
    assert not verdict.met
    assert (verdict.in_slo, verdict.needed, verdict.offered) == (3, 9, 10)
    with pytest.raises(CouldNotTell, match="6 of 10 requests left more than 1 ms late"):
        OpenLoopResult(OpenLoopPlan(1_000_000, objective=Objective(90, 100_000)), (account,), IDLE).verdict()


def test_a_stalled_server_does_not_hold_up_sending() -> None:
    """As in case 16, but with a loop that is open: everything leaves in time, and waits in the server."""
    free_at_s = 0.0

    async def ask(number: int) -> Reply:
        nonlocal free_at_s
        now_s = asyncio.get_running_loop().time()
        free_at_s = max(now_s, free_at_s) + (0.45 if number == 3 else 0.05)
        await asyncio.sleep(free_at_s - now_s)
        return ANSWERED

    result = go([100_000 * i for i in range(10)], OpenLoopPlan(1_000_000, objective=Objective(90, 100_000)), ask)
    whole = result.whole
    assert whole.late == 0
    assert whole.since_due.max_us == 450_000
    assert round(us_to_ms(whole.since_due.percentile_us(90) or 0)) == 400
    assert whole.since_due.as_json() == whole.since_sent.as_json()
    assert not result.verdict().met


def test_every_arrival_has_one_outcome() -> None:
    replies = {
        0: ANSWERED,
        1: Reply(Outcome.REFUSED, "503: full"),
        2: Reply(Outcome.EXPIRED, "503: expired"),
        3: Reply(Outcome.FAILED, "500: broken"),
    }

    async def ask(number: int) -> Reply:
        if number % 5 == 4:
            await asyncio.sleep(3_600)
        await asyncio.sleep(0.01)
        return replies[number % 5]

    plan = OpenLoopPlan(1_000_000, timeout_us=500_000, segment_us=250_000, objective=Objective(99, 10_000))
    result = go([10_000 * i for i in range(100)], plan, ask)
    whole = result.whole
    assert whole.offered == 100
    expected = dict.fromkeys(("answered", "refused", "expired", "failed", "timed_out"), 20)
    assert {k.value: n for k, n in whole.counts.items() if n} == expected
    assert whole.in_slo == 20, "an answer after exactly the limit is in time"
    assert [account.offered for account in result.accounts] == [25] * 4
    assert whole.messages == {"503: full": 20, "503: expired": 20, "500: broken": 20}
    assert whole.until_refused.count == 20
    assert goodput_per_s(whole, plan.duration_us) == 20
    document = json.loads(json.dumps(result.as_json()))
    assert document["goodput_ratio"] == 0.2
    assert document["answered_per_s"] == 20
    assert document["generator_bound"] is False


def test_callers_that_give_up_cancel_their_requests() -> None:
    cancelled = []

    async def ask(number: int) -> Reply:
        try:
            await asyncio.sleep(0.2 if number % 2 else 0.05)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return ANSWERED

    result = go(range(0, 100_000, 10_000), OpenLoopPlan(100_000, give_up_us=100_000), ask)
    assert cancelled == [1, 3, 5, 7, 9]
    assert result.whole.counts[Outcome.CANCELLED] == 5
    assert result.whole.counts[Outcome.ANSWERED] == 5


def test_at_the_bound_arrivals_are_not_sent_and_the_run_says_so() -> None:
    sent = []

    async def ask(number: int) -> Reply:
        sent.append(number)
        await asyncio.sleep(1)
        return ANSWERED

    plan = OpenLoopPlan(1_000_000, in_flight_limit=3, objective=Objective(50, 2_000_000))
    result = go(range(0, 1_000_000, 100_000), plan, ask)
    assert sent == [0, 1, 2]
    assert result.whole.counts[Outcome.NOT_SENT] == 7
    assert result.whole.offered == 10
    assert result.evidence.most_under_way == 3
    with pytest.raises(CouldNotTell, match="7 of 10 arrivals were not sent: generator bound") as caught:
        result.verdict()
    assert caught.value.exit_code == 3


def test_a_generator_that_is_held_up_sends_late_and_could_not_tell() -> None:
    async def ask(number: int) -> Reply:
        if number == 2:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.spend(0.45)
        await asyncio.sleep(0.01)
        return ANSWERED

    result = go(range(0, 1_000_000, 100_000), OpenLoopPlan(1_000_000, objective=Objective(90, 100_000)), ask)
    whole = result.whole
    assert whole.counts[Outcome.ANSWERED] == 10
    # Due at 300, 400, 500 and 600 ms, sent at 650.
    assert whole.late == 4
    assert whole.since_due.max_us is not None
    assert whole.since_due.max_us >= 350_000
    with pytest.raises(CouldNotTell, match="the generator is the limit: 4 of 10 requests left more than 5 ms late"):
        result.verdict()


def test_a_caller_whose_patience_ended_before_it_could_be_sent_is_not_sent() -> None:
    async def ask(number: int) -> Reply:
        if number == 0:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.spend(0.5)
        return ANSWERED

    result = go(range(0, 1_000_000, 100_000), OpenLoopPlan(1_000_000, give_up_us=150_000), ask)
    assert result.whole.counts[Outcome.NOT_SENT] == 3
    assert result.whole.counts[Outcome.ANSWERED] == 7


def test_interrupting_cancels_what_is_under_way() -> None:
    cancelled = []

    async def ask(number: int) -> Reply:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return ANSWERED

    async def main() -> None:
        async def wait(at_s: float) -> None:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())

        begin_s = asyncio.get_running_loop().time()
        plan = OpenLoopPlan(10_000_000, timeout_us=60_000_000)
        await asyncio.wait_for(drive(range(0, 10_000_000, 1_000_000), ask, plan, wait_until=wait, begin_s=begin_s), 3.5)

    with pytest.raises(TimeoutError):
        run(main())
    assert sorted(cancelled) == [0, 1, 2, 3]


def test_more_arrivals_at_once_than_are_sent_in_a_row_leave_room_for_answers() -> None:
    order: list[str] = []

    async def ask(number: int) -> Reply:
        order.append("sent")
        await asyncio.sleep(0)
        order.append("answered")
        return ANSWERED

    result = go([0] * 1_000, OpenLoopPlan(1_000), ask)
    assert result.whole.counts[Outcome.ANSWERED] == 1_000
    assert order.index("answered") < 100
    assert result.evidence.most_under_way < 1_000


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (Evidence(0.95, 100, 1), "its event loop used 0.95 of one core"),
        (Evidence(0.1, 2_500, 1), "its event loop came 2.5 ms late"),
        (Evidence(0.89, 2_000, 1), None),
        (Evidence(None, None, 1), None),
    ],
)
def test_limits_of_the_generator(evidence: Evidence, said: str | None) -> None:
    account = Account()
    account.add(0, 0, 10, ANSWERED)
    seen = limits_seen(account, evidence, 10)
    assert seen == [] if said is None else [said in text for text in seen] == [True]


@pytest.mark.parametrize(
    ("percentile", "late", "bound"), [(99, 5, False), (99, 6, True), (90, 50, False), (90, 51, True)]
)
def test_how_many_late_sends_a_percentile_bears(percentile: float, late: int, bound: bool) -> None:
    account = Account(Objective(percentile, 100_000))
    for number in range(1_000):
        account.add(0, 1_001 if number < late else 1_000, 5_000, ANSWERED)
    assert account.late == late
    assert bool(limits_seen(account, IDLE, 10)) is bound


def test_a_latency_of_exactly_the_limit_is_within() -> None:
    for limit_us in (12_400, 99_999, 1_234_567):
        account = Account(Objective(99, limit_us))
        account.add(0, 0, limit_us, ANSWERED)
        assert judge_slo(account).met
        account.add(0, 0, limit_us + 1, ANSWERED)
        assert not judge_slo(account).met


def test_what_is_not_answered_misses_the_slo() -> None:
    account = Account(Objective(50, 100))
    account.add(0, 0, 10, ANSWERED)
    for outcome in Outcome:
        if outcome not in (Outcome.ANSWERED, Outcome.NOT_SENT):
            account.add(0, 0, 10, Reply(outcome))
    verdict = judge_slo(account)
    assert (verdict.met, verdict.in_slo, verdict.offered) == (False, 1, 6)


def test_no_objective_and_no_arrival_give_no_verdict() -> None:
    with pytest.raises(InputError, match="no objective"):
        judge_slo(Account())
    with pytest.raises(CouldNotTell, match="no request was due"):
        judge_slo(Account(Objective(99, 1)))


@pytest.mark.parametrize(
    ("percentile", "count", "rank"),
    [(50, 10, 5), (90, 10, 9), (91, 10, 10), (99.9, 1_000, 999), (0.1, 5, 1), (100, 7, 7)],
)
def test_nearest_rank(percentile: float, count: int, rank: int) -> None:
    assert nearest_rank(percentile, count) == rank


@settings(deadline=None, max_examples=50)
@given(latencies, st.sampled_from([0.1, 10, 50, 90, 95, 99, 99.9, 100]))
def test_percentiles_are_the_nearest_rank_to_three_digits(values: list[int], percentile: float) -> None:
    kept = Latencies()
    for value in values:
        kept.record(value)
    exact, found = exact_percentile(values, percentile), kept.percentile_us(percentile)
    assert found is not None
    assert exact <= found <= exact * 1.001 + 1
    assert kept.max_us == max(values)
    assert kept.min_us == min(values)
    assert kept.mean_us == pytest.approx(sum(values) / len(values))


@settings(deadline=None, max_examples=50)
@given(latencies, latencies)
def test_parts_merge_into_the_whole(first: list[int], second: list[int]) -> None:
    def of(values: list[int]) -> Latencies:
        made = Latencies()
        for value in values:
            made.record(value)
        return made

    merged_one, whole = of(first), of(first + second)
    merged_one.merge(Latencies.from_json(json.loads(json.dumps(of(second).as_json()))))
    merged_one.merge(Latencies())
    assert merged_one.as_json() == whole.as_json()
    assert [merged_one.percentile_us(p) for p in (50, 99, 100)] == [whole.percentile_us(p) for p in (50, 99, 100)]


def test_latencies_beyond_an_hour_are_kept_as_the_largest() -> None:
    kept = Latencies()
    kept.record(2 * LONGEST_US)
    assert (kept.count, kept.percentile_us(50), kept.max_us) == (1, 2 * LONGEST_US, 2 * LONGEST_US)
    assert Latencies().percentile_us(99) is None
    with pytest.raises(ValueError, match="-1"):
        kept.record(-1)


def test_accounts_travel_and_merge() -> None:
    def part(number: int) -> Account:
        account = Account(Objective(99, 1_000), late_us=50)
        account.add(0, 100 * number, 900 + 200 * number, ANSWERED)
        account.add(0, 0, 5, Reply(Outcome.REFUSED, "503: full"))
        account.add_unsent()
        return account

    parts = [part(number) for number in range(3)]
    sent = [Account.from_json(json.loads(json.dumps(one.as_json()))) for one in parts]
    whole = merged(sent)
    assert whole.as_json() == merged(parts).as_json()
    assert (whole.offered, whole.in_slo, whole.late) == (9, 1, 2)
    assert whole.messages == {"503: full": 3}
    with pytest.raises(InputError, match="do not mean the same"):
        whole.merge(Account(Objective(99, 2_000), late_us=50))
    with pytest.raises(InputError, match="no account"):
        merged([])


@pytest.mark.parametrize("key", ["slo", "offered", "answered", "histograms", "late_us"])
def test_what_is_no_account_is_refused(key: str) -> None:
    account = Account()
    account.add(0, 0, 5, ANSWERED)
    document = account.as_json()
    document[key] = {"since_due": {"hdr": "x"}} if key == "histograms" else "five"
    if key == "offered":
        document["answered"] = 2
    with pytest.raises(InputError, match="not a"):
        Account.from_json(document)


def test_kept_error_texts_are_bounded() -> None:
    account = Account()
    for number in range(1_000):
        account.add(0, 0, 1, Reply(Outcome.FAILED, f"500: {number}"))
    assert len(account.messages) == 10
    assert account.counts[Outcome.FAILED] == 1_000


def test_a_plan_that_makes_no_sense_names_every_fault() -> None:
    with pytest.raises(InputError) as caught:
        OpenLoopPlan(0, timeout_us=0, give_up_us=0, in_flight_limit=0, late_us=0, segment_us=0)
    for name in ("duration_us", "timeout_us", "give_up_us", "in_flight_limit", "late_us", "segment_us"):
        assert f"{name} 0" in caught.value.message
    with pytest.raises(InputError, match="gives 1000 segments"):
        OpenLoopPlan(1_000, segment_us=1)
    with pytest.raises(InputError, match="percentile 0"):
        Objective(0, 1)
    with pytest.raises(InputError, match="latency_us 0"):
        Objective(99, 0)


@pytest.mark.parametrize(
    ("code", "details", "outcome"),
    [
        ("UNAVAILABLE", "[request id: <id_unknown>] Exceeds maximum queue size", Outcome.REFUSED),
        ("RESOURCE_EXHAUSTED", "overflow", Outcome.REFUSED),
        ("UNAVAILABLE", "Request timeout expired", Outcome.EXPIRED),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Outcome.EXPIRED),
        ("UNAVAILABLE", "failed to connect to all addresses", Outcome.FAILED),
        ("UNAVAILABLE", "Socket closed", Outcome.FAILED),
        ("INTERNAL", "onnx runtime error 2", Outcome.FAILED),
        ("INVALID_ARGUMENT", "unexpected shape", Outcome.FAILED),
    ],
)
def test_what_grpc_codes_mean(code: str, details: str, outcome: Outcome) -> None:
    assert grpc_reply(code, details) == (outcome, f"{code}: {details}")


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, "", Outcome.ANSWERED),
        (503, "Exceeds maximum queue size", Outcome.REFUSED),
        (429, "", Outcome.REFUSED),
        (503, '{"error":"Request timeout expired"}', Outcome.EXPIRED),
        (504, "", Outcome.EXPIRED),
        (500, "boom" * 1_000, Outcome.FAILED),
        (404, "", Outcome.FAILED),
    ],
)
def test_what_http_statuses_mean(status: int, body: str, outcome: Outcome) -> None:
    reply = http_reply(status, body)
    assert reply.outcome is outcome
    assert len(reply.message) <= 200


def test_jobs_and_results_travel_between_processes() -> None:
    plan = OpenLoopPlan(1_000, give_up_us=5, objective=Objective(99.9, 7), segment_us=500)
    job = json.loads(json.dumps(job_as_json(ENDPOINT, Protocol.HTTP, [b"\x00\xff", b""], [0, 5], plan)))
    assert job_from_json(job) == (ENDPOINT, Protocol.HTTP, [b"\x00\xff", b""], [0, 5], plan)
    plain = OpenLoopPlan(1_000)
    assert job_from_json(json.loads(json.dumps(job_as_json(ENDPOINT, Protocol.GRPC, [b"a"], [], plain))))[-1] == plain
    result = go([0, 600], plan, answer_after(0.001))
    back = result_from_json(json.loads(json.dumps(result_as_json(result))), plan)
    assert back.as_json() == result.as_json()


def test_parts_of_a_schedule_merge_and_the_worst_generator_counts() -> None:
    plan = OpenLoopPlan(1_000, segment_us=500)

    def part(evidence: Evidence, *, alive: bool = True) -> OpenLoopResult:
        made = go([0, 0, 600], plan, answer_after(0.001))
        return OpenLoopResult(plan, made.accounts, evidence, alive)

    whole = merged_results(
        plan, [part(Evidence(0.5, None, 3)), part(Evidence(0.95, 200, 4)), part(Evidence(None, 100, 1))]
    )
    assert whole.evidence == Evidence(0.95, 200, 8, processes=3)
    assert [account.offered for account in whole.accounts] == [6, 3]
    assert whole.limits == ["its event loop used 0.95 of one core"]
    assert whole.server_alive
    assert not merged_results(plan, [part(IDLE), part(IDLE, alive=False)]).server_alive
    with pytest.raises(InputError, match="segments"):
        merged_results(OpenLoopPlan(1_000), [part(IDLE)])
    with pytest.raises(InputError, match="segments"):
        merged_results(plan, [])
