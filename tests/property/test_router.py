"""What holds for every fleet, every policy and every order of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.router.decisions import line_of, replay
from brim.router.estimate import outstanding
from brim.router.policy import POLICIES, pick
from brim.router.router import Decision, Router
from brim.router.view import Candidate, Reason, Replica, Request, Settings

NOW_US = 10_000_000
GOOD = st.floats(0, 60)
ODD = st.sampled_from([None, nan, inf, -inf, -1.0])
AMOUNTS = st.one_of(GOOD, ODD)
TIMES = st.one_of(st.none(), st.integers(0, NOW_US))


@st.composite
def candidates(draw: st.DrawFn, amounts: st.SearchStrategy[float | None] = AMOUNTS) -> Candidate:
    own = draw(st.integers(0, 40))
    unseen = draw(st.integers(0, own))
    return Candidate(
        Replica(
            "",
            draw(amounts),
            draw(amounts),
            draw(st.one_of(st.floats(0, 1), ODD)),
            draw(st.one_of(st.none(), st.integers(0, 500))),
            draw(st.one_of(st.none(), st.integers(0, 64))),
            draw(TIMES),
        ),
        own=own,
        unseen=unseen,
        unseen_behind=draw(st.integers(0, unseen)),
        unseen_tokens=draw(st.integers(0, 4_000)) if unseen else 0,
        ended=draw(st.integers(0, 40)),
        matched_blocks=draw(st.integers(0, 40)),
    )


def named(fleet: Sequence[Candidate]) -> list[Candidate]:
    return [replace(one, replica=replace(one.replica, name=f"{place:02}")) for place, one in enumerate(fleet)]


FLEETS = st.lists(candidates(), min_size=1, max_size=6).map(named)
REQUESTS = st.builds(
    Request, st.integers(0, 700), st.lists(st.integers(), max_size=40).map(tuple), st.sampled_from([1, 2, 9])
)


@settings(deadline=None)
@given(FLEETS, REQUESTS, st.sampled_from(sorted(POLICIES)), st.integers(0, 1_000), st.integers(0, 5))
def test_every_fleet_has_a_choice_and_always_the_same(
    fleet: list[Candidate], request: Request, policy: str, number: int, seed: int
) -> None:
    def choose() -> object:
        return pick(policy, fleet, request, number=number, now_us=NOW_US, settings=Settings(seed=seed))

    first = choose()
    assert first == choose()
    decision = Decision(number, NOW_US, policy, request, tuple(fleet), first)  # type: ignore[arg-type]
    assert decision.name in {one.replica.name for one in fleet}
    assert replay([line_of(decision, Settings(seed=seed))]).differing == ()


@settings(deadline=None)
@given(
    st.lists(candidates(GOOD), min_size=1, max_size=6).map(named),
    st.integers(130, 700),
    st.floats(1, 3),
    st.integers(0, 4),
)
def test_no_replica_is_taken_for_its_prefix_beyond_the_factor_over_the_mean(
    fleet: list[Candidate], tokens: int, factor: float, free_load: int
) -> None:
    fleet = [replace(one, replica=replace(one.replica, kv_free=0.5, scraped_us=NOW_US)) for one in fleet]
    asked = Settings(load_factor=factor, free_load=free_load)
    choice = pick("prefix_aware", fleet, Request(tokens), number=0, now_us=NOW_US, settings=asked)
    if choice.reason is Reason.WARM:
        loads = [outstanding(one) for one in fleet]
        assert loads[choice.index] + 1 <= max(free_load, factor * (sum(loads) + 1) / len(loads)) + 1e-9


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 8),
    pages=st.booleans(),
    prefixes=st.integers(1, 70),
    seed=st.integers(0, 9),
)
@example(count=5, pages=False, prefixes=13, seed=0)
def test_a_burst_between_two_pages_spreads_evenly(
    policy: str, count: int, pages: bool, prefixes: int, seed: int
) -> None:
    burst = 64
    names = [f"replica-{number}" for number in range(count)]
    router = Router(policy, names, Settings(seed=seed))
    if pages:
        for name in names:
            router.scrape(Replica(name, 3.0, 8.0, 0.6, 1_000, 16, scraped_us=0))
    for number in range(burst):
        blocks = tuple(range(1_000 * (number % prefixes), 1_000 * (number % prefixes) + 20))
        assert router.pick(Request(320, blocks), 1_000 + number) is not None
    for name in names:
        assert abs(router.in_flight(name) - burst / count) <= 2


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    return draw(st.lists(st.tuples(st.sampled_from(["pick", "end", "scrape", "lose"]), st.integers(0, 9)), max_size=80))


@settings(deadline=None)
@given(histories(), st.sampled_from(sorted(POLICIES)))
def test_what_is_in_flight_is_what_was_sent_and_has_not_ended(history: list[tuple[str, int]], policy: str) -> None:
    router = Router(policy, "abc")
    sent: dict[int, tuple[str, int]] = {}
    lost_us: dict[str, int] = {}
    lines = []
    for now_us, (event, which) in enumerate(history):
        name = "abc"[which % 3]
        if event == "pick":
            decision = router.pick(Request(64, tuple(range(which, which + 4)), which), now_us)
            if decision:
                sent[decision.number] = decision.name, now_us
                lines.append(line_of(decision, router.settings))
                for one in decision.candidates:
                    mine = [at_us for where, at_us in sent.values() if where == one.replica.name and at_us != now_us]
                    seen_us = -1 if one.replica.scraped_us is None else one.replica.scraped_us
                    assert one.own == len(mine)
                    assert one.unseen == sum(at_us > seen_us for at_us in mine)
        elif event == "end" and sent:
            number = sorted(sent)[which % len(sent)]
            del sent[number]
            router.end(number, now_us)
            router.end(number, now_us)
        elif event == "scrape":
            router.scrape(Replica(name, 1.0, 2.0, 0.5, scraped_us=now_us))
        elif event == "lose":
            router.set_replicas(set("abc") - {name})
            sent = {number: one for number, one in sent.items() if one[0] != name}
            router.set_replicas("abc")
            lost_us[name] = now_us
    assert {name: router.in_flight(name) for name in "abc"} == {
        name: sum(where == name for where, _ in sent.values()) for name in "abc"
    }
    assert replay(lines).differing == ()
