"""An alert under a real overload, on a real Prometheus: quiet, pending, firing, resolved. Shorter times, the same rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.bench.alert_watch import Change, State
from brim.bench.overload_alert import ALERT, Effort, OneModel, overload_alert
from brim.bench.overload_case import INTERACTIVE
from brim.errors import InputError, MissingTool
from brim.measure.known_time import KnownTime
from brim.monitor.programs import Program, find_program
from brim.paths import Project
from brim.plan.burn import duration
from brim.plan.series import BURN
from tests.conftest import Brim

# 20 rows take 150 ms: 133 a second, and at most 60 requests in flight.
CASE = OneModel(KnownTime(tau0_us=50_000, alpha_us=5_000, max_batch=20, record=True), slo_us=1_000_000)
SHORT = Effort(divided_by=40.0, calm_s=2.0, chunk_s=2.0, most_s=120.0)


def test_it_fires_under_overload_and_ends_after_it(checkout: Path, tmp_path: Path) -> None:
    cache = Project(checkout).cache_folder()
    try:
        find_program(Program.PROMETHEUS, cache)
    except MissingTool as missing:
        pytest.skip(missing.message)
    seen: list[Change] = []
    shown = overload_alert(
        CASE, SHORT, cache=cache, folder=tmp_path / "run", log_file=tmp_path / "triton.log", on_change=seen.append
    )
    assert shown.ok, shown.changes
    assert shown.states[-3:] == [State.PENDING, State.FIRING, State.RESOLVED]
    assert list(shown.changes) == seen
    assert all(f"model={CASE.models().popitem()[0]}" in change.who for change in seen if change.alert == ALERT)
    assert shown.offered["calm"]["answered"] > 0
    assert shown.offered["overload"]["refused"] > 0 < shown.offered["overload"]["answered"]
    window = duration(SHORT.timing.paces[0].short_s)
    assert shown.figures[f"{BURN} class={INTERACTIVE} window={window}"] > 1
    assert shown.as_json()["changes"][-1]["state"] in list(State)


def test_what_shows_nothing_is_refused(brim: Brim) -> None:
    with pytest.raises(InputError, match=r"factor 1: .*; calm_factor 1: .*; most_s 0: "):
        Effort(factor=1, calm_factor=1, most_s=0)
    done = brim("demo", "overload", "--factor", "1")
    assert (done.code, done.out) == (2, "") and "factor 1: expected 1.5 to 20" in done.err
    assert brim("demo", "overload", "--divide-times-by", "0").code == 2
