"""A replica's metrics page, as its policy needs it. Whatever a page lacks or garbles is missing, and nothing else happens.

Names: Triton's own, ours of ``brim.engine.metrics``, and those under which vLLM and TensorRT-LLM say the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from math import isfinite, isnan

from brim.engine.metrics import BLOCK_TOKENS, BLOCKS_TOTAL, KV_USAGE, RUNNING, TOKENS_IN, WAITING, Family
from brim.router.view import Replica

PENDING, EXECUTED = "nv_inference_pending_request_count", "nv_inference_count"
START = "process_start_time_seconds"
LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MODEL_LABELS = ("model", "model_name")
"""Triton's, and vLLM's."""
MOST_MODELS = 256
ALL = ""
"""In place of a model: all of them together."""
FAMILIES = (WAITING, RUNNING, KV_USAGE, BLOCKS_TOTAL, BLOCK_TOKENS, TOKENS_IN)
LARGEST = frozenset({KV_USAGE, BLOCK_TOKENS})
"""Of several processes the largest value counts; everything else is added up."""
OF_TENSORS = {PENDING: WAITING, EXECUTED: TOKENS_IN}
"""Of models that have nothing better."""


def _places() -> dict[str, list[tuple[frozenset[tuple[str, str]], Family, int]]]:
    """Name on the page -> labels that it has to have, what it says, and its rank: ours first."""
    places: dict[str, list[tuple[frozenset[tuple[str, str]], Family, int]]] = {}
    for family in FAMILIES:
        for rank, (name, labels) in enumerate(((family.name, ()), *family.aliases)):
            places.setdefault(name, []).append((frozenset(labels), family, rank))
    for name, family in OF_TENSORS.items():
        places.setdefault(name, []).append((frozenset(), family, len(family.aliases) + 1))
    return places


PLACES = _places()


@dataclass(slots=True)
class _Said:
    """Of one model: what it says, by family and rank; and the processes that say it."""

    values: dict[tuple[Family, int], float] = field(default_factory=dict)
    processes: set[str] = field(default_factory=set)

    def add(self, family: Family, rank: int, value: float) -> None:
        before = self.values.get((family, rank))
        if before is not None and family in LARGEST:
            # No number stays none.
            value = value if isnan(value) or value > before else before
        elif before is not None:
            value += before
        self.values[family, rank] = value

    def get(self, family: Family) -> float | None:
        ranks = sorted(rank for known, rank in self.values if known is family)
        return self.values[family, ranks[0]] if ranks else None


def read_page(text: str, name: str, scraped_us: int) -> dict[str, Replica]:
    """The replica as each of its models has it, by model, and under ``ALL`` as all of them together have it.

    Args:
        text: the page, in Prometheus' text format.
        name: of the replica.
        scraped_us: when it was asked for.
    """
    said: dict[str, _Said] = {}
    start = ""
    for found in map(LINE.fullmatch, text.splitlines()):
        if found is None:
            continue
        if found[1] == START:
            start = found[3]
        for labels_wanted, family, rank in PLACES.get(found[1], ()):
            labels = dict(LABEL.findall(found[2] or ""))
            model = next((labels[key] for key in MODEL_LABELS if labels.get(key)), None)
            value = _value(found[3])
            if value is None or model is None or not labels_wanted <= labels.items():
                continue
            if model in said or len(said) < MOST_MODELS:
                one = said.setdefault(model, _Said())
                one.add(family, rank, value)
                one.processes.update(filter(None, [labels.get("process")]))
    views = {model: _view(one, name, scraped_us, start) for model, one in said.items()}
    return {**views, ALL: _together(views.values(), name, scraped_us)}


def _value(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _view(said: _Said, name: str, scraped_us: int, start: str) -> Replica:
    usage = said.get(KV_USAGE)
    return Replica(
        name,
        waiting=said.get(WAITING),
        running=said.get(RUNNING),
        kv_free=None if usage is None else 1 - usage,
        kv_blocks=_count(said.get(BLOCKS_TOTAL)),
        kv_block_tokens=_count(said.get(BLOCK_TOKENS)),
        scraped_us=scraped_us,
        incarnation=" ".join(sorted(said.processes)) or start,
        counted=said.get(TOKENS_IN),
    )


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and isfinite(value) and value > 0 else None


def _together(views: Collection[Replica], name: str, scraped_us: int) -> Replica:
    """What is known of some models is added up. None of them is known to hold a prefix."""
    waiting = [view.waiting for view in views if view.waiting is not None]
    running = [view.running for view in views if view.running is not None]
    free = [view.kv_free for view in views if view.kv_free is not None]
    return Replica(
        name,
        waiting=sum(waiting) if waiting else None,
        running=sum(running) if running else None,
        kv_free=min(free) if free else None,
        scraped_us=scraped_us,
    )
