"""When a server is healed, how, and when supervision gives up: no server, no clock."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import ServerFailed
from brim.retries import LONGEST_PAUSE_S, Budget
from brim.server.deaths import LOAD_FAILS_WITHIN_S, SCAN_EVERY_S, SURE_AFTER_S, StubWatch
from brim.server.healer import Event, Healer, Incident
from brim.server.healing import (
    Action,
    Bounds,
    CanaryRecord,
    Cause,
    Heard,
    action_for_canary,
    action_for_dead_stub,
)
from brim.server.model_control import Activity, activity_in
from brim.server.stubs import Duty, Stub, duty_of

BOUNDS = Bounds(heals=3, within_s=100, release_s=1.5, reload_s=5)


def test_budget_pauses_longer_each_time_and_ends() -> None:
    budget = Budget(6, 100)
    assert [budget.spend(0) for _ in range(7)] == [0, 0.5, 1, 2, 4, 4, None]


def test_budget_comes_back_with_time() -> None:
    budget = Budget(2, 100)
    assert [budget.spend(at) for at in (0, 50, 60, 99.9)] == [0, 0.5, None, None]
    assert budget.spend(100) == 0.5
    assert budget.spend(101) is None
    assert budget.spend(1000) == 0


@given(st.lists(st.floats(0, 50), max_size=60), st.integers(1, 5), st.floats(0.5, 100))
def test_no_window_ever_sees_more_attempts_than_the_bound(steps: list[float], heals: int, within_s: float) -> None:
    budget, now, granted = Budget(heals, within_s), 0.0, []
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
        "/b/python",
        "336",
        "named_0_1",
        "DEFAULT",
    ]
    assert duty_of(line, "brim_7_ab_") == Duty("named", "3", "named_0_1")
    assert duty_of(line[:6], "brim_7_ab_") == Duty("named", "3", "")
    assert duty_of(line, "brim_8_ab_") is None
    assert duty_of(["brim_7_ab_"], "brim_7_ab_") is None
    assert duty_of([], "brim_7_ab_") is None


class Process:
    """What a watch asks of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.state: str | None = psutil.STATUS_SLEEPING
        """None once it has been collected."""

    def is_running(self) -> bool:
        return self.state is not None

    def status(self) -> str:
        if self.state is None:
            raise psutil.NoSuchProcess(self.pid)
        return self.state


class Stubs:
    """A server's stubs, a watch over them, and a clock that moves when told to. Stubs are named by their process ids."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stubs: dict[int, Stub] = {}
        self.states = {"m": "READY", "n": "READY"}
        self.scans = 0
        self.watch = StubWatch(
            self.unseen,
            lambda model: (self.states[model], ""),
            lambda: "LOADING" in self.states.values(),
            clock=lambda: self.now,
        )

    def unseen(self, seen: Collection[int]) -> list[Stub]:
        self.scans += 1
        found = []
        for pid, stub in self.stubs.items():
            state = stub.process.status() if stub.process.is_running() else None
            if pid not in seen and state is not None:
                duty = None if state == psutil.STATUS_ZOMBIE else stub.duty
                found.append(Stub(duty, stub.started_s, stub.process))
        return found

    def start(self, *instances: str, model: str = "m") -> list[int]:
        pids = []
        for instance in instances:
            self.now += 0.01
            pids.append(1000 + len(self.stubs))
            self.stubs[pids[-1]] = Stub(Duty(model, "1", instance), self.now, Process(pids[-1]))  # type: ignore[arg-type]
        return pids

    def end(self, *pids: int) -> None:
        for pid in pids:
            self.stubs[pid].process.state = psutil.STATUS_ZOMBIE  # type: ignore[attr-defined]

    def collect(self, *pids: int) -> None:
        for pid in pids:
            self.stubs[pid].process.state = None  # type: ignore[attr-defined]

    def look(self) -> list[int]:
        return [death.stub.process.pid for death in self.watch.look()]

    def look_for(self, seconds: float) -> list[int]:
        """Everything that a second's tenths bring; what was told once must not be told again."""
        told = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            told += self.look()
        return told


def watched(*instances: str) -> tuple[Stubs, list[int]]:
    stubs = Stubs()
    pids = stubs.start(*instances)
    stubs.watch.begin()
    return stubs, pids


def test_stub_that_stays_a_zombie_has_died_and_is_told_once() -> None:
    stubs, (first, second) = watched("m_0", "m_1")
    stubs.end(first)
    gone_at = stubs.now
    assert stubs.look() == [] and stubs.watch.undecided
    stubs.now = gone_at + SURE_AFTER_S - 0.001
    assert stubs.look() == [] and stubs.watch.undecided
    stubs.now = gone_at + SURE_AFTER_S
    (death,) = stubs.watch.look()
    assert death.stub.process.pid == first and death.stub.model == "m" and death.seen_s == gone_at
    assert not stubs.watch.undecided
    assert stubs.look_for(3 * SCAN_EVERY_S) == []
    stubs.end(second)
    assert stubs.look_for(1) == [second]


def test_stub_that_is_collected_in_time_was_told_to_go() -> None:
    stubs, (pid, _) = watched("m_0", "m_1")
    stubs.end(pid)
    assert stubs.look() == [] and stubs.watch.undecided
    stubs.collect(pid)
    stubs.now += 0.01
    assert stubs.look() == [] and not stubs.watch.undecided
    assert stubs.look_for(2) == []


@pytest.mark.parametrize("seen_before", [False, True], ids=["not known yet", "known"])
def test_stub_that_a_later_one_has_replaced_was_told_to_go_however_long_it_stays_a_zombie(seen_before: bool) -> None:
    stubs, old = watched("m_0", "m_1")
    new = stubs.start("m_1", "m_0")
    if seen_before:
        assert stubs.look_for(2 * SCAN_EVERY_S) == []
    stubs.end(*old)
    assert stubs.look() == [] and not stubs.watch.undecided
    assert stubs.look_for(5) == []
    stubs.end(new[0])
    assert stubs.look_for(1) == [new[0]]


def test_only_a_later_stub_of_the_same_instance_replaces_one() -> None:
    stubs, (old,) = watched("m_0")
    stubs.start("n_0", model="n")
    new = stubs.start("m_0", "m_1")
    assert stubs.look_for(2 * SCAN_EVERY_S) == []
    # The former one lingers on, and the new one's neighbour was started after it.
    stubs.end(new[0])
    assert stubs.look_for(1) == new[:1]
    assert not stubs.stubs[old].has_gone()


@pytest.mark.parametrize("state", ["UNLOADING", "UNAVAILABLE"])
def test_nobody_misses_the_stub_of_a_model_that_is_unloaded(state: str) -> None:
    stubs, (pid, _) = watched("m_0", "m_1")
    stubs.states["m"] = state
    stubs.end(pid)
    assert stubs.look_for(3) == []


@pytest.mark.parametrize("known", [True, False])
def test_stub_that_dies_in_a_load_fails_the_load_or_has_died_when_that_hangs(known: bool) -> None:
    def dies_in_a_load() -> tuple[Stubs, int]:
        stubs, _ = watched("m_0")
        stubs.states["n"] = "LOADING"
        (pid,) = stubs.start("n_0", model="n")
        if known:
            assert stubs.look_for(2 * SCAN_EVERY_S) == []
        stubs.end(pid)
        return stubs, pid

    stubs, pid = dies_in_a_load()
    assert stubs.look_for(2) == [] and not stubs.watch.undecided
    stubs.collect(pid)
    assert stubs.look_for(0.1) == []
    stubs.states["n"] = "UNAVAILABLE"
    assert stubs.look_for(2 * LOAD_FAILS_WITHIN_S) == []

    stubs, pid = dies_in_a_load()
    assert stubs.look_for(LOAD_FAILS_WITHIN_S - 0.1) == []
    assert stubs.look_for(2 * SCAN_EVERY_S) == [pid]
    assert stubs.look_for(5) == []


def test_collected_stub_is_missed_where_a_ready_model_has_no_other() -> None:
    stubs, pids = watched("m_0")
    stubs.collect(*pids)
    assert stubs.look() == pids
    stubs, pids = watched("m_0")
    stubs.states["m"] = "UNAVAILABLE"
    stubs.collect(*pids)
    assert stubs.look_for(1) == []


def test_stubs_that_go_together_are_told_together() -> None:
    stubs, (first, second, third) = watched("m_0", "m_1", "m_2")
    stubs.end(first)
    stubs.look()
    stubs.now += SURE_AFTER_S / 2
    stubs.end(second)
    stubs.look()
    stubs.now += SURE_AFTER_S / 2
    assert stubs.look() == [first, second]
    stubs.end(third)
    assert stubs.look_for(3) == [third]


def test_stub_that_died_before_it_was_known_is_told_once_without_its_model() -> None:
    stubs, _ = watched("m_0")
    (pid,) = stubs.start("n_0", model="n")
    stubs.end(pid)
    began = stubs.now
    while not (deaths := stubs.watch.look()):
        stubs.now += 0.1
        assert stubs.now <= began + SCAN_EVERY_S + SURE_AFTER_S + 0.2
    (death,) = deaths
    assert death.stub.process.pid == pid and death.stub.model == ""
    assert stubs.look_for(5) == []


def test_unknown_stub_that_is_collected_in_time_is_no_death() -> None:
    stubs, _ = watched("m_0")
    (pid,) = stubs.start("n_0", model="n")
    stubs.end(pid)
    assert stubs.look_for(0.3) == [] and stubs.watch.undecided
    stubs.collect(pid)
    assert stubs.look_for(2) == []


def test_zombies_from_before_the_watch_and_leaked_ones_are_not_told_again() -> None:
    stubs, (leaked, living) = watched("m_0", "m_1")
    stubs.end(leaked)
    assert stubs.look_for(1) == [leaked]
    anew = StubWatch(stubs.unseen, lambda _: ("READY", ""), lambda: False, clock=lambda: stubs.now)
    anew.begin()
    for watch in (stubs.watch, anew):
        stubs.watch = watch
        assert stubs.look_for(5) == []
    stubs.end(living)
    assert stubs.look_for(1) == [living]


def test_process_that_bears_the_number_of_an_earlier_stub_is_another() -> None:
    stubs, (pid,) = watched("m_0")
    stubs.states["m"] = "UNAVAILABLE"
    stubs.collect(pid)
    stubs.look()
    stubs.states["m"] = "READY"
    stubs.stubs[pid] = Stub(Duty("m", "1", "m_0"), stubs.now, Process(pid))  # type: ignore[arg-type]
    assert stubs.look_for(2 * SCAN_EVERY_S + 0.1) == []
    stubs.end(pid)
    assert stubs.look_for(1) == [pid]


def test_new_stubs_are_looked_for_now_and_then_only() -> None:
    stubs, _ = watched("m_0")
    before = stubs.scans
    stubs.look_for(10)
    assert 10 / SCAN_EVERY_S / 2 <= stubs.scans - before <= 10 / SCAN_EVERY_S


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


def test_dead_stub_of_a_model_that_cannot_be_told_is_a_restart_and_nothing_is_asked() -> None:
    world = World(unloaded_at=0.0)
    world.healer.heal(Incident(Cause.DEAD_STUB, "", "it was seen", world.now, dead=1))
    assert world.done == ["drop", "restart"]
    assert str(world.events[0]).startswith("supervision: dead stub: server restarted after ")


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
