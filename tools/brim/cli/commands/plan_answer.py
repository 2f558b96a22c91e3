"""The answer of ``brim plan``: its figures, its folder and picture, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from brim.cli.commands.plan_case import Modelled
from brim.cli.output import say, table_text
from brim.errors import MissingTool
from brim.plan.compare import Case, Policy
from brim.plan.limits import Limits
from brim.plan.outcome import Outcome
from brim.plan.traffic import Traffic
from brim.service.schema import Service
from brim.units import US_PER_S, us_to_ms

PLAN_FILE, PICTURE_FILE = "plan.json", "plan.svg"


def document(
    service: Service,
    case: Case,
    outcomes: list[tuple[Policy, Outcome]],
    limits: Limits,
    words: list[str],
    model: Modelled,
    *,
    one_by_one: bool,
) -> dict[str, Any]:
    """What `brim plan --json` says, and `--out` keeps."""
    traffic, conditions = case.traffic, case.conditions
    return {
        "service": service.name,
        "policies": [
            {
                "routing": policy.routing,
                "scaling": policy.scaling.value,
                "spares": policy.spares,
                **outcome.as_json(),
                "over_time": outcome.over_time(),
            }
            for policy, outcome in outcomes
        ],
        "limits": limits.as_json(),
        "sentences": words,
        "objective": model.objective,
        "traffic": {
            "name": traffic.name,
            "duration_us": round(traffic.duration_s * US_PER_S),
            "requests": round(traffic.requests),
            "peak_per_s": traffic.peak_per_s,
        },
        "conditions": {
            "simulated": "events" if one_by_one else "fluid",
            "epoch_us": round(conditions.epoch_s * US_PER_S),
            "startup_us": round(conditions.startup_s * US_PER_S),
            "scrape_us": round(conditions.scrape_s * US_PER_S),
            "in_flight_bound": model.bound,
            "min_replicas": case.bounds.min_replicas,
            "max_replicas": case.bounds.max_replicas,
            "utilisation_target": case.utilisation_target,
            "seed": case.seed,
        },
    }


def write(
    data: dict[str, Any],
    outcomes: list[tuple[Policy, Outcome]],
    traffic: Traffic,
    out: Path | None,
    plot: Path | None,
    *,
    title: str,
) -> None:
    """The folder and the picture that were asked for.

    Raises:
        MissingTool: matplotlib is not installed.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / PLAN_FILE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        say(f"figures: {out / PLAN_FILE}")
    pictures = [path for path in (plot, out and out / PICTURE_FILE) if path is not None]
    if not pictures:
        return
    try:
        from brim.plan.plot import draw
    except ImportError as error:
        raise MissingTool(
            f"no picture can be drawn: {error}", hint="pip install 'brim[report]' brings what it needs"
        ) from error
    for path in pictures:
        say(f"picture: {draw(outcomes, traffic, path, title=title)}")


def table(outcomes: list[tuple[Policy, Outcome]]) -> str:
    """A row a policy."""
    rows = Table(
        "routing", "scaling", "spares", "in SLO", "met", "worst minute", "p50 ms", "p99 ms", "replica-hours", "most",
        "refused", "lost", "missed cold",
    )  # fmt: skip
    for policy, outcome in outcomes:
        rows.add_row(
            policy.routing,
            policy.scaling.value,
            str(policy.spares),
            f"{outcome.slo_attainment:.2%}",
            "yes" if outcome.slo_met else "no",
            f"{outcome.worst_minute:.1%}",
            *("-" if value is None else f"{us_to_ms(value):.1f}" for value in (outcome.p50_us, outcome.p99_us)),
            f"{outcome.replica_seconds / 3600:.2f}",
            f"{outcome.of['paid'].max():.0f}",
            f"{outcome.total('refused') + outcome.total('refused_gateway'):,.0f}",
            f"{outcome.lost:,.0f}",
            f"{outcome.cold_start_missed:,.0f}",
        )
    return table_text(rows)
