"""``brim bench device``: what batches take on the device alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from brim.bench.device import DEFAULT_EFFORT, SHOWN_ROWS, Found, device
from brim.bench.verdict import ExitCode
from brim.cli.commands.bench_answer import INTERRUPTED, give_answer
from brim.cli.commands.serve import require_artifacts, stop_on_signal
from brim.cli.output import say, table_text
from brim.config.generate import Profile
from brim.errors import InputError
from brim.measure.batch_time_run import FILE_NAME
from brim.paths import Project
from brim.service.schema import Service

ANSWER_FILE = "bench.json"
HOST_FILE = "batch_time_host.json"
PICTURE = "batch_time.svg"


def bench_device(
    project: Project,
    service: Service,
    folder: Path,
    *,
    on_gpu: bool,
    points: int | None,
    rounds: int | None,
    seconds: float | None,
    seed: int,
    as_json: bool,
) -> int:
    """Measure, write the curves where `brim simulate --tau` reads them, and show them.

    Args:
        project: has the export.
        service: whose graph it is.
        folder: for the figures.
        on_gpu: the first GPU, else the CPU.
        points: how many batch sizes; all when absent.
        rounds: over them.
        seconds: after which no further round begins.
        seed: of the order of sizes.
        as_json: the envelope on stdout.

    Raises:
        InputError: it is a language model.
    """
    if service.generation is not None:
        raise InputError(
            f"{service.name} is a language model, whose engine batches by steps",
            hint="`brim measure` and `brim bench generation` measure steps",
        )
    require_artifacts(project, [service], Profile.DEFAULT)
    effort = replace(
        DEFAULT_EFFORT,
        sizes=points,
        rounds=DEFAULT_EFFORT.rounds if rounds is None else rounds,
        budget_s=DEFAULT_EFFORT.budget_s if seconds is None else seconds,
    )
    folder.mkdir(parents=True, exist_ok=True)
    found: Found | None = None
    with stop_on_signal():
        found = device(project, service, on_gpu=on_gpu, effort=effort, seed=seed, on_progress=say)
    if found is None:
        say("interrupted: no answer")
        return INTERRUPTED
    # It takes a moment to import, and nothing else of the command line needs it.
    from brim.bench.device_plot import draw

    measured = found
    measured.on_device.write(folder / FILE_NAME)
    measured.from_host.write(folder / HOST_FILE)
    data = measured.comparison.as_json()
    (folder / ANSWER_FILE).write_text(json.dumps(data) + "\n", encoding="utf-8")
    curves = {"device": measured.on_device.fit, "host": measured.from_host.fit}
    draw(curves, folder / PICTURE, title=f"{service.name} on {data['provider']}")
    return give_answer(ExitCode.YES, data, lambda: shown(measured), folder / ANSWER_FILE, as_json=as_json)


def shown(found: Found) -> str:
    """For people: some of the sizes, and what the curves say."""
    table = Table("rows", "on the device, us", "from the host, us", box=None, pad_edge=False)
    host = {point.rows: point for point in found.from_host.fit.points}
    for point in found.on_device.fit.points:
        if point.rows in SHOWN_ROWS:
            table.add_row(str(point.rows), f"{point.measured_us:.1f}", f"{host[point.rows].measured_us:.1f}")
    said = found.comparison.details["findings"]
    assert isinstance(said, list)
    return "\n".join([f"device: {found.comparison.conditions}", table_text(table), *said])
