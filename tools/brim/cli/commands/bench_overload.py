"""``brim bench overload``: what the gateway does when more is asked than the model can answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import join

from rich.table import Table

from brim.bench.overload import ANSWER_FILE, overload
from brim.bench.overload_case import DEFAULT_EFFORT, Case
from brim.bench.overload_check import Judged, OverloadCheck
from brim.bench.overload_load import PERCENTILE, Load
from brim.cli.commands.bench_answer import INTERRUPTED, give_answer
from brim.cli.commands.serve import new_log, stop_on_signal
from brim.cli.output import say, table_text
from brim.errors import MissingTool
from brim.measure.accounting import Outcome
from brim.measure.launcher import Launcher, find_launcher
from brim.paths import Project
from brim.units import us_to_ms


def bench_overload(
    project: Project, folder: Path, *, rounds: int | None, seconds: float | None, seed: int, as_json: bool
) -> int:
    """Measure every part on the real server and show it."""
    effort = DEFAULT_EFFORT
    if rounds is not None:
        effort = replace(effort, burst_rounds=rounds, cost_rounds=rounds)
    if seconds is not None:
        effort = replace(effort, seconds=seconds)
    options = {"--rounds": rounds, "--seconds": seconds, "--seed": seed or None}
    given = [word for name, value in options.items() if value is not None for word in (name, f"{value:g}")]
    found: OverloadCheck | None = None
    with stop_on_signal():
        found = overload(
            Case(),
            effort,
            launcher=_launcher(project),
            cache=project.cache_folder(),
            folder=folder,
            log_file=new_log(project),
            seed=seed,
            command=join(["brim", "bench", "overload", *given]),
            on_progress=say,
        )
    if found is None:
        say("interrupted: no answer")
        return INTERRUPTED
    return give_answer(found.exit_code, found.as_json(), lambda: shown(found), folder / ANSWER_FILE, as_json=as_json)


def _launcher(project: Project) -> Launcher | None:
    """The load generator of the last part, which is left out where there is none: it has no target."""
    try:
        return find_launcher(project.cache_folder(), on_progress=say)
    except MissingTool as error:
        say(f"the cost of the gateway is not measured: {error.message}")
        return None


def shown(check: OverloadCheck) -> str:
    """For people: every open loop, and a table a part with target and verdict."""
    found = check.found
    closed = ", ".join(f"{rate:.0f}/s with {callers} callers" for callers, rate in found.closed_per_s.items())
    parts: dict[str, list[Judged]] = {}
    for one in check.judged:
        parts.setdefault(one.part, []).append(one)
    return "\n".join(
        [
            f"overload: {check.conditions}",
            f"capacity {found.capacity_per_s:.0f}/s of {closed}; at most {found.case.bound} in flight; "
            f"SLO {us_to_ms(found.case.slo_us):g} ms",
            table_text(_loads([*found.loads, *found.mixes, *found.leaving])),
            *(table_text(_part(name, judged)) for name, judged in parts.items()),
        ]
    )


def _loads(loads: list[Load]) -> Table:
    table = Table(
        "offered", "callers", "sent/s", "in time", "refused", "late or gone", "p50 ms", "p99 ms", "no: p50 ms", "no: p99 ms",
        "p99 due", box=None, pad_edge=False,
    )  # fmt: skip
    for load in loads:
        for name, result in load.results.items():
            account = load.accounts[name]
            others = sum(account.counts[end] for end in (Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED))
            sent = account.offered - account.counts[Outcome.NOT_SENT]
            table.add_row(
                load.name,
                name,
                f"{sent * 1e6 / result.plan.duration_us:.0f}",
                str(account.in_slo),
                str(account.counts[Outcome.REFUSED]),
                str(others),
                _ms(account.since_due.percentile_us(50)),
                _ms(account.since_due.percentile_us(PERCENTILE)),
                _ms(account.refused_since_sent.percentile_us(50)),
                _ms(account.refused_since_sent.percentile_us(PERCENTILE)),
                _ms(account.until_refused.percentile_us(PERCENTILE)),
            )
    return table


def _part(name: str, judged: list[Judged]) -> Table:
    table = Table(name, "measured", "target", "verdict", "", box=None, pad_edge=False)
    for one in judged:
        value = "-" if one.value is None else f"{one.value:.4g}"
        table.add_row(one.figure, value, one.target, one.verdict.value if one.verdict else "", one.note)
    return table


def _ms(value_us: int | None) -> str:
    return "-" if value_us is None else f"{us_to_ms(value_us):.1f}"
