"""What to measure of a language model: loads, lengths, classes, and the objective."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from brim.engine.lifecycle import RequestClass
from brim.engine.traffic import Call
from brim.errors import InputError
from brim.measure.schedule import Schedule
from brim.measure.text.lengths import Mix
from brim.measure.text.token_times import TokenObjective

CALLS = 10_000
"""Lengths that a closed loop draws, and then goes through again; the words differ all the same."""
MOST_CALLERS = 2_000
"""Under way at once. Each holds a stream."""


@dataclass(frozen=True, slots=True)
class TextPlan:
    """What to measure.

    Attributes:
        concurrencies: closed loops, one point each; empty for open ones.
        schedules: open loops, one point each; empty for closed ones.
        duration_us: of a closed loop's point.
        mix: lengths of prompts and texts.
        mix_words: the same for people.
        context_tokens: of the model.
        max_sequences: of the model: what the fill is of.
        objective: the SLO; None to judge none.
        classes: class of callers -> the name that requests say; empty to say none.
        batch_share: of the batch class.
        shared_prefix_tokens: that all prompts begin with.
        give_up_us: how long an open loop's caller waits from when its request was due; None for ``timeout_us``.
        timeout_us: longest wait for the end of a text.
        seed: of lengths, classes and arrivals.
        stability_percent: the thirds of a run must agree within this.
        command: what was typed.
    """

    concurrencies: Sequence[int]
    schedules: Sequence[Schedule]
    duration_us: int
    mix: Mix
    mix_words: str
    context_tokens: int
    max_sequences: int
    objective: TokenObjective | None
    classes: Mapping[RequestClass, str] = field(default_factory=dict)
    batch_share: float = 0.0
    shared_prefix_tokens: int = 0
    give_up_us: int | None = None
    timeout_us: int = 600_000_000
    seed: int = 0
    stability_percent: float = 10.0
    command: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out.

        Raises:
            InputError: with every fault at once.
        """
        faults = [
            f"{callers} callers: 1 to {MOST_CALLERS} are expected"
            for callers in self.concurrencies
            if not 1 <= callers <= MOST_CALLERS
        ]
        if not self.concurrencies and not self.schedules:
            faults.append("no load is asked for")
        if not 0 <= self.batch_share <= 1:
            faults.append(f"a batch share of {self.batch_share:g}: 0 to 1 is expected")
        if self.batch_share and not self.classes:
            faults.append("a batch share without classes of callers: the service file names none")
        if not 0 <= self.shared_prefix_tokens < self.context_tokens:
            faults.append(
                f"a shared prefix of {self.shared_prefix_tokens} tokens: 0 to {self.context_tokens - 1} are expected"
            )
        if not 0 < self.stability_percent < math.inf:
            faults.append(f"stability_percent {self.stability_percent:g}: must be above 0")
        if faults:
            raise InputError("this cannot be measured: " + "; ".join(faults), hint="correct these values")

    @property
    def loads(self) -> list[int | Schedule]:
        """Callers or schedules, in their order, each once."""
        return [*dict.fromkeys(self.concurrencies), *self.schedules]

    def fingerprint(self, load: int | Schedule) -> str:
        """Twelve hex digits that change with everything but the number of callers."""
        parts = {
            "load": load.digest if isinstance(load, Schedule) else self.duration_us,
            "mix": self.mix.as_json(),
            "context": self.context_tokens,
            "max_sequences": self.max_sequences,
            "slo": None if self.objective is None else [self.objective.ttft_us, self.objective.tpot_us],
            "percentile": None if self.objective is None else self.objective.percentile,
            "classes": sorted(self.classes.values()),
            "batch_share": self.batch_share,
            "shared": self.shared_prefix_tokens,
            "give_up_us": self.give_up_us,
            "timeout_us": self.timeout_us,
            "seed": self.seed,
            "stability": self.stability_percent,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]

    def calls(self, load: int | Schedule) -> list[Call]:
        """Lengths and classes of the requests of one load.

        Raises:
            InputError: the context does not hold them.
        """
        count = len(load.due_us) if isinstance(load, Schedule) else CALLS
        rng = np.random.default_rng(self.seed)
        return self.mix.draw(count, rng, context_tokens=self.context_tokens, batch_share=self.batch_share)
