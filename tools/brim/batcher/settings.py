"""What a configuration says about batching, as the simulator needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brim.batcher.queue import QueuePolicy, TimeoutAction
from brim.batcher.rule import LaunchRule
from brim.errors import InputError
from brim.limits import BATCH_LIMIT
from brim.units import US_PER_S

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

MOST_INSTANCES = 1024
LONGEST_DELAY_US = 86_400 * US_PER_S
ENSEMBLE = "ensemble"
CPU_DEFAULT_INSTANCES = {"onnxruntime": 2, "tensorflow": 2}
"""Instances of a KIND_CPU group without a count (core ``model_config_utils.cc``, ``SetDefaultInstanceCount``)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The batcher of one model.

    Attributes:
        max_rows: most rows of a batch, ``max_batch_size``; 1 for a model without a batch dimension.
        batches: whether there is dynamic batching; without it every request is a batch, and there is no queue policy.
        preferred: preferred sizes in rows; empty means ``[max_rows]``.
        delay_us: ``max_queue_delay_microseconds``.
        instances: instances that execute.
        priority_levels: 0 for one queue without priorities.
        default_priority_level: of a request whose own priority is no level.
        default_policy: of every level that has no policy of its own.
        level_policies: level -> its policy.
    """

    max_rows: int
    batches: bool = True
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    instances: int = 1
    priority_levels: int = 0
    default_priority_level: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, all faults at once.

        Raises:
            InputError: see ``faults``.
        """
        faults = list(self._faults())
        if faults:
            raise InputError("; ".join(faults), hint="`brim lint` shows each fault of a configuration with its place")

    def _faults(self) -> Iterator[str]:
        if not 1 <= self.max_rows <= BATCH_LIMIT:
            yield f"max_batch_size is {self.max_rows}; the project's limit is 1..{BATCH_LIMIT} rows a batch"
        wrong = sorted({size for size in self.preferred if not 1 <= size <= self.max_rows})
        if wrong:
            yield f"preferred_batch_size holds {wrong}; sizes lie in 1..{self.max_rows} (max_batch_size)"
        if not 0 <= self.delay_us <= LONGEST_DELAY_US:
            yield f"max_queue_delay_microseconds is {self.delay_us}; 0..{LONGEST_DELAY_US} can be simulated"
        if not 1 <= self.instances <= MOST_INSTANCES:
            yield f"there are {self.instances} instances; 1..{MOST_INSTANCES} can be simulated"
        if self.priority_levels and not 1 <= self.default_priority_level <= self.priority_levels:
            yield (
                f"default_priority_level is {self.default_priority_level}; "
                f"levels lie in 1..{self.priority_levels} (priority_levels)"
            )
        wrong = sorted(level for level in self.level_policies if not 1 <= level <= self.priority_levels)
        if self.priority_levels and wrong:
            yield f"priority_queue_policy has keys {wrong}; levels lie in 1..{self.priority_levels} (priority_levels)"

    @property
    def rule(self) -> LaunchRule:
        """The launch rule of these settings."""
        return LaunchRule(self.max_rows, tuple(sorted(set(self.preferred))) or (self.max_rows,), self.delay_us)

    @property
    def prefetches(self) -> bool:
        """Whether payloads are built ahead while every instance is busy. Any queue policy, or levels, switches that off."""
        return not self.priority_levels and not self.default_policy.bounds_anything

    def level(self, priority: int) -> int:
        """The level of a request: its own where there is such a level, else the default one."""
        if not self.priority_levels:
            return 0
        return priority if 1 <= priority <= self.priority_levels else self.default_priority_level


def settings_of(config: ModelConfig, *, instances: int | None = None) -> Settings:
    """Read a configuration.

    Args:
        config: the parsed file.
        instances: instead of what its instance groups say.

    Raises:
        InputError: it has another scheduler than the dynamic batcher, or values that Triton refuses.
    """
    for kind, present in (
        ("an ensemble", config.HasField("ensemble_scheduling") or config.platform == ENSEMBLE),
        ("a sequence model", config.HasField("sequence_batching")),
    ):
        if present:
            raise InputError(
                f"{config.name or 'the model'} is {kind}: the simulator knows the dynamic batcher only",
                hint="simulate the models that the ensemble is made of"
                if kind == "an ensemble"
                else "its scheduler keeps sequences apart; measure it on a server instead (`brim measure`)",
            )
    batching = config.dynamic_batching
    batches = config.HasField("dynamic_batching")
    if batches and config.max_batch_size == 0:
        raise InputError(
            "dynamic_batching needs max_batch_size of 1 or more, got 0: without a batch dimension nothing is batched",
            hint="set max_batch_size, or remove dynamic_batching",
        )
    levels = batching.priority_levels
    return Settings(
        max_rows=config.max_batch_size or 1,
        batches=batches,
        preferred=tuple(batching.preferred_batch_size),
        delay_us=batching.max_queue_delay_microseconds,
        instances=_instances(config) if instances is None else instances,
        priority_levels=levels,
        default_priority_level=batching.default_priority_level,
        default_policy=_policy(batching.default_queue_policy),
        level_policies={level: _policy(policy) for level, policy in batching.priority_queue_policy.items()}
        if levels
        else {},
    )


def _policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        max_queue_size=policy.max_queue_size,
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        timeout_action=TimeoutAction.DELAY if policy.timeout_action == policy.DELAY else TimeoutAction.REJECT,
    )


def _instances(config: ModelConfig) -> int:
    """Instances on one GPU or CPU: an omitted group or count means one."""
    groups = config.instance_group
    total = 0
    for group in groups:
        fallback = CPU_DEFAULT_INSTANCES.get(config.backend, 1) if group.kind == group.KIND_CPU else 1
        if not group.passive:
            total += (group.count if group.count > 0 else fallback) * max(1, len(set(group.gpus)))
    return total if groups else 1
