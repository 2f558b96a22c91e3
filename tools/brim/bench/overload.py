"""The gateway under overload: the real server, the real gateway, and a model whose capacity is known.

Everything is measured in one run: the capacity first, then open loops at multiples of it, bursts, callers that leave, and at
last what the gateway costs. The driver sends over HTTP, each request when it is due, whether or not others have been answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from brim.bench.conditions import Watch
from brim.bench.overload_burst import measure_bursts
from brim.bench.overload_case import BATCH, DEFAULT_EFFORT, INTERACTIVE, Case, Effort
from brim.bench.overload_check import Found, OverloadCheck
from brim.bench.overload_cost import Cost, measure_costs
from brim.bench.overload_leave import Leave, measure_leaving
from brim.bench.overload_load import Group, Load, closed_loop_per_s, measure_load
from brim.bench.overload_place import Place
from brim.errors import CouldNotTell, InputError
from brim.measure.launcher import Launcher
from brim.measure.plan import Protocol
from brim.units import US_PER_S

ANSWER_FILE = "bench.json"
LEAST_BATCHES = 10
"""Of a closed loop."""
LOAD_EXTRA_S = 3.0
"""Of an open loop beside its schedule: processes that start, and what is in flight at the end."""
BURST_S = 3.0
COST_EXTRA_S = 1.5
"""Of a run of the load generator beside its windows."""
LEAVING_FACTOR = 2.0
CLASS_HEADER, TIMEOUT_HEADER = "x-brim-class", "x-brim-timeout-ms"
Progress = Callable[[str], None]


def overload(
    case: Case,
    effort: Effort = DEFAULT_EFFORT,
    *,
    launcher: Launcher | None,
    cache: Path,
    folder: Path,
    log_file: Path,
    seed: int = 0,
    command: str = "",
    on_progress: Progress = lambda _: None,
) -> OverloadCheck:
    """Measure all parts. ``bench.json`` is in ``folder`` at the end.

    Args:
        case: what is served.
        effort: how long to look.
        launcher: the load generator for the last part; None leaves that part out.
        cache: of the embedded server.
        folder: run folder.
        log_file: of the server.
        seed: for arrivals.
        command: that asked for it, for the file.
        on_progress: told what is happening, a short sentence each.

    Raises:
        InputError: the effort does not fit the case.
        ServerFailed: the server or the gateway did not start, or ended.
        CouldNotTell: the capacity could not be measured, or a generator ended.
    """
    _require_fit(case, effort)
    folder.mkdir(parents=True, exist_ok=True)
    watch = Watch()
    with Place(case, cache=cache, log_file=log_file) as place:
        run = _Run(place, effort, launcher, folder, seed, on_progress)
        found = run.all()
        watch.note()
    check = OverloadCheck(
        found,
        watch.stop(),
        {
            "command": command,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": seed,
            "effort": asdict(effort),
        },
    )
    (folder / ANSWER_FILE).write_text(json.dumps(check.as_json()) + "\n", encoding="utf-8")
    return check


def _require_fit(case: Case, effort: Effort) -> None:
    if effort.leavers >= case.bound or max(effort.callers) > case.bound:
        raise InputError(
            f"{effort.leavers} leavers and closed loops of {effort.callers} callers do not fit a bound of {case.bound}",
            hint="use fewer leavers than the bound, and no more callers than that",
        )


class _Run:
    """All parts, one after the other, with the time that is left."""

    def __init__(
        self, place: Place, effort: Effort, launcher: Launcher | None, folder: Path, seed: int, say: Progress
    ) -> None:
        self.place, self.effort, self.launcher, self.folder, self.seed = place, effort, launcher, folder, seed
        self.say = say
        self.capacity_per_s = 0.0
        runs_a_round = len(Protocol) * 4
        self.left_s = {
            "capacity": len(effort.callers) * effort.seconds,
            "loads": len(effort.factors) * self.load_s(),
            "mixes": len(effort.mix_factors) * self.load_s(effort.mix_lengths),
            "leaving": self.load_s(),
            "bursts": effort.burst_rounds * BURST_S,
            "leaves": len(Protocol) * 6 * place.case.slow_us / US_PER_S,
            "costs": (effort.cost_rounds if launcher else 0)
            * runs_a_round
            * (3 * effort.cost_window_ms / 1_000 + COST_EXTRA_S),
        }

    def load_s(self, lengths: float = 1.0) -> float:
        """An open loop."""
        return lengths * self.effort.seconds + LOAD_EXTRA_S

    def begin(self, words: str) -> None:
        """Say what comes, and how long it and all after it takes."""
        left_s = sum(self.left_s.values())
        self.say(f"{words}; {left_s / 60:.1f} minutes left" if left_s >= 60 else f"{words}; {left_s:.0f} s left")

    def spent(self, part: str, seconds: float) -> None:
        """Something of a part is over."""
        self.left_s[part] = max(0.0, self.left_s[part] - seconds)

    def all(self) -> Found:
        """Every part."""
        closed = self.capacity()
        loads = [self.load("loads", factor, f"{factor:g}x", self.alone(factor)) for factor in self.effort.factors]
        mixes = [
            self.load("mixes", factor, f"{factor:g}x", self.mixed(factor), lengths=self.effort.mix_lengths)
            for factor in self.effort.mix_factors
        ]
        self.begin(f"{self.effort.burst_rounds} bursts of {self.effort.burst}")
        bursts = measure_bursts(self.place, self.effort.burst, self.effort.burst_rounds)
        self.left_s["bursts"] = 0.0
        leaves = [self.leave(protocol) for protocol in (Protocol.GRPC, Protocol.HTTP)]
        leaving = self.load("leaving", LEAVING_FACTOR, f"{LEAVING_FACTOR:g}x", self.impatient(LEAVING_FACTOR))
        costs = self.costs()
        return Found(
            self.place.case,
            closed,
            self.capacity_per_s,
            tuple(loads),
            tuple(mixes),
            (leaving,),
            tuple(bursts),
            tuple(leaves),
            tuple(costs),
        )

    def capacity(self) -> dict[int, float]:
        """Closed loops, and from the best of them what the factors stand for."""
        found = {}
        for callers in self.effort.callers:
            self.begin(f"a closed loop of {callers} callers")
            seconds = max(self.effort.seconds, LEAST_BATCHES * self.place.case.full_batch_us / US_PER_S)
            found[callers] = closed_loop_per_s(self.place, callers, seconds=seconds)
            self.spent("capacity", self.effort.seconds)
        self.capacity_per_s = self.effort.capacity_ratio * max(found.values())
        self.say(
            f"capacity {self.capacity_per_s:.0f}/s: {self.effort.capacity_ratio:g} of the best closed loop's "
            f"{max(found.values()):.0f}/s; at most {self.place.case.bound} in flight"
        )
        return found

    def alone(self, factor: float) -> list[Group]:
        """Callers that name no class."""
        return [Group(INTERACTIVE, factor * self.capacity_per_s)]

    def mixed(self, factor: float) -> list[Group]:
        """Half of either class."""
        half = factor * self.capacity_per_s / 2
        return [Group(name, half, {CLASS_HEADER: name}) for name in (INTERACTIVE, BATCH)]

    def impatient(self, factor: float) -> list[Group]:
        """Half wait, a quarter disconnects after half of the objective, a quarter brings a deadline of as much."""
        rate, half_us = factor * self.capacity_per_s, self.place.case.slo_us // 2
        return [
            Group("patient", rate / 2),
            Group("leaving", rate / 4, give_up_us=half_us),
            Group("deadline", rate / 4, {TIMEOUT_HEADER: f"{half_us // 1_000}"}),
        ]

    def load(self, part: str, factor: float, name: str, groups: Sequence[Group], *, lengths: float = 1.0) -> Load:
        """An open loop; again when the driver was its limit."""
        who = " and ".join(group.name for group in groups) if len(groups) > 1 else "one kind of callers"
        self.begin(f"{name} of capacity, {who}")
        for attempt in range(self.effort.tries):
            found = measure_load(
                self.place, name, factor, groups, seconds=lengths * self.effort.seconds, seed=self.seed + attempt
            )
            if not found.limits:
                break
            self.say(f"the driver was the limit: {'; '.join(found.limits)}")
        self.spent(part, self.load_s(lengths))
        return found

    def leave(self, protocol: Protocol) -> Leave:
        """Callers that disconnect; again when the batch before them had ended too soon."""
        self.begin(f"{self.effort.leavers} callers over {protocol.value} disconnect in the queue")
        for left in reversed(range(self.effort.leave_tries)):
            try:
                found = measure_leaving(self.place, protocol, self.effort.leavers)
            except CouldNotTell:
                if not left:
                    raise
                continue
            if found.queued:
                break
        self.spent("leaves", 6 * self.place.case.slow_us / US_PER_S)
        return found

    def costs(self) -> list[Cost]:
        """With and without the gateway."""
        if self.launcher is None:
            return []
        rounds = self.effort.cost_rounds
        began_s = time.monotonic()

        def on_round(number: int) -> None:
            nonlocal began_s
            took_s, began_s = time.monotonic() - began_s, time.monotonic()
            self.left_s["costs"] = took_s * (rounds - number)
            if number < rounds:
                self.begin(f"with and without the gateway, round {number + 1} of {rounds}")

        self.begin(f"with and without the gateway, round 1 of {rounds}")
        return measure_costs(self.place, self.launcher, self.effort, self.folder / "cost", on_round)
