"""What tuning of a language model says in the end: the choice, why, and what was predicted beside what was measured."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from brim.tune.text.tuning import Measurement, Tuning
from brim.units import us_to_ms

SHOWN_TOP = 10


def document(tuning: Tuning) -> dict[str, Any]:
    """The part of ``choice.json`` that follows from the tuning alone: microseconds, ratios 0..1.

    ``default`` is the present setting, which a choice has to beat.
    """
    demand, best = tuning.demand, tuning.best
    return {
        "service": tuning.service.name,
        "interrupted": False,
        "slo": {
            **{name: _finite(getattr(demand, name)) for name in ("ttft_us", "tpot_us", "batch_deadline_us")},
            "percentile": demand.percentile,
        },
        "traffic": {
            "rate_per_s": demand.arrivals.rate_per_s,
            "peak_per_s": demand.arrivals.peak_per_s,
            "arrival": tuning.service.traffic.arrival.value,
            "batch_share": demand.batch_share,
            "lengths": demand.mix.as_json(),
        },
        "simulations": tuning.simulations,
        "predicted_top": [
            {"setting": one.setting.as_json(), **asdict(one.predicted)} for one in tuning.top[:SHOWN_TOP]
        ],
        "measurements": [
            {
                **_measurement(one),
                "is_default": one is tuning.present,
                "is_choice": tuning.slo_met and one is best,
                "meets_slo": tuning.meets(one),
                "spread": one.spread,
                "runs": [asdict(run) for run in one.runs],
            }
            for one in tuning.measurements
        ],
        "default": _measurement(tuning.present),
        "choice": best.setting.as_json() if tuning.slo_met else None,
        "closest": best.setting.as_json(),
        "predicted": asdict(best.predicted),
        "measured": asdict(best.measured),
        "slo_met": tuning.slo_met,
        "cut_short": tuning.cut_short,
        "why": why(tuning),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _measurement(one: Measurement) -> dict[str, Any]:
    return {
        "setting": one.setting.as_json(),
        "predicted": asdict(one.predicted),
        "measured": asdict(one.measured),
    }


def why(tuning: Tuning) -> str:
    """One paragraph for people."""
    best, present = tuning.best, tuning.present
    others = len(tuning.measurements) - 1
    if not tuning.slo_met:
        said = (
            f"No setting that was measured meets this SLO for {tuning.demand.percentile:g}% of the first class. The closest is "
            f"{best.setting}: {best.measured.in_slo:.1%}. A lower rate, shorter texts, a faster machine, a replica or another "
            "objective would do."
        )
    elif best is present:
        said = (
            f"The present setting stays ({best.setting}): none of {others} others that were measured gives more than its "
            f"{_figures(best)} beyond noise."
        )
    else:
        said = f"{best.setting}: {_figures(best)}; the present setting ({present.setting}) {_figures(present)}."
    return f"{said} Time ran out before everything was measured." if tuning.cut_short else said


def _figures(one: Measurement) -> str:
    seen = one.measured
    ttft = "unknown" if seen.ttft_p99_us is None else f"{us_to_ms(seen.ttft_p99_us):.4g} ms"
    return f"{seen.goodput_per_s:.4g} useful texts a second, TTFT p99 {ttft}"
