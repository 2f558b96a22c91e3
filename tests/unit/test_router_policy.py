"""Each policy on fleets of a few replicas, and the reported cases of routers that were taken in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pytest

from brim.engine.kv_cache import block_hashes
from brim.router.policy import POLICIES, pick
from brim.router.router import Router
from brim.router.view import Candidate, Choice, Reason, Replica, Request, Settings
from tests.conftest import ROOT

CASE = json.loads((ROOT / "tests/cases/35_router_snapshot.json").read_text(encoding="utf-8"))
NOW_US = 1_000_000
IDLE = {"waiting": 0.0, "running": 0.0, "kv_free": 1.0}


def page(name: str, **said: Any) -> Replica:
    return Replica(name, **{**IDLE, "scraped_us": NOW_US, **said})


def chosen(policy: str, candidates: list[Candidate], request: Request | None = None, **settings: Any) -> Choice:
    candidates = sorted(candidates, key=lambda one: one.replica.name)
    return pick(
        policy,
        candidates,
        request or Request(),
        number=0,
        now_us=NOW_US,
        settings=Settings(**settings),
    )


def name_of(policy: str, candidates: list[Candidate], request: Request | None = None, **settings: Any) -> str:
    ordered = sorted(candidates, key=lambda one: one.replica.name)
    return ordered[chosen(policy, candidates, request, **settings).index].replica.name


@pytest.mark.parametrize("case", ["case_1", "case_2", "case_3"])
@pytest.mark.parametrize("names", ["AB", "BA"])
def test_a_busy_replica_does_not_look_idle_and_a_warm_one_is_taken_unless_it_is_saturated(
    case: str, names: str
) -> None:
    asked = CASE[case]
    # The names are exchanged as well: nothing may depend on who comes first.
    called = dict(zip("AB", names, strict=True))

    def candidate(said: Mapping[str, Any]) -> Candidate:
        now = {**said, **asked.get(said["name"], {})}
        replica = page(called[said["name"]], **{key: now[key] for key in ("waiting", "running", "kv_free")})
        return Candidate(replica, matched_blocks=asked["match_on_A"] if said["name"] == "A" else 0)

    choice = name_of(
        "prefix_aware",
        [candidate(said) for said in CASE["replicas"]],
        Request(asked["prompt_tokens"]),
        block_tokens=1,
        least_match_tokens=CASE["min_prefix_match"],
    )
    assert choice == called[asked["expect"]]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("scraped", [True, False])
def test_a_system_prompt_that_all_share_does_not_bring_all_to_one_replica(together: bool, scraped: bool) -> None:
    asked = CASE["case_4"]
    names = [f"replica-{number}" for number in range(asked["replicas"])]
    router = Router("prefix_aware", names, Settings(least_match_tokens=CASE["min_prefix_match"]))
    shared = list(range(asked["shared_system_prompt_tokens"]))
    share: Counter[str] = Counter()
    for session in range(asked["sessions"]):
        now_us = NOW_US + session
        if scraped:
            for name in names:
                router.scrape(page(name, scraped_us=now_us, running=float(router.in_flight(name))))
        prompt = [*shared, *(10_000 * (session + 1) + place for place in range(asked["unique_tail_tokens"]))]
        decision = router.pick(Request(len(prompt), tuple(block_hashes(prompt, 16))), now_us)
        assert decision is not None
        share[decision.name] += 1
        if not together:
            router.end(decision.number, now_us)
    assert max(share.values()) <= 0.40 * asked["sessions"]


def test_a_popular_prefix_goes_no_further_than_the_cap() -> None:
    names = ["a", "b", "c", "d"]
    router = Router("prefix_aware", names)
    blocks = tuple(block_hashes(list(range(512)), 16))
    for number in range(200):
        assert router.pick(Request(512, blocks), NOW_US + number) is not None
    assert max(router.in_flight(name) for name in names) <= 0.40 * 200


def test_round_robin_takes_turns() -> None:
    router = Router("round_robin", "abc")
    taken = [decision.name for now_us in range(6) if (decision := router.pick(Request(), now_us))]
    assert taken == list("abcabc")


def test_least_request_counts_what_is_in_flight_from_here() -> None:
    busy = [Candidate(page("a"), own=3), Candidate(page("b", waiting=50.0), own=2), Candidate(page("c"), own=4)]
    assert name_of("least_request", busy) == "b"


def test_queue_depth_counts_what_others_sent_as_well() -> None:
    busy = [Candidate(page("a"), own=3), Candidate(page("b", waiting=50.0), own=2), Candidate(page("c"), own=4)]
    assert name_of("queue_depth", busy) == "a"


def test_what_has_ended_since_the_page_has_made_room() -> None:
    assert (
        name_of("queue_depth", [Candidate(page("a", waiting=8.0), ended=8, own=1), Candidate(page("b"), own=2)]) == "a"
    )
    full = page("a", waiting=4.0, running=4.0)
    assert name_of("prefix_aware", [Candidate(full, ended=8), Candidate(page("b", running=1.0))]) == "a"


@pytest.mark.parametrize("policy", ["queue_depth", "prefix_aware"])
@pytest.mark.parametrize(
    "said",
    [
        {"waiting": None},
        {"waiting": nan},
        {"waiting": inf},
        {"waiting": -1.0},
        {"scraped_us": None},
        {"scraped_us": NOW_US - Settings().stale_us - 1},
    ],
)
def test_a_replica_without_a_page_is_judged_by_what_is_in_flight_alone(policy: str, said: dict[str, Any]) -> None:
    others = [Candidate(page("b", waiting=3.0), own=3), Candidate(page("c", waiting=3.0), own=3)]
    blind = page("a", **{"waiting": 9.0, **said})
    assert name_of(policy, [Candidate(blind, own=1), *others]) == "a"
    assert name_of(policy, [Candidate(blind, own=20), *others]) != "a"


@pytest.mark.parametrize(
    "said",
    [{"running": nan}, {"kv_free": nan}, {"kv_free": 1.5}, {"kv_free": -0.1}, {"kv_free": None}, {"running": None}],
)
def test_half_a_page_is_none(said: dict[str, Any]) -> None:
    blind = page("a", **{"waiting": 50.0, "kv_free": 0.0, **said})
    others = [Candidate(page("b", waiting=2.0), own=2), Candidate(page("c", waiting=2.0), own=2)]
    assert name_of("prefix_aware", [Candidate(blind, own=0), *others]) == "a"


def test_what_no_page_says_is_missed_on_none() -> None:
    pages = [page("a", kv_free=None, running=None, waiting=4.0), page("b", kv_free=None, running=None)]
    assert name_of("prefix_aware", [Candidate(one) for one in pages]) == "b"


def test_a_prompt_that_does_not_fit_makes_its_holder_saturated() -> None:
    small = {"kv_blocks": 100, "kv_block_tokens": 16}
    request = Request(prompt_tokens=800, blocks=tuple(range(50)))
    warm = Candidate(page("a", kv_free=0.3, **small), matched_blocks=10)
    cold = Candidate(page("b", kv_free=0.9, **small))
    assert chosen("prefix_aware", [warm, cold], request) == Choice(1, Reason.WARM_SATURATED)
    # With all of it matched, nothing new has to be held.
    all_of_it = Candidate(page("a", kv_free=0.3, **small), matched_blocks=50)
    assert chosen("prefix_aware", [all_of_it, cold], request) == Choice(0, Reason.WARM)
    # The prompts that were sent since take their part.
    since = Candidate(page("a", kv_free=0.3, **small), matched_blocks=50, unseen=1, unseen_tokens=400, own=1)
    assert chosen("prefix_aware", [since, cold], request) == Choice(1, Reason.WARM_SATURATED)


def test_less_important_requests_of_a_moment_ago_are_passed() -> None:
    batch = Candidate(page("a"), own=3, unseen=3, unseen_behind=3)
    others = Candidate(page("b"), own=2, unseen=2)
    assert name_of("prefix_aware", [batch, others]) == "a"
    assert name_of("prefix_aware", [Candidate(page("a"), own=3, unseen=3), others]) == "b"


def test_why_another_one_than_the_holder_of_the_prefix_is_taken() -> None:
    request = Request(160, tuple(range(10)))
    cold = Candidate(page("b"))

    def reason(running: float, waiting: float = 0.0, **settings: Any) -> Reason:
        warm = Candidate(page("a", running=running, waiting=waiting), matched_blocks=10)
        return chosen("prefix_aware", [warm, cold], request, **settings).reason

    assert reason(1.0) is Reason.WARM
    assert reason(3.0, free_load=9) is Reason.WARM_OUTWEIGHED
    assert reason(3.0) is Reason.WARM_OVER_CAP
    assert reason(3.0, waiting=5.0) is Reason.WARM_SATURATED
    assert reason(0.0, least_match_tokens=161) is Reason.LEAST


@pytest.mark.parametrize(
    ("running", "name"),
    [
        # Each of three replicas as it is, and who gets the request: "a" holds its prefix.
        ((2.0, 1.0, 2.0), "b"),  # three there would be half more than the mean of two
        ((3.0, 3.0, 2.0), "a"),  # four, where the mean is three
        ((2.0, 2.0, 2.0), "a"),
        ((4.0, 3.0, 4.0), "a"),  # five, where the mean is four
        ((1.0, 0.0, 0.0), "a"),  # two are always allowed
    ],
)
def test_the_cap_is_not_rounded_up(running: tuple[float, ...], name: str) -> None:
    pages = [page(one, running=busy) for one, busy in zip("abc", running, strict=True)]
    candidates = [Candidate(one, matched_blocks=10 if one.name == "a" else 0) for one in pages]
    assert name_of("prefix_aware", candidates, Request(160, tuple(range(10)))) == name


@pytest.mark.parametrize("policy", ["queue_depth", "prefix_aware"])
def test_a_replica_without_a_page_does_not_look_better_for_that(policy: str) -> None:
    others = [Candidate(page("b", waiting=2.0), own=2), Candidate(page("c", waiting=2.0), own=2)]
    assert name_of(policy, [Candidate(Replica("a"), own=3), *others]) != "a"


def test_of_those_that_are_nearly_as_good_the_holder_of_the_prefix_is_taken() -> None:
    warm = Candidate(page("a", running=1.7), matched_blocks=10)
    fleet = [warm, *(Candidate(page(name)) for name in "bcdef")]
    for number in range(8):
        request = Request(160, tuple(range(100 * number, 100 * number + 10)))
        assert chosen("prefix_aware", fleet, request, free_load=9) == Choice(0, Reason.WARM)


def test_prompts_that_are_too_short_for_a_prefix_spread() -> None:
    router, taken = Router("prefix_aware", "abc"), Counter[str]()
    for now_us in range(60):
        decision = router.pick(Request(20, (1,)), now_us)
        assert decision is not None
        router.end(decision.number, now_us)
        taken[decision.name] += 1
    assert min(taken[name] for name in "abc") >= 10


def test_prompts_that_begin_alike_go_to_one_replica_from_every_router() -> None:
    blocks = [tuple(block_hashes([prompt, *range(200)], 16)) for prompt in range(30)]

    def place(prompt: int) -> str:
        # A router that has seen nothing yet.
        router = Router("prefix_aware", "abc")
        for other in range(prompt % 5):
            earlier = router.pick(Request(1, ()), other)
            assert earlier is not None
            router.end(earlier.number, other)
        decision = router.pick(Request(201, blocks[prompt]), 100)
        assert decision is not None
        return decision.name

    homes = [place(prompt) for prompt in range(30)]
    assert homes == [place(prompt) for prompt in range(30)]
    assert set(homes) == set("abc")


def test_two_random_choices_even_out_without_looking_at_all() -> None:
    names = [f"{number:03}" for number in range(100)]
    router = Router("least_request", names, Settings(choices=2))
    for now_us in range(2_000):
        decision = router.pick(Request(), now_us)
        assert decision is not None and len(decision.candidates) == 2
    loads = [router.in_flight(name) for name in names]
    # One choice alone would leave some with fewer than 10 and some with more than 30.
    assert min(loads) >= 15 and max(loads) <= 24


def test_the_holder_of_a_prefix_is_looked_at_whoever_is_drawn() -> None:
    router = Router("prefix_aware", [f"{number:03}" for number in range(50)], Settings(choices=1))
    blocks = tuple(block_hashes(list(range(512)), 16))
    homes = set()
    for now_us in range(10):
        decision = router.pick(Request(512, blocks), now_us)
        assert decision is not None
        router.end(decision.number, now_us)
        homes.add(decision.name)
    assert len(homes) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_without_candidates_there_is_no_choice(policy: str) -> None:
    with pytest.raises(ValueError, match="no replica"):
        chosen(policy, [])
    assert Router(policy).pick(Request(), 0) is None
