"""QUE: priorities, timeouts and the bound of the queue."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelQueuePolicy

from brim.findings import Severity
from brim.lint.batcher import VALIDATOR, queue_policies
from brim.lint.rule import HEAD, Fault, rule
from brim.lint.subject import Model
from brim.units import US_PER_S

LONG_TIMEOUT_US = 600 * US_PER_S
SHORT_TIMEOUT_US = 1_000

_TWO = HEAD + "instance_group { count: 2 }\n"
_LEVELS = "dynamic_batching.priority_levels"


def _policy(text: str) -> str:
    return f"{_TWO}dynamic_batching {{ default_queue_policy {{ {text} }} }}\n"


@rule(
    "QUE001",
    Severity.ERROR,
    "default_priority_level is missing or outside 1..priority_levels.",
    why="Requests without a priority, or with one outside the range, fall to that level; 1 is the highest.",
    source=VALIDATOR,
    good=_TWO + "dynamic_batching { priority_levels: 3 default_priority_level: 2 }\n",
    bad=_TWO + "dynamic_batching { priority_levels: 3 }\n",
)
def default_level(model: Model) -> Iterator[Fault]:
    """Levels without a default inside them."""
    batching = model.config.dynamic_batching
    levels, default = batching.priority_levels, batching.default_priority_level
    if not levels or 1 <= default <= levels:
        return
    if default == 0:
        said = f"priority_levels is {levels} and default_priority_level is missing; it must lie in 1..{levels}"
        yield Fault(said, _LEVELS, f"add default_priority_level: {(levels + 1) // 2}")
    else:
        said = f"default_priority_level is {default}, outside 1..{levels} (priority_levels)"
        yield Fault(said, "dynamic_batching.default_priority_level", f"use 1..{levels}; 1 is the highest")


@rule(
    "QUE002",
    Severity.ERROR,
    "A queue policy is given for a level that does not exist.",
    why="Keys of priority_queue_policy are levels, 1..priority_levels.",
    source=VALIDATOR,
    good=_TWO
    + "dynamic_batching {\n  priority_levels: 3 default_priority_level: 2\n"
    + "  priority_queue_policy { key: 3 value { } }\n}\n",
    bad=_TWO
    + "dynamic_batching {\n  priority_levels: 3 default_priority_level: 2\n"
    + "  priority_queue_policy { key: 4 value { } }\n}\n",
)
def policy_level(model: Model) -> Iterator[Fault]:
    """A key outside 1..priority_levels."""
    batching = model.config.dynamic_batching
    for level in sorted(batching.priority_queue_policy):
        if batching.priority_levels and not 1 <= level <= batching.priority_levels:
            said = f"priority_queue_policy has key {level}, outside 1..{batching.priority_levels} (priority_levels)"
            yield Fault(said, f"dynamic_batching.priority_queue_policy[{level}]", "use an existing level")


@rule(
    "QUE003",
    Severity.WARNING,
    "Priority settings without priority_levels.",
    why="With 0 levels there is one queue with the default policy; the rest is ignored.",
    source="core `scheduler_utils.cc`, PriorityQueue",
    good=HEAD + "dynamic_batching { }\n",
    bad=HEAD + "dynamic_batching { default_priority_level: 1 }\n",
)
def priorities_without_levels(model: Model) -> Iterator[Fault]:
    """A default level or a policy for a level, and no levels."""
    batching = model.config.dynamic_batching
    if batching.priority_levels:
        return
    for name, given in (
        ("default_priority_level", bool(batching.default_priority_level)),
        ("priority_queue_policy", bool(batching.priority_queue_policy)),
    ):
        if given:
            yield Fault(f"{name} does nothing: priority_levels is 0", f"dynamic_batching.{name}", "set priority_levels")


@rule(
    "QUE004",
    Severity.WARNING,
    "allow_timeout_override without a default timeout.",
    why="A request may only shorten a timeout, and the default of 0 is none at all: the setting does nothing, but it "
    "switches prefetching off like the others.",
    source="core `scheduler_utils.cc`, PolicyQueue::Enqueue",
    good=_TWO + "dynamic_batching { }\n",
    bad=_policy("allow_timeout_override: true"),
)
def override_without_timeout(model: Model) -> Iterator[Fault]:
    """An override of a timeout that does not exist."""
    for path, policy in queue_policies(model):
        if policy.allow_timeout_override and not policy.default_timeout_microseconds:
            said = "allow_timeout_override can only shorten default_timeout_microseconds, which is 0: it does nothing"
            yield Fault(said, f"{path}.allow_timeout_override", "set default_timeout_microseconds, or remove it")


@rule(
    "QUE005",
    Severity.WARNING,
    "timeout_action without a timeout.",
    why="Without a timeout nothing expires.",
    source="core `scheduler_utils.cc`, PolicyQueue::ApplyPolicy",
    good=_TWO + "dynamic_batching { }\n",
    bad=_policy("timeout_action: DELAY"),
)
def action_without_timeout(model: Model) -> Iterator[Fault]:
    """DELAY while no timeout can pass."""
    for path, policy in queue_policies(model):
        if policy.timeout_action == ModelQueuePolicy.DELAY and not policy.default_timeout_microseconds:
            said = "timeout_action DELAY does nothing: default_timeout_microseconds is 0"
            yield Fault(said, f"{path}.timeout_action", "set default_timeout_microseconds, or remove it")


@rule(
    "QUE006",
    Severity.WARNING,
    "The queue bound is below the smallest preferred size.",
    why="The bound counts waiting requests, the preferred size rows; callers that send one row each are refused before "
    "the queue ever holds that many. An omitted list means max_batch_size.",
    source="core `scheduler_utils.cc`, PolicyQueue::Enqueue: refused when the waiting requests reach the bound",
    good=_TWO
    + "dynamic_batching {\n  preferred_batch_size: 100\n"
    + "  default_queue_policy { max_queue_size: 400 }\n}\n",
    bad=_TWO
    + "dynamic_batching {\n  preferred_batch_size: 100\n"
    + "  default_queue_policy { max_queue_size: 8 }\n}\n",
)
def bound_below_preferred(model: Model) -> Iterator[Fault]:
    """A bound under which single rows cannot fill a preferred batch."""
    batching = model.config.dynamic_batching
    sizes = [size for size in batching.preferred_batch_size if size > 0] or [model.config.max_batch_size]
    for path, policy in queue_policies(model):
        if 0 < policy.max_queue_size < min(sizes):
            said = (
                f"max_queue_size {policy.max_queue_size} is below the smallest preferred size {min(sizes)}:"
                " callers that send one row each never fill a preferred batch"
            )
            yield Fault(said, f"{path}.max_queue_size", f"use at least {min(sizes)}")


@rule(
    "QUE007",
    Severity.WARNING,
    "A queue timeout is below 1 ms or above 10 minutes.",
    why="The field counts microseconds; such a value was probably meant in milliseconds or nanoseconds.",
    source="inferred from the unit",
    good=_policy("timeout_action: DELAY default_timeout_microseconds: 1000000"),
    bad=_policy("timeout_action: DELAY default_timeout_microseconds: 500"),
)
def odd_timeout(model: Model) -> Iterator[Fault]:
    """A timeout that looks like another unit."""
    for path, policy in queue_policies(model):
        timeout_us = policy.default_timeout_microseconds
        where = f"{path}.default_timeout_microseconds"
        if 0 < timeout_us < SHORT_TIMEOUT_US:
            said = f"default_timeout_microseconds {timeout_us} is under a millisecond"
            yield Fault(said, where, f"if {timeout_us} ms was meant, write {timeout_us * 1000}")
        elif timeout_us > LONG_TIMEOUT_US:
            said = f"default_timeout_microseconds {timeout_us} is {timeout_us / US_PER_S:.6g} s"
            yield Fault(said, where, f"if nanoseconds were meant, write {timeout_us // 1000}")


@rule(
    "QUE008",
    Severity.WARNING,
    "The queue delay is not shorter than a queue timeout.",
    why="A lone request expires before its batch is launched.",
    source="core `dynamic_batch_scheduler.cc`, GetDynamicBatch",
    good=_TWO
    + "dynamic_batching {\n  max_queue_delay_microseconds: 2000\n"
    + "  default_queue_policy { max_queue_size: 400 }\n}\n",
    bad=_TWO
    + "dynamic_batching {\n  max_queue_delay_microseconds: 20000\n"
    + "  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 10000 }\n}\n",
    release="26.07",
)
def delay_beyond_timeout(model: Model) -> Iterator[Fault]:
    """``max_queue_delay_microseconds`` at or above a timeout."""
    delay_us = model.config.dynamic_batching.max_queue_delay_microseconds
    for path, policy in queue_policies(model):
        if 0 < policy.default_timeout_microseconds <= delay_us:
            said = (
                f"default_timeout_microseconds {policy.default_timeout_microseconds} does not exceed"
                f" max_queue_delay_microseconds {delay_us}: a lone request expires while it waits for company"
            )
            yield Fault(said, f"{path}.default_timeout_microseconds", "make the delay a small part of the timeout")
