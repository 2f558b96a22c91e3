"""One candidate: what tuning may change in a service."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from brim.runtime.padding import PaddingCost
from brim.service.schema import Batching, Padding, Service
from brim.units import ms_to_us, us_to_ms

ONE_RUN_US = 1e9
"""A fixed part that no padding outweighs."""
UNCUT = PaddingCost(fixed_us=ONE_RUN_US, per_token_us=1.0)
"""Rows of unequal length are never cut into sub-batches: all of a batch are padded to the longest."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried.

    Attributes:
        preferred: preferred batch sizes in rows, ascending; empty for none.
        delay_us: queue delay.
        instances: of the model.
        threads: of ONNX Runtime in each instance; None: as the service file has it.
        padding: cost by which a batch of unequal lengths is cut; None: as the service file has it.
    """

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    instances: int = 1
    threads: int | None = None
    padding: PaddingCost | None = None

    @property
    def complexity(self) -> tuple[int, int, int, int, tuple[int, ...], int]:
        """Less is simpler: fewer instances, then no or less delay, then no other runtime, then no or fewer preferred sizes."""
        others = (self.threads is not None) + (self.padding is not None)
        return self.instances, self.delay_us, others, len(self.preferred), self.preferred, self.threads or 0

    def __str__(self) -> str:
        """For people."""
        preferred = f"preferred {list(self.preferred)}" if self.preferred else "no preferred size"
        delay = f"delay {us_to_ms(self.delay_us):g} ms" if self.delay_us else "no delay"
        said = f"{preferred}, {delay}, {self.instances} instance{'s' if self.instances > 1 else ''}"
        if self.threads is not None:
            said += f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return said if self.padding is None else f"{said}, {padding_text(self.padding)}"

    def as_json(self) -> dict[str, Any]:
        """The setting as it stands in files; a null is what the service file says."""
        return {
            "preferred": list(self.preferred),
            "max_queue_delay_us": self.delay_us,
            "instances": self.instances,
            "threads": self.threads,
            "padding": None if self.padding is None else asdict(self.padding),
        }


DEFAULT = Setting()
"""``dynamic_batching {}`` and one instance: serve what waits. Always measured, as what a choice has to beat."""


def padding_text(cost: PaddingCost) -> str:
    """A cost in words."""
    if cost == UNCUT:
        return "no sub-batches"
    bound = f", {cost.max_tokens} tokens a run at most" if cost.max_tokens else ""
    return f"sub-batches by {cost.fixed_us:.4g} us + {cost.per_token_us:.4g} us a token{bound}"


def padding_block(cost: PaddingCost) -> dict[str, float | int]:
    """The ``padding:`` block of a cost: what ``brim bench fit-padding`` would print, without what is assumed anyway."""
    block: dict[str, float | int] = {
        "fixed_us": round(cost.fixed_us),
        "per_token_us": float(f"{cost.per_token_us:.4g}"),
        "per_pair_us": float(f"{cost.per_pair_us:.3g}"),
        "max_tokens": cost.max_tokens,
    }
    return {key: value for key, value in block.items() if value or key in ("fixed_us", "per_token_us")}


def rounded(cost: PaddingCost) -> PaddingCost:
    """A cost as it stands in a service file, so that what is measured is what would be written."""
    return PaddingCost(**Padding(**padding_block(cost)).model_dump())  # type: ignore[arg-type]


KEPT = ("preserve_ordering", "in_flight_bound", "batch_time")
"""Keys of ``batching`` that the default setting has, too: no part of when a batch starts."""


def setting_of(service: Service) -> Setting:
    """What the service file says now. Several instance groups count together."""
    batching = service.batching
    return Setting(
        batching.preferred, ms_to_us(batching.max_queue_delay_ms), sum(group.count for group in service.instances)
    )


def with_setting(service: Service, setting: Setting) -> Service:
    """The service under the setting, everything else as it is. Of several instance groups the first remains where their
    number changes. The default setting has no queue policy and no priorities either; callers who count on the order of
    answers keep it."""
    batching = (
        Batching(**{key: getattr(service.batching, key) for key in KEPT})
        if setting == DEFAULT
        else service.batching.model_copy(
            update={"preferred": setting.preferred, "max_queue_delay_ms": us_to_ms(setting.delay_us)}
        )
    )
    instances = service.instances
    if setting.instances != sum(group.count for group in instances):
        instances = (instances[0].model_copy(update={"count": setting.instances}),)
    runtime = service.runtime
    if setting.threads is not None:
        runtime = runtime.model_copy(update={"threads": setting.threads})
    if setting.padding is not None:
        runtime = runtime.model_copy(update={"padding": Padding(**asdict(setting.padding))})
    return service.model_copy(update={"batching": batching, "instances": instances, "runtime": runtime})
