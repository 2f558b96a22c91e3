"""``brim tune`` for language models: chunk size, seats, KV cache and its split are searched in the simulator, and measured."""

from __future__ import annotations

import json
import os
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from rich.table import Table

import brim
from brim.cli.commands.serve import require_artifacts, stop_on_signal
from brim.cli.output import put, put_answer, say, table_text
from brim.config.generate import Profile
from brim.engine.calibration import calibrate
from brim.engine.engine_process import EngineProcess
from brim.engine.step_time import StepTime, read_step_time
from brim.errors import InputError
from brim.measure.plan import usable_cores
from brim.measure.text.lengths import mix_of
from brim.paths import Project
from brim.service.schema import Service
from brim.tune.text.answer import document
from brim.tune.text.demand import Figures, demand_of
from brim.tune.text.rewrite import rewrite
from brim.tune.text.search import Predictor
from brim.tune.text.setting import Setting, engine_arguments, setting_of
from brim.tune.text.tuning import Effort, EngineBench, Tuning
from brim.tune.text.tuning import tune as tune_service
from brim.units import us_to_ms

CHOICE_FILE = "choice.json"
RUNS_FILE = "measurements.jsonl"
STEP_TIME_FILE = "step-time.json"
INTERRUPTED = 130
SHAREGPT = "sharegpt"
ROUGH = 0.15
"""Median error of the fit above which predictions are rough."""


def tune_text(
    project: Project,
    service: Service,
    folder: Path,
    *,
    effort: Effort,
    step_time: Path | None,
    prompts: str | None,
    texts: str | None,
    most_blocks: int | None,
    calibration_s: float,
    budget_s: float,
    seed: int,
    apply: bool,
    as_json: bool,
) -> int:
    """Choose, and show it.

    Args:
        project: where the service is.
        service: an exported language model with an objective.
        folder: for ``choice.json``, the runs and the step times.
        effort: how much is measured.
        step_time: what steps take; they are measured when absent.
        prompts, texts: lengths (``brim.measure.text.lengths``).
        most_blocks: no setting has a larger cache; what the service file says when absent.
        calibration_s: time for measuring steps.
        budget_s: after this time nothing further is measured.
        seed: for everything that is drawn.
        apply: write the choice into the service file and the configurations.
        as_json: the envelope instead of words.

    Raises:
        InputError: the service has no objective, or a value cannot be.
    """
    assert service.generation is not None
    mix = mix_of(prompts or SHAREGPT, texts or SHAREGPT, context_tokens=service.generation.context_tokens)
    demand = demand_of(service, mix)
    known = None if step_time is None else read_step_time(step_time)
    present = setting_of(service)
    most = present.kv_blocks if most_blocks is None else most_blocks
    if most < present.kv_blocks:
        raise InputError(
            f"--kv-blocks-max {most}: {service.name} has {present.kv_blocks} now",
            hint=f"lower kv_blocks in services/{service.name}.yaml first: the present setting is measured, too",
        )
    require_artifacts(project, [service], Profile.DEFAULT)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUNS_FILE).write_bytes(b"")
    began_s = monotonic()
    conditions: dict[str, Any] = {
        "brim": brim.__version__,
        "cores": usable_cores(),
        "load_average": os.getloadavg()[0],
        "seed": seed,
        "run_us": effort.run_us,
        "repeats": effort.repeats,
        "settings": effort.settings,
        "most_blocks": most,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }

    def on_run(setting: Setting, repeat: int, measured: Figures, predicted: Figures) -> None:
        line = {
            "setting": setting.as_json(),
            "repeat": repeat,
            "measured": _json(measured),
            "predicted": _json(predicted),
        }
        with (folder / RUNS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        say(
            f"  {measured.in_slo:.1%} in time ({predicted.in_slo:.1%} predicted), TTFT p99 {_ms(measured.ttft_p99_us)} ms"
        )

    tuning: Tuning | None = None
    with stop_on_signal():
        model, jitter = (
            (known, 0.0) if known is not None else _calibrated(project, service, folder, calibration_s, seed)
        )
        tuning = tune_service(
            Predictor(service, demand, model, jitter, seed),
            EngineBench(project, service),
            effort,
            most_blocks=most,
            out_of_time=lambda: monotonic() - began_s > budget_s,
            on_run=on_run,
            on_progress=say,
        )
    conditions["took_us"] = round((monotonic() - began_s) * 1e6)
    if tuning is None:
        _write(folder, {"service": service.name, "interrupted": True, "conditions": conditions, "choice": None})
        say(f"interrupted: the runs so far are in {folder / RUNS_FILE}")
        return INTERRUPTED
    change = rewrite(project, service, tuning.best.setting)
    applied = apply and tuning.slo_met
    if applied:
        change.write()
    data = {
        **document(tuning),
        "step_time": model.as_json(),
        "jitter": jitter,
        "conditions": conditions,
        "diff": change.diff,
        "applied": applied,
        "folder": str(folder),
    }
    _write(folder, data)
    if as_json:
        put_answer("tune", data, ok=tuning.slo_met)
    else:
        put(_words(data))
    say(f"{CHOICE_FILE} and {RUNS_FILE}: {folder}")
    if change.diff and not applied and tuning.slo_met:
        say(f"nothing was changed; `brim tune {service.name} --apply` writes the choice")
    return 0 if tuning.slo_met else 1


def _calibrated(project: Project, service: Service, folder: Path, budget_s: float, seed: int) -> tuple[StepTime, float]:
    """Measure step times on the service's engine, as it is, and keep them in the folder."""
    arguments = engine_arguments(project, service)
    say(f"measuring what steps take, for about {budget_s:.0f} s")
    with closing(EngineProcess(arguments)) as engine:
        found = calibrate(
            engine,
            max_sequences=setting_of(service).max_sequences,
            budget_s=budget_s,
            seed=seed,
            conditions={
                "cores": usable_cores(),
                "load_average": os.getloadavg()[0],
                "chunk_tokens": arguments.chunk_tokens,
                "precision": arguments.precision,
                "threads": arguments.threads,
                "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            on_progress=say,
        )
    data = found.as_json()
    (folder / STEP_TIME_FILE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    error = data["error"]
    say(f"half of the steps are within {error['p50']:.0%} of the fit, nine in ten within {error['p90']:.0%}")
    if error["p50"] > ROUGH:
        say("that is rough, as on a machine that others use: so are the predictions, and what is measured decides")
    return found.step_time, found.jitter


def _json(of: Figures) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Figures.__dataclass_fields__}


def _write(folder: Path, data: dict[str, Any]) -> None:
    (folder / CHOICE_FILE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _words(data: dict[str, Any]) -> str:
    """The measured settings beside their predictions, the sentence, the differences."""
    table = Table("setting", "goodput/s", "in SLO", "TTFT p50 ms", "p99 ms", "TPOT p50 ms", "p99 ms", "tokens/s", "")
    for one in data["measurements"]:
        predicted, measured = one["predicted"], one["measured"]
        table.add_row(
            str(Setting(**one["setting"])),
            f"{predicted['goodput_per_s']:.2f} / {measured['goodput_per_s']:.2f}",
            f"{predicted['in_slo']:.1%} / {measured['in_slo']:.1%}",
            *(
                f"{_ms(predicted[name])} / {_ms(measured[name])}"
                for name in ("ttft_p50_us", "ttft_p99_us", "tpot_p50_us", "tpot_p99_us")
            ),
            f"{predicted['tokens_per_s']:.0f} / {measured['tokens_per_s']:.0f}",
            ", ".join(word for word, name in (("choice", "is_choice"), ("present", "is_default")) if one[name]),
        )
    parts = [
        table_text(table),
        "predicted / measured, for the same calls; TTFT and TPOT are of the first class",
        data["why"],
        f"{data['simulations']:,} simulations, {len(data['measurements'])} settings measured on the engine",
    ]
    return "\n".join([*parts, data["diff"]] if data["diff"] else parts)


def _ms(value_us: float | None) -> str:
    return "-" if value_us is None else f"{us_to_ms(value_us):.4g}"


def refuse_for_batchers(given: dict[str, object]) -> None:
    """Refuse what only language models know.

    Raises:
        InputError: one of the options is given.
    """
    lost = [name for name, value in given.items() if value is not None]
    if lost:
        raise InputError(f"{', '.join(lost)}: the service is no language model", hint="leave it out")
