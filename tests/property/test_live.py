"""Whatever servers say one after the other: nothing is negative, nothing is lost without a restart, and parts make the whole."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from brim.live.figures import Figures
from brim.live.history import History, View
from brim.live.seen import Objectives, Seen, SeenServer
from brim.live.work import between, known, one_after_the_other
from tests.unit.live_example import duration_lines, ended_line, look, server, text_page, totals

SIZES = st.dictionaries(st.integers(1, 128), st.integers(0, 50), max_size=4)
FAR_US = 10**15


@st.composite
def pages(draw: st.DrawFn) -> list[str]:
    """A page of a model of one of both kinds, or none that says anything."""
    if draw(st.booleans()):
        return [f'nv_inference_pending_request_count{{model="net",version="1"}} {draw(st.integers(0, 9))}']
    first, more = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    ends = {"stop": draw(st.integers(0, 50)), "refused": draw(st.integers(0, 5))}
    return text_page(
        tokens=draw(st.integers(0, 999)), ends=ends, ttft={1: first, 2: first + more}, kv=draw(st.floats(0, 1))
    )


@st.composite
def servers(draw: st.DrawFn, at_s: float) -> SeenServer | str:
    """Anything that a server may say, restarts at any time among it."""
    if draw(st.integers(0, 5)) == 0:
        return "no statistics: connection refused"
    entries = [
        totals(sizes=draw(SIZES), queue_us=draw(st.integers(0, 10**6)), version=version)
        for version in draw(st.sets(st.sampled_from("12")))
    ]
    return server(at_s, *entries, page=draw(st.none() | pages()), instances=draw(st.integers(1, 3)))


@st.composite
def gateways(draw: st.DrawFn) -> list[str] | str | None:
    """The same of a gateway."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([None, "no page: timed out"]))
    within = draw(st.integers(0, 50))
    return [
        ended_line(draw(st.integers(0, 50))),
        ended_line(draw(st.integers(0, 9)), code="429", reason="queue_full"),
        *duration_lines({10: within, 100: within + draw(st.integers(0, 50))}),
        *duration_lines({1: draw(st.integers(0, 9))}, code="429"),
    ]


@st.composite
def looks(draw: st.DrawFn) -> list[Seen]:
    """A few looks at up to two servers, which come and go."""
    found, at_s = [], 0.0
    for _ in range(draw(st.integers(1, 6))):
        at_s += draw(st.floats(0.1, 12))
        names = draw(st.sets(st.sampled_from(["r1", "r2"])))
        found.append(look(at_s, draw(gateways()), **{name: draw(servers(at_s)) for name in names}))
    return found


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers(one)]
    if isinstance(value, list | tuple):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def ratios(figures: Figures) -> list[float]:
    found = [figures.fill, None if figures.text is None else figures.text.kv_usage]
    goodput = figures.goodput
    if goodput is not None:
        assert goodput.low <= goodput.high + 1e-9
        found += [goodput.low, goodput.high]
    return [one for one in found if one is not None]


@given(looks())
@settings(max_examples=150, deadline=None)
def test_nothing_is_negative_and_shares_are_shares(seen: list[Seen]) -> None:
    history = History({"net": Objectives(99, 50_000, ttft_us=1_500_000)})
    for one in seen:
        view = history.add(one)
        assert all(number >= 0 for number in numbers(view.as_json()))
        for model in view.models.values():
            # 100 rows fill a batch; what a server of others takes may be more.
            assert all(0 <= ratio <= 1.29 for ratio in ratios(model))
            assert model.goodput is None or model.goodput.high <= 1 + 1e-9
            assert (
                (model.executions == 0) or model.text is not None or sum(model.batch_sizes.values()) == model.executions
            )


@given(looks())
@settings(max_examples=100, deadline=None)
def test_replicas_make_the_whole(seen: list[Seen]) -> None:
    history = History()
    for one in seen:
        view = history.add(one)
        for name, model in view.models.items():
            parts = view.by_server[name]
            assert model.inferences == sum(part.inferences for part in parts)
            assert model.executions == sum(part.executions for part in parts)
            assert model.requests == sum(part.requests for part in parts)
            assert set(model.versions) == {version for part in parts for version in part.versions}


@given(st.lists(SIZES, min_size=2, max_size=6), st.integers(1, 3))
def test_without_a_restart_the_steps_make_the_stretch(grown: list[dict[int, int]], instances: int) -> None:
    """A cut in the middle changes nothing."""
    sizes: dict[int, int] = {}
    states = []
    for second, more in enumerate(grown):
        sizes = {size: sizes.get(size, 0) + more.get(size, 0) for size in sizes.keys() | more.keys()}
        states.append(known(server(second, totals(sizes=sizes), instances=instances))["net"])
    steps = [between(one, other) for one, other in pairwise(states)]
    whole = between(states[0], states[-1])
    assert one_after_the_other(steps) == whole and not whole.restarted


@given(looks())
@settings(max_examples=60, deadline=None)
def test_what_is_remembered_is_bounded(seen: list[Seen]) -> None:
    """A window of looks and no more, however many there were; and a look from the same moment on gives the same view."""
    history = History(window_us=5_000_000)
    for one in seen:
        history.add(one)
    times = [step.taken_us for step in history._steps]
    assert all(time > times[-1] - 5_000_000 for time in times[:-1])
    assert len(history._known) <= 2 and all(len(rates) <= 120 for rates in history._rates.values())


@given(looks())
@settings(max_examples=30, deadline=None)
def test_the_same_looks_give_the_same_views(seen: list[Seen]) -> None:
    def views() -> list[View]:
        history = History()
        return [history.add(one) for one in seen]

    assert views() == views()
