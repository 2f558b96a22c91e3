"""``brim bench routing``: routing policies on the same prompts, over simulated replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from brim.bench.routing import DEFAULT_TRAFFIC, Line, as_json, compare, misses
from brim.bench.verdict import ExitCode
from brim.cli.commands.bench_answer import INTERRUPTED, give_answer
from brim.cli.commands.serve import stop_on_signal
from brim.cli.output import say, table_text
from brim.units import us_to_ms

ANSWER_FILE = "routing.json"


def bench_routing(folder: Path, *, points: int | None, seed: int, as_json_answer: bool) -> int:
    """Send the traffic by each policy, and show what became of it.

    Args:
        folder: for the figures.
        points: requests; the usual number when absent.
        seed: of the traffic.
        as_json_answer: on stdout.
    """
    traffic = DEFAULT_TRAFFIC if points is None else replace(DEFAULT_TRAFFIC, requests=points)
    lines: list[Line] | None = None
    folder.mkdir(parents=True, exist_ok=True)
    with stop_on_signal():
        lines = compare(traffic, seed=seed, on_progress=say)
    if lines is None:
        say("interrupted: no answer")
        return INTERRUPTED
    found, data = lines, as_json(lines, traffic, seed)
    file = folder / ANSWER_FILE
    file.write_text(json.dumps(data) + "\n", encoding="utf-8")
    code = ExitCode.NO if misses(found) else ExitCode.YES
    return give_answer(code, data, lambda: shown(found), file, as_json=as_json_answer)


def shown(lines: Sequence[Line]) -> str:
    """For people: a line a policy, and what was missed."""
    table = Table(
        *("policy", "prefix hits", "TTFT p50 ms", "TTFT p99 ms", "tokens/s", "most/mean outstanding", "largest share"),
        box=None,
        pad_edge=False,
    )
    for line in lines:
        table.add_row(
            line.policy,
            f"{line.hit_ratio:.0%}",
            f"{us_to_ms(line.ttft_p50_us):.1f}",
            f"{us_to_ms(line.ttft_p99_us):.1f}",
            f"{line.tokens_per_s:.0f}",
            f"{line.imbalance:.3f}",
            f"{line.largest_share:.0%}",
        )
    return "\n".join([table_text(table), *misses(lines)])
