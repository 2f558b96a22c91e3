"""One candidate: what tuning may change in a service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brim.service.schema import Batching, Service
from brim.units import ms_to_us, us_to_ms


@dataclass(frozen=True, slots=True)
class Setting:
    """Preferred sizes in rows (ascending, empty for none), the queue delay, and instances of the model."""

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    instances: int = 1

    @property
    def complexity(self) -> tuple[int, int, int, tuple[int, ...]]:
        """Less is simpler: fewer instances, then no or less delay, then no or fewer preferred sizes."""
        return self.instances, self.delay_us, len(self.preferred), self.preferred

    def __str__(self) -> str:
        """For people."""
        preferred = f"preferred {list(self.preferred)}" if self.preferred else "no preferred size"
        delay = f"delay {us_to_ms(self.delay_us):g} ms" if self.delay_us else "no delay"
        return f"{preferred}, {delay}, {self.instances} instance{'s' if self.instances > 1 else ''}"

    def as_json(self) -> dict[str, Any]:
        """The setting as it stands in files."""
        return {
            "preferred": list(self.preferred),
            "max_queue_delay_us": self.delay_us,
            "instances": self.instances,
        }


DEFAULT = Setting()
"""``dynamic_batching {}`` and one instance: serve what waits. Always measured, as what a choice has to beat."""


def setting_of(service: Service) -> Setting:
    """What the service file says now. Several instance groups count together."""
    batching = service.batching
    return Setting(
        batching.preferred, ms_to_us(batching.max_queue_delay_ms), sum(group.count for group in service.instances)
    )


def with_setting(service: Service, setting: Setting) -> Service:
    """The service under the setting, everything else as it is. Of several instance groups the first remains where their
    number changes. The default setting has no queue policy and no priorities either."""
    batching = (
        Batching()
        if setting == DEFAULT
        else service.batching.model_copy(
            update={"preferred": setting.preferred, "max_queue_delay_ms": us_to_ms(setting.delay_us)}
        )
    )
    instances = service.instances
    if setting.instances != sum(group.count for group in instances):
        instances = (instances[0].model_copy(update={"count": setting.instances}),)
    return service.model_copy(update={"batching": batching, "instances": instances})
