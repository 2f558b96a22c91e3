"""``brim bench precision``: what FP16 and INT8 cost in accuracy, and what they give in speed on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shlex import join
from statistics import median

from rich.table import Table

from brim.bench.precision import BASE, BATCHES, DEFAULT_EFFORT, NAME, Candidate, PrecisionCheck, time_precisions
from brim.cli.commands.bench_answer import INTERRUPTED, give_answer
from brim.cli.commands.serve import stop_on_signal
from brim.cli.output import say, table_text
from brim.errors import InputError
from brim.paths import Project
from brim.report.bench_result import FILE_NAME
from brim.runtime.session import cores
from brim.service.schema import Service
from brim_export.placement import work_folder
from brim_export.precision_trial import try_precisions
from brim_export.service_export import source_of


def bench_precision(
    project: Project, service: Service, folder: Path, *, rounds: int | None, seed: int, as_json: bool
) -> int:
    """Make the service's graph in every precision, try it, time it, and show what was found.

    Raises:
        InputError: the service is a language model.
    """
    if service.model.llm is not None:
        raise InputError(
            f"{service.name} is a language model, which has no graph to convert",
            hint="its precision is generation.precision in its service file",
        )
    effort = DEFAULT_EFFORT if rounds is None else replace(DEFAULT_EFFORT, rounds=rounds)
    options = {"--rounds": rounds, "--seed": seed or None}
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    threads = service.runtime.threads or cores()
    found: PrecisionCheck | None = None
    with stop_on_signal(), work_folder(project.cache_folder(), ".precisions-") as work:
        trials = try_precisions(service, source_of(project, service), work, seed=seed, on_progress=say)
        batches = [batch for batch in BATCHES if batch <= service.max_batch_size]
        candidates = [
            Candidate(one.precision.value, one.graph, tuple(one.refusals), one.accuracy) for one in trials.trials
        ]
        timed, conditions = time_precisions(
            candidates,
            {batch: trials.feed(batch) for batch in batches},
            threads=threads,
            effort=effort,
            on_progress=say,
        )
        found = PrecisionCheck(
            service.name,
            service.model.precision.value,
            threads,
            trials.sizes,
            timed,
            conditions,
            join(["brim", "bench", NAME, service.name, *given]),
        )
    if found is None:
        say("interrupted: no answer")
        return INTERRUPTED
    answer = found
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE_NAME
    file.write_text(json.dumps(answer.as_json()) + "\n", encoding="utf-8")
    return give_answer(answer.exit_code, answer.as_json(), lambda: shown(answer), file, as_json=as_json)


def shown(check: PrecisionCheck) -> str:
    """For people: a line a precision, and why one is refused."""
    batches = [speed.batch for speed in check.timed[0].speeds]
    head = ("precision", "served", "MB", *(f"x fp32, {batch} rows" for batch in batches), "accuracy")
    table = Table(*head, box=None, pad_edge=False)
    for one in check.timed:
        speeds = [
            f"{median(speed.rows_per_s):.0f}/s"
            if one.candidate.precision == BASE
            else f"{speed.ratio.median:.2f} {speed.verdict}"
            for speed in one.speeds
        ] or ["-"] * len(batches)
        served = "no" if one.candidate.refusals else "yes"
        figures = ", ".join(f"{name} {value:.4f}" for name, value in one.candidate.accuracy.items())
        table.add_row(one.candidate.precision, served, f"{one.graph_bytes / 1e6:.2f}", *speeds, figures or "-")
    refused = [f"{one.candidate.precision} is refused: {why}" for one in check.timed for why in one.candidate.refusals]
    return "\n".join([f"{NAME}: {check.conditions}", table_text(table), *refused])
