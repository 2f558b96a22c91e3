"""The configurations of a sweep: the model's own, with some settings changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.textformat import parse
from brim.errors import InputError
from brim.findings import Severity

MOST_CONFIGURATIONS = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration has other than the model's own; None where it stays as it stands.

    Attributes:
        instances: of each instance group.
        preferred: preferred batch sizes; an empty tuple for none.
        delay_us: the longest queue delay.
    """

    instances: int | None = None
    preferred: tuple[int, ...] | None = None
    delay_us: int | None = None

    def __str__(self) -> str:
        """For people."""
        parts = [
            f"{name} {value}"
            for name, value in (
                ("instances", self.instances),
                ("preferred", None if self.preferred is None else list(self.preferred)),
                ("delay_us", self.delay_us),
            )
            if value is not None
        ]
        return ", ".join(parts) or "as it stands"

    def as_json(self) -> dict[str, Any]:
        """The same as a dictionary."""
        return {**asdict(self), "preferred": None if self.preferred is None else list(self.preferred)}


def grid(
    instances: Sequence[int] = (), preferred: Sequence[tuple[int, ...]] = (), delays_us: Sequence[int] = ()
) -> list[Settings]:
    """Every combination; a setting without values stays as it stands.

    Raises:
        InputError: there are more than ``MOST_CONFIGURATIONS``.
    """
    as_it_stands = [None]
    found = [
        Settings(*values)
        for values in product(
            list(instances) or as_it_stands, list(preferred) or as_it_stands, list(delays_us) or as_it_stands
        )
    ]
    if len(found) > MOST_CONFIGURATIONS:
        raise InputError(
            f"{len(found)} configurations, at most {MOST_CONFIGURATIONS} are swept", hint="leave some values out"
        )
    return found


def configured(config: ModelConfig, settings: Settings) -> ModelConfig:
    """A copy of a configuration with these settings.

    Raises:
        InputError: they do not fit it: every fault at once.
    """
    faults = []
    largest = config.max_batch_size
    batches = settings.preferred is not None or settings.delay_us is not None
    if batches and not config.HasField("dynamic_batching"):
        faults.append("preferred sizes and a delay are settings of dynamic_batching, which the model does not have")
    if settings.instances is not None and settings.instances < 1:
        faults.append(f"instances {settings.instances}: must be 1 or more")
    if settings.delay_us is not None and settings.delay_us < 0:
        faults.append(f"delay_us {settings.delay_us}: must be 0 or more")
    faults += [
        f"preferred {size}: must be 1 to max_batch_size {largest}"
        for size in settings.preferred or ()
        if not 1 <= size <= largest
    ]
    if faults:
        raise InputError(f"{config.name}: {'; '.join(faults)}", hint="leave these values out")
    made = ModelConfig()
    made.CopyFrom(config)
    if settings.instances is not None:
        for group in made.instance_group or [made.instance_group.add()]:
            group.count = settings.instances
    if settings.preferred is not None:
        del made.dynamic_batching.preferred_batch_size[:]
        made.dynamic_batching.preferred_batch_size.extend(settings.preferred)
    if settings.delay_us is not None:
        made.dynamic_batching.max_queue_delay_microseconds = settings.delay_us
    return made


def read_config(path: Path) -> ModelConfig:
    """A model's ``config.pbtxt``.

    Raises:
        InputError: it cannot be read, or has faults: all of them at once.
    """
    try:
        parsed = parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="`brim config NAME --write` makes it") from error
    faults = [finding.render() for finding in parsed.findings if finding.severity is Severity.ERROR]
    if parsed.message is None or faults:
        raise InputError("\n".join(faults) or f"{path}: no configuration", hint="`brim lint` explains each")
    return parsed.message
