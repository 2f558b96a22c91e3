"""When a server is healed, how, and when supervision gives up: no server, no clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import ServerFailed
from brim.server.healer import Event, Healer, Incident
from brim.server.healing import (
    LONGEST_PAUSE_S,
    Action,
    Bounds,
    Budget,
    CanaryRecord,
    Cause,
    Heard,
    action_for_canary,
    action_for_dead_stub,
)
from brim.server.model_control import Activity, activity_in
from brim.server.stubs import model_of

BOUNDS = Bounds(heals=3, within_s=100, release_s=1.5, reload_s=5)


def test_budget_pauses_longer_each_time_and_ends() -> None:
    budget = Budget(Bounds(heals=6, within_s=100))
    assert [budget.spend(0) for _ in range(7)] == [0, 0.5, 1, 2, 4, 4, None]


def test_budget_comes_back_with_time() -> None:
    budget = Budget(Bounds(heals=2, within_s=100))
    assert [budget.spend(at) for at in (0, 50, 60, 99.9)] == [0, 0.5, None, None]
    assert budget.spend(100) == 0.5
    assert budget.spend(101) is None
    assert budget.spend(1000) == 0


@given(st.lists(st.floats(0, 50), max_size=60), st.integers(1, 5), st.floats(0.5, 100))
def test_no_window_ever_sees_more_attempts_than_the_bound(steps: list[float], heals: int, within_s: float) -> None:
    budget, now, granted = Budget(Bounds(heals=heals, within_s=within_s)), 0.0, []
    for step in steps:
        now += step
        pause = budget.spend(now)
        if pause is not None:
            assert 0 <= pause <= LONGEST_PAUSE_S
            granted.append(now)
    for at in granted:
        assert sum(1 for other in granted if 0 <= at - other < within_s) <= heals


@pytest.mark.parametrize(
    ("waiting", "dead", "leaked", "action"),
    [
        (0, 1, 0, Action.RELOAD),
        (0, 1, 2, Action.RELOAD),
        (0, 1, 3, Action.RESTART),
        (1, 1, 0, Action.RESTART),
        (None, 1, 0, Action.RESTART),
        (0, 2, 0, Action.RESTART),
    ],
)
def test_a_model_alone_is_reloaded_only_where_triton_releases_everybody_in_time(
    waiting: int | None, dead: int, leaked: int, action: Action
) -> None:
    assert action_for_dead_stub(waiting=waiting, dead=dead, leaked=leaked, bounds=BOUNDS) is action


def test_what_hangs_is_not_unloaded() -> None:
    assert action_for_canary(Heard.FAILURE) is Action.RELOAD
    assert action_for_canary(Heard.SILENCE) is Action.RESTART


def test_only_failures_in_a_row_while_nobody_is_answered_are_death() -> None:
    record = CanaryRecord(Bounds(canary_failures=3))
    alone = [record.heard(heard, others_answered=False) for heard in [Heard.FAILURE, Heard.SILENCE, Heard.FAILURE]]
    assert alone == [False, False, True]
    for alive in ((Heard.ANSWER, False), (Heard.REFUSAL, False), (Heard.SILENCE, True), (Heard.FAILURE, True)):
        record.forget()
        record.heard(Heard.SILENCE, others_answered=False)
        record.heard(Heard.SILENCE, others_answered=False)
        assert not record.heard(alive[0], others_answered=alive[1])
        assert not record.heard(Heard.SILENCE, others_answered=False)
        assert record.failed == 1


@given(st.lists(st.sampled_from([Heard.SILENCE, Heard.FAILURE]), min_size=1, max_size=30))
def test_overload_never_counts_as_death(outcomes: list[Heard]) -> None:
    record = CanaryRecord(Bounds(canary_failures=1))
    assert not any(record.heard(heard, others_answered=True) for heard in outcomes)


def test_stub_is_known_by_the_command_line_of_its_own_server() -> None:
    line = [
        "/b/python/stub",
        "/repository/named/3/model.py",
        "brim_7_ab_c0ffee",
        "1048576",
        "1048576",
        "7",
        "named_0_0",
    ]
    assert model_of(line, "brim_7_ab_") == "named"
    assert model_of(line, "brim_8_ab_") is None
    assert model_of(["brim_7_ab_"], "brim_7_ab_") is None
    assert model_of([], "brim_7_ab_") is None


PAGE = """# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="one",version="1"} 7
nv_inference_request_success{model="one",version="2"} 1e+06
nv_inference_request_success{model="one_more",version="1"} 99
nv_inference_request_failure{model="one",reason="BACKEND",version="1"} 4
nv_inference_request_failure{model="one",reason="REJECTED",version="1"} 50
nv_inference_pending_request_count{model="one",version="1"} 3
"""


def test_activity_sums_versions_and_counts_only_the_backends_failures() -> None:
    assert activity_in(PAGE, "one") == Activity(waiting=3, succeeded=1_000_007, failed=4)
    assert activity_in(PAGE, "one_more") == Activity(0, 99, 0)
    assert activity_in(PAGE, "none") == Activity(0, 0, 0)


class World:
    """A server and its model control that log what is done to them, and a clock that moves only when somebody waits."""

    def __init__(self, **answers: object) -> None:
        self.now = 0.0
        self.done: list[str] = []
        self.events: list[Event] = []
        self.log_file = Path("the.log")
        self.start_took_us = 0
        self.stop_at: float | None = None
        self.waiting = 0
        self.killed = 1
        self.fails_at: float | None = None
        self.unloaded_at: float | None = None
        self.unload_trouble: str | None = None
        self.load_trouble: str | None = None
        self.metrics = True
        self.canaries: list[Heard] = []
        self.restarts: list[str] = []
        for name, value in answers.items():
            assert hasattr(self, name)
            setattr(self, name, value)
        self.healer = Healer(
            self, lambda: self, BOUNDS, on_event=self.events.append, wait=self.wait, clock=lambda: self.now
        )

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.stop_at is not None and self.now >= self.stop_at

    def drop(self) -> None:
        self.done.append("drop")

    def restart(self, *, cancelled: object) -> None:
        self.done.append("restart")
        if self.restarts and (trouble := self.restarts.pop(0)):
            raise ServerFailed(trouble, hint="-")

    def killed_stubs(self) -> int:
        return self.killed

    def unload(self, model: str) -> str | None:
        self.done.append(f"unload {model}")
        return self.unload_trouble

    def load(self, model: str, *, timeout_s: float) -> str | None:
        self.done.append(f"load {model}")
        return self.load_trouble

    def state(self, model: str) -> tuple[str, str] | None:
        over = self.unloaded_at is not None and self.now >= self.unloaded_at
        return ("UNAVAILABLE", "unloaded") if over else ("UNLOADING", "")

    def activity(self, model: str) -> Activity | None:
        failed = self.fails_at is not None and self.now >= self.fails_at
        return Activity(self.waiting, 0, int(failed)) if self.metrics else None

    def canary(self, model: str, *, timeout_s: float) -> tuple[Heard, str]:
        self.done.append("canary")
        return (self.canaries.pop(0) if self.canaries else Heard.ANSWER), "why"

    def heal(self, cause: Cause = Cause.DEAD_STUB, *, dead: int = 1, heard: Heard = Heard.ANSWER) -> list[str]:
        self.healer.heal(Incident(cause, "m", "it was seen", self.now, dead=dead, heard=heard))
        return self.done


@pytest.mark.parametrize("released", ["unloaded_at", "fails_at"])
def test_model_whose_callers_triton_releases_is_loaded_anew(released: str) -> None:
    world = World(**{released: 1.0})
    assert world.heal() == ["unload m", "load m", "canary"]
    (event,) = world.events
    assert (event.model, event.cause, event.action, event.ok) == ("m", Cause.DEAD_STUB, Action.RELOAD, True)
    assert 1_000_000 <= event.took_us <= 1_100_000
    assert str(event) == f"supervision: m: dead stub: model loaded anew after {event.took_us / 1e6:.2f} s: it was seen"


@pytest.mark.parametrize(
    "answers",
    [{"waiting": 1}, {"metrics": False}, {"unload_trouble": "no answer"}, {"killed": 4}],
    ids=["callers wait", "nobody can tell", "it cannot be unloaded", "too many have leaked"],
)
def test_callers_whom_triton_would_keep_are_released_by_a_restart_at_once(answers: dict[str, object]) -> None:
    world = World(**answers)
    done = world.heal()
    assert done[-2:] == ["drop", "restart"] and not any(step.startswith("load") for step in done)
    assert world.now == 0.0
    assert [event.action for event in world.events] == [Action.RESTART]


def test_batch_that_is_not_released_in_time_is_released_by_a_restart() -> None:
    world = World(fails_at=BOUNDS.release_s + 0.1)
    assert world.heal() == ["unload m", "drop", "restart"]
    assert BOUNDS.release_s <= world.now <= BOUNDS.release_s + 0.1


def test_several_dead_stubs_are_a_restart() -> None:
    assert World(killed=2, unloaded_at=0.0).heal(dead=2) == ["unload m", "drop", "restart"]


def test_crashed_server_is_cleared_and_restarted() -> None:
    assert World().heal(Cause.CRASHED_SERVER) == ["drop", "restart"]


def test_failing_model_is_loaded_anew_and_a_silent_one_takes_the_server_along() -> None:
    assert World().heal(Cause.UNANSWERED_CANARY, heard=Heard.FAILURE) == ["unload m", "load m", "canary"]
    assert World().heal(Cause.UNANSWERED_CANARY, heard=Heard.SILENCE) == ["drop", "restart"]


@pytest.mark.parametrize(
    "answers", [{"load_trouble": "no such file"}, {"canaries": [Heard.FAILURE]}, {"canaries": [Heard.SILENCE]}]
)
def test_reload_that_brings_nothing_is_followed_by_a_restart(answers: dict[str, object]) -> None:
    world = World(unloaded_at=0.0, **answers)
    assert world.heal()[-2:] == ["drop", "restart"]
    assert [(event.action, event.ok) for event in world.events] == [(Action.RELOAD, False), (Action.RESTART, True)]
    assert "failed after" in str(world.events[0])


def test_canary_that_is_refused_after_a_reload_asks_again_until_the_reloads_bound() -> None:
    world = World(unloaded_at=0.0, canaries=[Heard.REFUSAL] * 3)
    assert world.heal() == ["unload m", "load m", *["canary"] * 4]
    world = World(unloaded_at=0.0, canaries=[Heard.REFUSAL] * 1000)
    assert world.heal()[-2:] == ["drop", "restart"]
    assert BOUNDS.reload_s <= world.now <= BOUNDS.reload_s + 1


def test_slow_model_gets_the_time_its_start_took() -> None:
    world = World(unloaded_at=0.0, canaries=[Heard.REFUSAL] * 5000, start_took_us=60_000_000)
    world.heal()
    assert 120 <= world.now <= 121


def test_it_gives_up_with_the_server_down_and_says_so() -> None:
    world = World(restarts=["first", "second", "third\nand the end of the log"])
    with pytest.raises(
        ServerFailed, match=r"m: crashed server \(it was seen\), and 3 attempts within 100 s"
    ) as gave_up:
        world.heal(Cause.CRASHED_SERVER)
    assert "third" in gave_up.value.message and "the.log" in gave_up.value.hint
    assert world.done.count("restart") == 3 and world.done[-1] == "drop"
    assert [event.ok for event in world.events] == [False] * 3
    assert "\n" in world.events[-1].message and str(world.events[-1]).endswith("it was seen; third")
    assert world.now == 0.5 + 1.0


@pytest.mark.parametrize("stop_at", [0.0, 0.3], ids=["at once", "while callers are being released"])
def test_told_to_stop_it_brings_nothing_back(stop_at: float) -> None:
    world = World(stop_at=stop_at, unloaded_at=5.0)
    done = world.heal()
    assert not {"restart", "load m"} & set(done)
    assert world.events == []
