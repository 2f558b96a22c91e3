"""Documents of an invented run, whole and deterministic, for the tests of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brim.bench.comparison import Comparison, judged
from brim.bench.overload_check import Found
from brim.bench.verdict import Target
from brim.measure.accounting import Account, Outcome, Reply
from brim.measure.schedule import Arrivals
from brim.soak.run import SoakPlan, SoakResult
from brim.soak.sample import Sample
from tests.unit import test_bench_overload, test_soak
from tests.unit.open_example import line, open_point

PREFERRED = {"none": [], "hundred": [100]}
CONDITIONS = {"machine": "2 cores", "device": "CPU", "seed": 7, "step_us": 4_000_000}


def point_line(
    load: int,
    *,
    mode: str = "concurrency",
    digest: str = "aaaaaaaaaaaa",
    plan: str = "111111111111",
    scale: float = 1.0,
    model: str = "m",
    **changes: Any,
) -> dict[str, Any]:
    """A line of measurements.jsonl: throughput rises with load, and so does latency."""
    batch = max(1, min(100, load // 2))
    value = {"concurrency": load} if mode == "concurrency" else {"rate": float(load)}
    command = ["perf_analyzer", "-m", model, f"--{mode}-range={load}"]
    if mode == "rate":
        command.append("--request-distribution=poisson")
    return {
        "key": f"{model}/grpc/{mode}={load}/{plan}/{digest}",
        "model": model,
        "protocol": "grpc",
        "mode": mode,
        **value,
        "throughput": scale * 900 * load / (load + 30) if mode == "concurrency" else float(load),
        "p50_us": round(2_000 + 300 * load / scale),
        "p99_us": round(5_000 + 800 * load / scale),
        "latency_us": {
            "50": round(2_000 + 300 * load / scale),
            "90": round(3_000 + 500 * load / scale),
            "99": round(5_000 + 800 * load / scale),
        },
        "split_us": {},
        "mean_batch": float(batch),
        "fill": batch / 100,
        "duty": min(1.0, 0.2 + load / 100),
        "queue_us": 10,
        "compute_us": {},
        "executions_by_size": {"1": 3, str(batch): 40},
        "execution_us_by_size": {},
        "inferences": 3 + 40 * batch,
        "executions": 43,
        "failed": 0,
        "instances": 1,
        "stable": True,
        "settled": True,
        "generator_bound": False,
        "reason": "",
        "note": "",
        "generator_cores": 0.2,
        "machine_busy": 0.5,
        "outside_ratio": 0.1,
        "callers_in_server": 1.0,
        "sent_rate": None,
        "delayed_ratio": None,
        "provenance": {
            "command": command,
            "perf_analyzer": "2.60.0",
            "origin": "wheel",
            "server": "triton 2.51.0",
            "brim": "0.1.0",
            "usable_cores": 2,
            "load_average": 0.5 + load / 100,
            "started_at": f"2026-01-01T00:00:{load % 60:02}+00:00",
            "raw": f"raw/{mode}-{load}-1",
        },
        **changes,
    }


LOADS = (1, 10, 50, 100)
SETTINGS: dict[str, dict[str, Any]] = {
    "aaaaaaaaaaaa": {"instances": 1, "preferred": [], "delay_us": 0},
    "bbbbbbbbbbbb": {"instances": 2, "preferred": [], "delay_us": 0},
    "cccccccccccc": {"instances": 1, "preferred": [100], "delay_us": 2000},
}
SCALES = {"aaaaaaaaaaaa": 1.0, "bbbbbbbbbbbb": 1.3, "cccccccccccc": 0.8}


def sweep_lines() -> list[dict[str, Any]]:
    """Three settings, four closed loads and two open ones each."""
    return [
        point_line(load, mode=mode, digest=digest, plan=plan, scale=SCALES[digest])
        for digest in SETTINGS
        for mode, plan, loads in (("concurrency", "111111111111", LOADS), ("rate", "222222222222", (50, 200)))
        for load in loads
    ]


def configurations() -> dict[str, Any]:
    """configurations.json of the same sweep."""
    return {
        f"text{number}": {"config_digest": digest, "settings": settings}
        for number, (digest, settings) in enumerate(SETTINGS.items())
    }


def asked(loads: tuple[int, ...] = LOADS) -> dict[str, Any]:
    """sweep.json of the same sweep."""
    kinds = [{"arrivals": "closed", "values": list(loads)}, {"arrivals": "poisson", "values": [50, 200]}]
    return {
        "model": "m",
        "protocol": "grpc",
        "configuration": "0123456789ab",
        "method": {"window_ms": 2000},
        "settings": list(SETTINGS.values()),
        "loads": kinds,
    }


def load_test() -> dict[str, Any]:
    """loadtest.json of a test with two classes, one of which was shed."""
    interactive = {"offered": 1_000, "answered": 990, "in_slo": 988, "refused": 4, "expired": 1, "cancelled": 3}
    batch = {"offered": 400, "answered": 150, "in_slo": 149, "refused": 250, "expired": 0, "cancelled": 0}
    return {
        "classes": {
            "interactive": {**interactive, "failed": 2, "p50_us": 8_000, "p99_us": 41_000, "reject_p99_us": 900},
            "batch": {**batch, "failed": 0, "p50_us": 9_000, "p99_us": 47_000, "reject_p99_us": 1_300},
        },
        "verdict": "met",
        "slo": {"latency_ms": 50, "percentile": 99},
        "conditions": {"machine": "2 cores", "seed": 7},
        "command": "brim load m --shape spike",
        "timeline": [
            {
                "second": at,
                "offered": 280,
                "answered": 228,
                "in_slo": 227,
                "refused": 50,
                "p50_us": 8_000,
                "p99_us": 41_000,
            }
            for at in range(5)
        ],
    }


def open_lines() -> list[dict[str, Any]]:
    """openloop.jsonl: three constant rates, the last of which is refused in part, and a run through three steps."""

    def refused(number: int) -> tuple[Outcome, int]:
        return (Outcome.REFUSED, 1_000) if number % 4 == 0 else (Outcome.ANSWERED, 30_000)

    points = [open_point((rate,)) for rate in (50, 100)]
    points.append(open_point((200,), refused))
    points.append(open_point((20, 60, 100), arrivals=Arrivals.STEPS))
    return [line(point) for point in points]


def setting(preferred: list[int], delay_us: int, instances: int) -> dict[str, Any]:
    return {"preferred": preferred, "max_queue_delay_us": delay_us, "instances": instances}


def predicted(capacity: float, p99_us: int) -> dict[str, Any]:
    return {
        "capacity_per_s": capacity,
        "goodput_per_s": 0.98 * capacity,
        "p50_us": p99_us // 3,
        "p99_us": p99_us,
        "latency_us": p99_us,
        "mean_batch": capacity / 20,
    }


def run_line(one: dict[str, Any], load: str, rate: float, *, number: int = 1, scale: float = 1.0) -> dict[str, Any]:
    """A line of a tuning's measurements.jsonl."""
    offered = round(4 * rate)
    return {
        "setting": one,
        "purpose": load,
        "repeat": number,
        "rate_per_s": rate,
        "duration_us": 4_000_000,
        "offered": offered,
        "answered": offered,
        "in_slo": offered - number,
        "goodput_per_s": (offered - number) / 4,
        "in_slo_ratio": (offered - number) / offered,
        "p50_us": round(3_000 + 20 * rate / scale),
        "p99_us": round(9_000 + 60 * rate / scale),
        "latency_us": round(9_000 + 60 * rate / scale),
        "mean_batch": rate / 30,
        "duty": min(1.0, rate / 800),
        "executions_by_size": {"1": 10, str(max(2, round(rate / 30))): 60},
        "execution_us_by_size": {},
        "limits": [],
    }


def choice() -> dict[str, Any]:
    """choice.json of an invented tuning of ``m``."""
    tuned = [(setting([], 0, 2), 700.0, 40_000, 1.0), (setting([], 0, 1), 600.0, 45_000, 0.9)]
    tuned.append((setting([100], 5_000, 1), 760.0, 61_000, 1.1))
    measurements = [
        {
            "setting": one,
            "is_default": index == 1,
            "is_current": index == 1,
            "is_choice": index == 0,
            "predicted": predicted(capacity, p99),
            "measured": {**predicted(0.93 * capacity, round(1.1 * p99)), "spread": 0.03, "in_slo_expected": 0.999}
            | {"in_slo_peak": 0.992, "limited_by_generator": False},
            "deviation": -0.07,
            "runs": [
                run_line(one, load, rate, number=number, scale=scale)
                for number in (1, 2)
                for load, rate in (("expected", 200.0), ("peak", 400.0), ("climb", 650.0))
            ],
        }
        for index, (one, capacity, p99, scale) in enumerate(tuned)
    ]
    return {
        "service": "m",
        "interrupted": False,
        "slo": {"latency_us": 50_000, "percentile": 99.0},
        "traffic": {"rate_per_s": 200.0, "peak_per_s": 400.0, "arrival": "steady"},
        "conditions": {**CONDITIONS, "protocol": "grpc", "server": "triton 2.51.0"},
        "batch_time": {},
        "machine": {"overhead_us": 800, "jitter": 0.05, "prepare_us": 0, "serialised": True, "refits": 1}
        | {"points": [{"rows": 1, "time_us": 5_000}, {"rows": 100, "time_us": 60_000}]},
        "candidates": {"generated": 900, "refused": 12, "refused_by": {"TRI001": 12}, "simulated": 888},
        "predicted_top": [{"setting": one, **predicted(capacity, p99)} for one, capacity, p99, _ in tuned],
        "default": {"setting": tuned[1][0], "predicted": predicted(600.0, 45_000), "measured": None},
        "current": tuned[1][0],
        "measurements": measurements,
        "choice": {**tuned[0][0], "in_flight": 64, "timeout_us": 50_000},
        "predicted": predicted(700.0, 40_000),
        "measured": predicted(651.0, 44_000),
        "behaviour": {
            "lone": {"latency_us": 5_800, "waits_us": 0},
            "low": {
                "share": 0.1,
                "rate_per_s": 70.0,
                "p50_us": 6_000,
                "p99_us": 9_000,
                "mean_batch": 1.1,
                "in_slo": 1.0,
            },
            "moderate": {"share": 0.5, "rate_per_s": 350.0, "p50_us": 9_000, "p99_us": 21_000, "mean_batch": 4.0}
            | {"in_slo": 1.0},
            "high": {"share": 0.9, "rate_per_s": 630.0, "p50_us": 21_000, "p99_us": 39_000, "mean_batch": 14.0}
            | {"in_slo": 0.993},
        },
        "slo_met": True,
        "why": "It carries the most inside the SLO, and waits for nobody when alone.",
        "way_out": None,
        "notes": ["The default carries 14 % less."],
        "diff": "-  count: 1\n+  count: 2\n",
        "applied": False,
        "folder": "run",
    }


def stopped() -> dict[str, Any]:
    """choice.json of a tuning that was stopped after one run."""
    conditions = {**CONDITIONS, "protocol": "grpc"}
    runs = [run_line(setting([], 0, 1), "climb", 300.0)]
    return {"service": "m", "interrupted": True, "conditions": conditions, "choice": None, "runs": runs}


def simulation_check() -> dict[str, Any]:
    """simulation-check.json: predictions that are off by a known share."""
    points = [
        {
            "curve": curve,
            "setting": f"instances {instances}, delay_us {delay}",
            "load": float(load),
            "predicted": {"p50_us": 1.0 * p50, "p99_us": 3.0 * p50, "mean_batch": load / 50}
            | {"launches": {"full": load, "drained": 400, "delay": delay // 10}},
            "measured": {
                "p50_us": p50 * (1 + off),
                "p99_us": 3 * p50 * (1 - off),
                "mean_batch": load / 50 * (1 + off / 2),
            },
        }
        for curve, off in (("known, steady", 0.04), ("known, bursty", 0.15))
        for instances in (1, 2)
        for delay in (0, 2000)
        for load in (50, 200, 400)
        for p50 in (4_000 + 30 * load // instances + delay,)
    ]
    return {"conditions": CONDITIONS, "command": "make bench-simulator", "points": points, "median_error": {}}


def isolation() -> dict[str, Any]:
    """isolation.json of a run in which nobody was hurt."""
    check = {
        "id": "identity",
        "ok": True,
        "sent": 2_000,
        "right": 1_980,
        "own_error": 20,
        "cancelled": 0,
        "wrong": 0,
        "neighbour_errors": 0,
        "hung": 0,
        "message": "",
        "mean_batch": 12.5,
        "skipped": False,
        "largest_deviation": 0.0,
        "faults": [],
        "took_us": 1_000_000,
        "exchanges": [],
        "figures": {},
    }
    about = {"model": "m", "ok": True, "requests": 2_000, "seed": 0, "callers": 120, "tolerance": 1e-4}
    return {
        **about,
        "poison_share": 0.01,
        "took_us": 3_000_000,
        "totals": {},
        "checks": [check, {**check, "id": "fuzz"}],
    }


def as_written(document: Any) -> Any:
    """What a file has of it."""
    return json.loads(json.dumps(document))


def overload(found: Found = test_bench_overload.GOOD) -> dict[str, Any]:
    """bench.json of a benchmark of overload, as it writes it itself."""
    document: dict[str, Any] = as_written(test_bench_overload.check(found).as_json())
    return document


def comparison(*rounds: float, most: float = 1.1) -> dict[str, Any]:
    """bench.json of a benchmark that holds one ratio against a target, as it writes it itself."""
    values = rounds or (1.01, 1.02, 1.03, 1.04, 1.05)
    conditions = test_bench_overload.CONDITIONS
    ratio = judged(Target("padded / real tokens", most=most), values, conditions)
    made = Comparison("padding", (ratio,), {"rows_per_s": [100.0, 120.0, 110.0]}, conditions)
    document: dict[str, Any] = as_written(made.as_json())
    return document


SOAK_ABOUT = {"command": "brim soak m --duration 100 --seed 7", "conditions": {"cores": 2}}


def soak(samples: list[Sample] | None = None) -> dict[str, Any]:
    """soak.json of such a run, as it writes it itself; a refusal is among its requests."""
    seen = test_soak.run() if samples is None else samples
    account = Account(None)
    for number in range(10):
        account.add(number, number, number + 2_000 * (1 + number), Reply(Outcome.ANSWERED))
    account.add(0, 0, 500, Reply(Outcome.REFUSED, "429: queue_full"))
    verdict = test_soak.verdict(seen)
    result = SoakResult(SoakPlan(100), "m", 1_111.0, test_soak.RATE, tuple(seen), account, verdict, False, SOAK_ABOUT)
    document: dict[str, Any] = as_written(result.as_json())
    return document


def soak_lines(samples: list[Sample] | None = None) -> list[dict[str, Any]]:
    """samples.jsonl of the same."""
    return [as_written(sample.as_json()) for sample in (test_soak.run() if samples is None else samples)]


def write_run(folder: Path, *parts: str) -> Path:
    """A run folder with these parts.

    They are: sweep, asked, open, tune, choice, stopped, simulation, loadtest, isolation, overload, bench, soak.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def lines(documents: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(document) + "\n" for document in documents)

    texts = {
        "sweep": {"measurements.jsonl": lines(sweep_lines()), "configurations.json": json.dumps(configurations())},
        "tune": {
            "measurements.jsonl": lines([run for one in choice()["measurements"] for run in one["runs"]]),
            "choice.json": json.dumps(choice()),
        },
        "choice": {"choice.json": json.dumps(choice())},
        "stopped": {"choice.json": json.dumps(stopped())},
        "simulation": {"simulation-check.json": json.dumps(simulation_check())},
        "asked": {"sweep.json": json.dumps(asked())},
        "loadtest": {"loadtest.json": json.dumps(load_test())},
        "open": {"openloop.jsonl": lines(open_lines())},
        "isolation": {"isolation.json": json.dumps(isolation()), "isolation.html": "<!doctype html>"},
        "overload": {"bench.json": json.dumps(overload())},
        "bench": {"bench.json": json.dumps(comparison())},
        "soak": {"soak.json": json.dumps(soak()), "samples.jsonl": lines(soak_lines())},
    }
    for part in parts:
        for name, text in texts[part].items():
            (folder / name).write_text(text, encoding="utf-8")
    return folder
