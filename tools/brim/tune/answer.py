"""What tuning says in the end: the choice, why, what callers get at low, moderate and high load, and the way out of a no."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from brim.tune.derive import bounds_for
from brim.tune.predict import Prediction
from brim.tune.search import Candidate
from brim.tune.setting import DEFAULT, setting_of
from brim.tune.tuning import Measurement, Tuning
from brim.units import us_to_ms

LOADS = {"low": 0.1, "moderate": 0.5, "high": 0.9}
"""Name of a load -> its share of capacity."""
EFFORT = 5.0
BUSY = 0.85
"""Instances that are taken for this share of the time have nothing left to give."""
FULL = 0.9
"""Batches of this fill on average are as good as full."""


def document(tuning: Tuning, weighed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The part of ``choice.json`` that follows from the tuning alone: integer microseconds, ratios 0..1.

    Args:
        tuning: what was found.
        weighed: what was compared of threads and cutting before the search (``Weighed.about``).
    """
    demand, best = tuning.demand, tuning.best
    bounds = bounds_for(tuning.service, tuning.served, best.setting)
    chosen = tuning.choice.point is not None
    return {
        "service": tuning.service.name,
        "interrupted": False,
        "max_batch_size": tuning.service.max_batch_size,
        "slo": {"latency_us": demand.slo_us, "percentile": demand.percentile},
        "traffic": {
            "rate_per_s": demand.rate_per_s,
            "peak_per_s": demand.peak_per_s,
            "arrival": tuning.service.traffic.arrival.value,
        },
        "machine": {**tuning.served.as_json(), "refits": tuning.refits},
        "candidates": {
            "generated": tuning.grid.generated,
            "refused": tuning.grid.generated - len(tuning.grid.settings),
            "refused_by": tuning.grid.refused,
            "simulated": tuning.simulated,
            "measured": len(tuning.measurements),
        },
        "weighed": _weighed(tuning, weighed or {}),
        "predicted_top": [{"setting": one.setting.as_json(), **_predicted(one)} for one in tuning.top],
        "default": {
            "setting": DEFAULT.as_json(),
            "predicted": _predicted(tuning.default.predicted, tuning.default),
            "measured": tuning.default.measured.as_json(),
        },
        "current": setting_of(tuning.service).as_json(),
        "measurements": [
            {
                "setting": one.setting.as_json(),
                "is_default": one.setting == DEFAULT,
                "is_current": one.setting == setting_of(tuning.service),
                "is_choice": chosen and one.setting == best.setting,
                "predicted": _predicted(one.predicted, one),
                "measured": one.measured.as_json(),
                "deviation": one.deviation,
                "runs": [run.as_json() for run in one.runs],
            }
            for one in tuning.measurements
        ],
        "choice": {**best.setting.as_json(), **asdict(bounds)} if chosen else None,
        "closest": best.setting.as_json(),
        "predicted": _predicted(best.predicted, best),
        "measured": best.measured.as_json(),
        "behaviour": behaviour(tuning),
        "limits": limits(tuning.best, tuning.service.max_batch_size),
        "slo_met": tuning.slo_met,
        "why": why(tuning),
        "way_out": None if tuning.slo_met else way_out(tuning),
        "notes": notes(tuning),
    }


def _weighed(tuning: Tuning, weighed: Mapping[str, Any]) -> dict[str, Any]:
    """What was weighed beyond the batcher, and whether the choice changes it."""
    said = {name: dict(about) for name, about in weighed.items()}
    best, threads = tuning.best, tuning.served.threads
    chosen = tuning.choice.point is not None
    if threads is not None and "threads" in said:
        used, own = threads.of(best.setting), threads.of(setting_of(tuning.service))
        changed = chosen and best.setting.threads is not None
        said["threads"] |= {"changed": changed, "of_each_instance": used, "cores": threads.cores}
        said["threads"]["why"] += f"; {'changed' if changed else 'kept'}, by what was measured under load"
        said["threads"]["why"] += f": {used} in each of {best.setting.instances}" + (
            "" if used == own else f", {own} before"
        )
    if "padding" in said:
        said["padding"]["changed"] = chosen and best.setting.padding is not None
    return said


def limits(best: Measurement, max_rows: int) -> dict[str, Any]:
    """What ended the climb of a setting: duty and fill at its capacity, and what they say."""
    measured = best.measured
    duty, batch = measured.duty_at_capacity, measured.mean_batch_at_capacity
    fill = None if batch is None else batch / max_rows
    if duty is None or fill is None:
        by, said = "unknown", "no rate was answered in time, so nothing is known of a limit"
    elif measured.limited_by_generator:
        by = "generator"
        said = "the generator was the limit: the server may stand more"
    elif duty < BUSY:
        by = "requests"
        said = "instances were idle part of the time: what surrounds a batch (taking requests in, answering them), or bursts"
    elif fill < FULL:
        by = "slo"
        said = (
            "instances were busy and batches not full: a longer queue would fill them, and the SLO has no room for it"
        )
    else:
        by = "model"
        said = "instances were busy with full batches: only a faster model, a faster device or a replica gives more"
    return {"by": by, "duty": duty, "fill": fill, "why": said}


def _predicted(candidate: Candidate, measurement: Measurement | None = None) -> dict[str, Any]:
    seen = candidate.expected
    return {
        "capacity_per_s": candidate.capacity_per_s,
        "goodput_per_s": None if measurement is None else measurement.predicted_goodput_per_s,
        "p50_us": seen.p50_us,
        "p99_us": seen.p99_us,
        "latency_us": seen.latency_us,
        "mean_batch": seen.mean_batch,
    }


def behaviour(tuning: Tuning) -> dict[str, Any]:
    """What callers get under the choice by the simulator, each load by itself, and a lone caller."""
    setting, predictor = tuning.best.setting, tuning.predictor
    lone = predictor.lone(setting)
    # Beside the same instances and threads without a delay: what a batch takes is not waiting.
    at_once = predictor.lone(replace(setting, preferred=(), delay_us=0))
    found: dict[str, Any] = {"lone": {"latency_us": lone.p50_us, "waits_us": max(0, lone.p50_us - at_once.p50_us)}}
    capacity_per_s = tuning.best.measured.capacity_per_s or tuning.best.predicted.capacity_per_s
    for name, share in LOADS.items() if capacity_per_s else ():
        rate_per_s = share * capacity_per_s
        seen = predictor.at(setting, rate_per_s, effort=EFFORT)
        found[name] = {"share": share, "rate_per_s": rate_per_s, **_seen(seen, tuning.service.max_batch_size)}
    return found


def _seen(seen: Prediction, max_rows: int) -> dict[str, Any]:
    return {
        "p50_us": seen.p50_us,
        "p99_us": seen.p99_us,
        "mean_batch": seen.mean_batch,
        "fill": seen.mean_batch / max_rows,
        "in_slo": seen.in_slo_ratio,
    }


def why(tuning: Tuning) -> str:
    """One paragraph for people."""
    best, default, demand = tuning.best, tuning.default, tuning.demand
    limit = f"{us_to_ms(demand.slo_us):g} ms"
    if tuning.choice.point is None:
        return (
            f"No setting meets this SLO: p{demand.percentile:g} within {limit} at {demand.rate_per_s:g} requests a second. The "
            f"best measured is {best.setting}: p{demand.percentile:g} {_ms(best.measured.latency_us)}."
        )
    said = f"{best.setting}: {_goodput(best)} within {limit}"
    if best.setting == DEFAULT:
        said += f"; none of {len(tuning.measurements) - 1} others measured gave more than the default beyond noise"
    elif default.measured.goodput_per_s:
        gain = best.measured.goodput_per_s / default.measured.goodput_per_s - 1
        said += f", the default setting {_goodput(default)} ({gain:+.1%})"
    else:
        said += ", the default setting none"
    said += f"; p{demand.percentile:g} {_ms(best.measured.latency_us)} at the expected {demand.rate_per_s:g}/s"
    said += "." if best is default else f" (default: {_ms(default.measured.latency_us)})."
    waits_us = behaviour(tuning)["lone"]["waits_us"]
    if waits_us:
        said += f" A lone caller waits {_ms(waits_us)} for company that does not come: that is the price of this delay."
    if best.measured.limited_by_generator:
        said += (
            " The generator, which shares this machine, was the limit: the capacity may be higher, and capacities beyond "
            f"what it can send ({tuning.effort.ceiling_per_s:g}/s at most) count as equal."
        )
    return said


def _goodput(one: Measurement) -> str:
    return f"{one.measured.goodput_per_s:.6g} answers a second"


def _ms(value_us: int | None) -> str:
    return "unknown" if value_us is None else f"{us_to_ms(value_us):.4g} ms"


def way_out(tuning: Tuning) -> str:
    """The cheapest ways out of a no: another objective, or more replicas."""
    demand, best, served = tuning.demand, tuning.best, tuning.served
    if tuning.choice.point is None and best.predicted.capacity_per_s <= 0:
        wanted_us = best.measured.latency_us or best.predicted.expected.latency_us
        return (
            f"A request alone takes {_ms(served.lone_request_us(best.setting))} here, so batching cannot help: an SLO of "
            f"{_ms(wanted_us)} or more would do, or a faster model or machine."
        )
    ways = []
    replicas = math.ceil(demand.needed_per_s / best.measured.capacity_per_s) if best.measured.capacity_per_s else 0
    if replicas > 1:
        ways.append(
            f"{replicas} replicas (GPUs): one stands {best.measured.capacity_per_s:.4g}/s, and {demand.needed_per_s:g}/s are "
            "needed"
        )
    full_us = served.full_batch_us(best.setting)
    if demand.needed_per_s >= served.parallel(best.setting) * served.max_rows * 1e6 / full_us:
        ways = ways or ["more replicas (GPUs)"]
        return f"{ways[0]}; no SLO would do on one, since its full batches give less than that."
    looser_us = max(_least_latency_us(tuning), best.measured.latency_us or 0)
    if looser_us > demand.slo_us:
        ways.append(f"an SLO of {_ms(looser_us)} at p{demand.percentile:g}")
    return "; or ".join(ways) or "measure again on a quiet machine: the simulator expects that the SLO is met."


def _least_latency_us(tuning: Tuning) -> int:
    """The latency at the needed rate, by the simulator, under the setting that is best for that."""
    seen = [tuning.predictor.at(one.setting, tuning.demand.needed_per_s, effort=EFFORT) for one in tuning.top]
    return min((one.latency_us for one in seen), default=0)


def notes(tuning: Tuning) -> list[str]:
    """What else a reader should know."""
    said = list(tuning.noise)
    for one in tuning.measurements:
        if one.is_off:
            said.append(
                f"{one.setting}: predicted {one.predicted_goodput_per_s:.4g}/s and p50 "
                f"{_ms(one.predicted.expected.p50_us)}, measured {one.measured.goodput_per_s:.4g}/s and "
                f"{_ms(one.measured.p50_us)}"
            )
    if tuning.cut_short:
        said.append("time ran out: some settings were measured less often than planned, or further ones not at all")
    if tuning.demand.needed_per_s > tuning.effort.ceiling_per_s:
        said.append(
            f"{tuning.demand.needed_per_s:g}/s are needed, and this machine can send {tuning.effort.ceiling_per_s:g}/s"
        )
    return said
