"""The fuzz as a check of the suite."""

from __future__ import annotations

from brim.isolation.bench import Account, Bench
from brim.isolation.check import Material
from brim.isolation.fuzz import run_fuzz
from brim.isolation.fuzz_plan import FuzzPlan, Window

BODIES = 2.5
"""Of each protocol, for each request asked for."""
BODIES_MOST = 10_000
"""They are sent a few at a time, so that a crash can be pinned to some of them."""
RESTART_S = 30.0


def fuzz(bench: Bench, material: Material, prefix: str) -> Account:
    """Broken requests by the thousand, beside callers that must not notice."""
    options = bench.options
    outcome = run_fuzz(
        bench.endpoint,
        material.pool,
        FuzzPlan(
            bodies=min(BODIES_MOST, round(BODIES * options.requests)),
            seed=options.seed,
            answer_timeout_s=options.answer_timeout_s,
            tolerance=options.tolerance,
            killers=bench.guarded,
            only=Window.parse(options.fuzz_only) if options.fuzz_only else None,
            restart_s=RESTART_S if bench.supervisor else 0.0,
        ),
    )
    bench.dead = outcome.dead
    account = Account(tally=outcome.tally, troubles=list(outcome.troubles), note=outcome.note, repeat=outcome.repeat)
    account.journal.kept += outcome.evidence
    return account
