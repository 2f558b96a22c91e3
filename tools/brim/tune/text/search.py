"""The offline search: many settings in the simulator under the service's traffic, the worse ones dropped early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from brim.engine.simulate import open_loop
from brim.engine.step_time import StepTime
from brim.service.schema import KV_BLOCK_TOKENS, Service
from brim.tune.text.demand import Demand, Figures, figures
from brim.tune.text.setting import Setting, host_settings, limits_of, setting_of, with_setting

CHUNKS = (64, 128, 256, 512, 1024)
"""Tokens of a step."""
SEATS = (8, 16, 32, 64)
KV_PARTS = (0.5, 0.75)
"""Of the most blocks."""
SHARES = (0.25, 0.5, 1.0)
"""What the batch class keeps."""
FIRST_CALLS, LAST_CALLS = 100, 300
KEPT = 4
"""Settings of the first look, at chunk and seats alone, whose cache and split are varied."""
FINALISTS = 5
"""Settings that are simulated at length; each with the largest cache, too, which a short look may not miss."""
GOODPUT_TIE = 0.01
"""Simulated goodputs that differ by less count as equal: a few calls of some hundred."""
TTFT_TIE = 0.05
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting and what the simulator says of it."""

    setting: Setting
    predicted: Figures


@dataclass
class Predictor:
    """The simulator as tuning asks it. Counts what it was asked.

    Attributes:
        service: whose settings are varied; everything else of it stays.
        demand: its objective and traffic.
        step_time: of the engine.
        jitter: of its steps.
        seed: of calls, arrivals and jitter.
        first_calls, last_calls: of a first look at a setting, and of the last one.
        simulations: so far.
    """

    service: Service
    demand: Demand
    step_time: StepTime
    jitter: float = 0.0
    seed: int = 0
    first_calls: int = FIRST_CALLS
    last_calls: int = LAST_CALLS
    simulations: int = field(default=0, init=False)

    def at(self, setting: Setting, count: int, seed: int | None = None) -> Figures:
        """A setting under so many calls; the same ones for every setting."""
        calls, sent_us = self.demand.traffic(count, self.seed if seed is None else seed)
        host = host_settings(with_setting(self.service, setting))
        self.simulations += 1
        found = open_loop(
            calls, sent_us, self.step_time, limits_of(host), host.policy, jitter=self.jitter, seed=self.seed
        )
        return figures(found, calls, self.demand)


def is_sound(setting: Setting) -> bool:
    """Whether a step has a token for each text and room for a prompt's next block (as the service file demands)."""
    return setting.chunk_tokens >= setting.max_sequences + KV_BLOCK_TOKENS - 1


def best_first(candidates: Iterable[Candidate], present: Setting) -> list[Candidate]:
    """In the order in which they are wanted: highest goodput; of those that tie, lowest TTFT p99; of those that tie again,
    the smallest cache, and then what changes least.
    """
    left, ordered = list(candidates), []
    while left:
        most = max(one.predicted.goodput_per_s for one in left)
        tied = [one for one in left if one.predicted.goodput_per_s >= most * (1 - GOODPUT_TIE)]
        least = min(_ttft_us(one) for one in tied)
        tied = [one for one in tied if _ttft_us(one) <= least * (1 + TTFT_TIE)]
        best = min(tied, key=lambda one: (one.setting.kv_blocks, _changes(one.setting, present), _ttft_us(one)))
        left.remove(best)
        ordered.append(best)
    return ordered


def _ttft_us(candidate: Candidate) -> float:
    return candidate.predicted.ttft_p99_us or float("inf")


def _changes(setting: Setting, present: Setting) -> int:
    return sum(getattr(setting, name) != getattr(present, name) for name in Setting.__dataclass_fields__)


def search(
    predictor: Predictor,
    *,
    most_blocks: int,
    out_of_time: Callable[[], bool] = lambda: False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Candidate]:
    """The best settings, best first; the present one is looked at like any other.

    Args:
        predictor: the simulator.
        most_blocks: no setting has a larger cache.
        out_of_time: asked before each simulation but the first ones; when true, the search ends with what it has.
        on_progress: told what is happening.
    """
    present = setting_of(predictor.service)

    def looked(settings: Iterable[Setting], count: int) -> list[Candidate]:
        found: list[Candidate] = []
        for setting in dict.fromkeys(settings):
            if found and out_of_time():
                break
            found.append(Candidate(setting, predictor.at(setting, count)))
        return best_first(found, present)

    share = present.batch_kept_share
    first = [
        present,
        *(Setting(chunk, seats, most_blocks, share) for seats in _with(SEATS, present.max_sequences)
          for chunk in _with(CHUNKS, present.chunk_tokens)),
    ]  # fmt: skip
    found = looked(filter(is_sound, first), predictor.first_calls)
    on_progress(f"{predictor.simulations} settings simulated, by tokens of a step and seats; best: {found[0].setting}")
    blocks = sorted({*(round(part * most_blocks) for part in KV_PARTS), most_blocks} - {0})
    shares = _with(SHARES, share) if predictor.demand.batch_share else [share]
    varied = [
        Setting(one.setting.chunk_tokens, one.setting.max_sequences, of_cache, kept)
        for one in found[:KEPT]
        for of_cache in blocks
        for kept in shares
        if of_cache * kept >= 1
    ]
    found = looked([present, *varied], predictor.first_calls)
    on_progress(f"{predictor.simulations} simulations, with the cache and its split; best: {found[0].setting}")
    finalists = of_different_kind(found, present, FINALISTS)
    return looked(
        [present, *finalists, *(replace(one, kv_blocks=most_blocks) for one in finalists)], predictor.last_calls
    )


def of_different_kind(found: Sequence[Candidate], present: Setting, count: int) -> list[Setting]:
    """The present setting, and the first ones after it that the simulator tells apart from it and from each other."""
    chosen = [one for one in found if one.setting == present]
    for one in found:
        if len(chosen) < count and all(one.predicted != other.predicted for other in chosen):
            chosen.append(one)
    return [one.setting for one in chosen]


def _with(values: Sequence[Number], present: Number) -> list[Number]:
    return sorted(set(values) | {present})
