"""``brim bench generation-simulation``: the simulator of token models held against the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import join

from rich.table import Table

from brim.bench.generation_check import TARGETS, GenerationCheck, remarks
from brim.bench.generation_grid import CASES
from brim.bench.generation_simulation import CHECK_FILE, DEFAULT_EFFORT, check_generation
from brim.cli.commands.bench_answer import give_answer, interrupted
from brim.cli.commands.serve import require_artifacts, stop_on_signal
from brim.cli.output import say, table_text
from brim.config.generate import Profile
from brim.errors import InputError
from brim.paths import Project
from brim.service.schema import Service
from brim.units import us_to_ms


def bench_generation_simulation(
    project: Project,
    service: Service,
    folder: Path,
    *,
    points: int | None,
    seconds: float | None,
    processor_time: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Run the points, or go on with them where ``folder`` holds a part of them, and show them.

    Raises:
        InputError: the service is no language model, or not exported.
    """
    if service.generation is None:
        raise InputError(f"{service.name} is no language model", hint="leave the name out: text_generation is taken")
    require_artifacts(project, [service], Profile.DEFAULT)
    effort = replace(DEFAULT_EFFORT, processor_time=processor_time)
    if seconds is not None:
        effort = replace(effort, point_s=seconds, least_calls=min(effort.least_calls, max(4, round(4 * seconds))))
    options = {"--points": points, "--seconds": seconds, "--seed": seed or None}
    given = [word for name, value in options.items() if value is not None for word in (name, f"{value:g}")]
    given += ["--processor-time"] if processor_time else []
    found: GenerationCheck | None = None
    with stop_on_signal():
        found = check_generation(
            project,
            service,
            CASES[:points],
            folder=folder,
            seed=seed,
            effort=effort,
            command=join(["brim", "bench", "generation-simulation", *given]),
            on_progress=say,
        )
    if found is None:
        return interrupted(folder)
    return give_answer(found.exit_code, found.as_json(), lambda: shown(found), folder / CHECK_FILE, as_json=as_json)


def shown(found: GenerationCheck) -> str:
    """For people: every point, both ways of batching, the verdicts, and remarks."""
    points = Table("point", "calls", "rate/s", *(f"{name} ms" for name in TARGETS), "worst", box=None, pad_edge=False)
    for point in found.points:
        pairs = [
            f"{us_to_ms(getattr(point.predicted, name)):.1f} / {us_to_ms(getattr(point.measured, name)):.1f}"
            for name in TARGETS
        ]
        rate = "-" if point.rate_per_s is None else f"{point.rate_per_s:.2f}"
        points.add_row(point.name, str(point.calls), rate, *pairs, f"{max(point.errors.values()):.1%}")
    ways = Table("continuous / static", "calls", "tokens/s", "measured", "simulated", "TTFT p50", "p99", "e2e p50",
                 box=None, pad_edge=False)  # fmt: skip
    for way in found.ways:
        ratios = way.ratios
        paces = " / ".join(f"{way.measured[name].tokens_per_s:.0f}" for name in ("continuous", "static"))
        ways.add_row(
            way.name,
            str(way.calls),
            paces,
            *(f"x{ratios[how]['tokens_per_s']:.2f}" for how in ("measured", "simulated")),
            *(f"x{ratios['measured'][name]:.3f}" for name in ("ttft_p50_us", "ttft_p99_us", "e2e_p50_us")),
        )
    verdicts = "; ".join(f"{name}: {verdict.value}" for name, verdict in found.verdicts.items())
    parts = [f"generation-simulation: {found.conditions}", table_text(points), "predicted / measured", table_text(ways)]
    return "\n".join([*parts, verdicts, *remarks(found)])
