"""``brim bench tuning``: the tuner's choice held against an exhaustive sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import join

from rich.table import Table

from brim.bench.comparison import Judged
from brim.bench.tuning import ANSWER_FILE, check_tuning
from brim.bench.tuning_case import Case, Effort
from brim.bench.tuning_check import TuningCheck
from brim.bench.tuning_climb import Climbed
from brim.cli.commands.bench_answer import give_answer, interrupted
from brim.cli.commands.serve import new_log, stop_on_signal
from brim.cli.output import say, table_text
from brim.measure.plan import Protocol
from brim.paths import Project
from brim.tune.server_bench import ceiling_per_s
from brim.units import us_to_ms


def bench_tuning(project: Project, folder: Path, *, rounds: int | None, seed: int, as_json: bool) -> int:
    """Tune, sweep and compare, or go on with it where ``folder`` holds a part of it, and show it."""
    effort = replace(Effort(), ceiling_per_s=ceiling_per_s(Protocol.HTTP))
    if rounds is not None:
        effort = replace(effort, rounds=rounds)
    options = {"--rounds": rounds, "--seed": seed or None}
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    found: TuningCheck | None = None
    with stop_on_signal():
        found = check_tuning(
            Case(),
            effort,
            cache=project.cache_folder(),
            log_file=new_log(project),
            folder=folder,
            seed=seed,
            command=join(["brim", "bench", "tuning", *given]),
            on_progress=say,
        )
    if found is None:
        return interrupted(folder)
    answer = found.comparison
    return give_answer(answer.exit_code, answer.as_json(), lambda: shown(found), folder / ANSWER_FILE, as_json=as_json)


def shown(found: TuningCheck) -> str:
    """For people: the verdicts, the rounds, every setting, and remarks."""
    tables = [_verdicts(found.ratios), _rounds(found), _sweep(found)]
    return "\n".join([f"tuning: {found.conditions}", *map(table_text, tables), *found.remarks])


def _verdicts(ratios: tuple[Judged, ...]) -> Table:
    table = Table("figure", "target", "median", "interval", "rounds", "verdict", box=None, pad_edge=False)
    for one in ratios:
        spread = one.spread
        interval = f"{spread.low:.3f} to {spread.high:.3f} ({spread.confidence:.0%})" if spread.rounds > 1 else "-"
        table.add_row(
            one.target.ratio,
            str(one.target),
            f"{spread.median:.3f}",
            interval,
            str(spread.rounds),
            one.verdict.value,
        )
    return table


def _rounds(found: TuningCheck) -> Table:
    table = Table("goodput/s in each round", *_HEAD, box=None, pad_edge=False)
    for one in found.rounds[0].climbed:
        values = ", ".join(f"{turn.of(one.setting).level_per_s:.0f}" for turn in found.rounds)
        table.add_row(values, *_cells(one), _mark(found, one))
    return table


def _sweep(found: TuningCheck) -> Table:
    table = Table("goodput/s, one climb", *_HEAD, box=None, pad_edge=False)
    every = list(found.sweep)
    if all(one.setting != found.tuned.choice for one in every):
        every.append(found.choice_in_sweep)
    for one in sorted(every, key=lambda one: -one.goodput_per_s):
        table.add_row(f"{one.goodput_per_s:.0f}", *_cells(one), _mark(found, one))
    return table


_HEAD = ("preferred", "delay ms", "instances", "mean batch", "")


def _cells(one: Climbed) -> tuple[str, ...]:
    setting = one.setting
    preferred = ", ".join(map(str, setting.preferred)) or "none"
    batch = "-" if one.mean_batch is None else f"{one.mean_batch:.1f}"
    return preferred, f"{us_to_ms(setting.delay_us):g}", str(setting.instances), batch


def _mark(found: TuningCheck, one: Climbed) -> str:
    measured = {setting for setting, *_ in found.tuned.measured}
    words = {
        "the tuner's choice": one.setting == found.tuned.choice,
        "measured by the tuner": one.setting in measured and one.setting != found.tuned.choice,
        "generator": one.limited_by_generator,
    }
    return ", ".join(word for word, holds in words.items() if holds)
