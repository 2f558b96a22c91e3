"""BAT: the dynamic batcher, and what excludes it."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelQueuePolicy

from brim.findings import Severity
from brim.lint.fields import elements
from brim.lint.rule import HEAD, Fault, rule
from brim.lint.subject import Model
from brim.units import US_PER_S

VALIDATOR = "core `model_config_utils.cc`, ValidateModelConfig"
LONG_DELAY_US = US_PER_S
SHORT_DELAY_US = 50
"""A queue delay of 1..50 us was most likely meant in milliseconds."""

_SIZES = "dynamic_batching.preferred_batch_size"
_DELAY = "dynamic_batching.max_queue_delay_microseconds"


def queue_policies(model: Model) -> Iterator[tuple[str, ModelQueuePolicy]]:
    """The default queue policy and the one of each priority level, with their field paths."""
    batching = model.config.dynamic_batching
    if batching.HasField("default_queue_policy"):
        yield "dynamic_batching.default_queue_policy", batching.default_queue_policy
    for level in sorted(batching.priority_queue_policy):
        yield f"dynamic_batching.priority_queue_policy[{level}]", batching.priority_queue_policy[level]


@rule(
    "BAT001",
    Severity.ERROR,
    "preserve_ordering with more than one priority level.",
    why="Priorities overtake; order forbids that.",
    source=VALIDATOR,
    good=HEAD + "dynamic_batching { preserve_ordering: true }\n",
    bad=HEAD
    + "instance_group { count: 2 }\n"
    + "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }\n",
)
def ordering_and_priorities(model: Model) -> Iterator[Fault]:
    """``preserve_ordering`` beside ``priority_levels`` above 1."""
    batching = model.config.dynamic_batching
    if batching.preserve_ordering and batching.priority_levels > 1:
        said = f"preserve_ordering excludes priority_levels above 1, got {batching.priority_levels}"
        yield Fault(said, "dynamic_batching.priority_levels", "drop preserve_ordering, or use one level")


@rule(
    "BAT002",
    Severity.ERROR,
    "preserve_ordering with a queue policy that delays expired requests.",
    why="A delayed request is overtaken. Without a timeout the policy never acts, and the pair is legal.",
    source=VALIDATOR,
    good=HEAD + "dynamic_batching { preserve_ordering: true }\n",
    bad=HEAD
    + "instance_group { count: 2 }\ndynamic_batching {\n  preserve_ordering: true\n"
    + "  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000000 }\n}\n",
)
def ordering_and_delay(model: Model) -> Iterator[Fault]:
    """``preserve_ordering`` beside DELAY with a timeout."""
    if not model.config.dynamic_batching.preserve_ordering:
        return
    for path, policy in queue_policies(model):
        if policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds:
            said = (
                "preserve_ordering excludes timeout_action DELAY with a timeout"
                f" (default_timeout_microseconds {policy.default_timeout_microseconds})"
            )
            yield Fault(said, f"{path}.timeout_action", "use REJECT, or drop preserve_ordering")


@rule(
    "BAT003",
    Severity.ERROR,
    "A preferred batch size is 0 or negative.",
    why="A batch has at least one row.",
    source=VALIDATOR,
    good=HEAD + "dynamic_batching { preferred_batch_size: 100 }\n",
    bad=HEAD + "dynamic_batching { preferred_batch_size: 0 }\n",
)
def preferred_not_positive(model: Model) -> Iterator[Fault]:
    """A preferred size below 1."""
    for path, size in elements(_SIZES, model.config.dynamic_batching.preferred_batch_size):
        if size < 1:
            said = f"preferred_batch_size holds {size}; sizes lie in 1..max_batch_size"
            yield Fault(said, path, "remove it")


@rule(
    "BAT004",
    Severity.ERROR,
    "A preferred batch size is above max_batch_size.",
    why="Such a batch cannot be built; Triton refuses the model.",
    source=VALIDATOR,
    good=HEAD + "dynamic_batching { preferred_batch_size: 100 }\n",
    bad=HEAD + "dynamic_batching { preferred_batch_size: 128 }\n",
)
def preferred_above_maximum(model: Model) -> Iterator[Fault]:
    """A preferred size above ``max_batch_size``, which is above 0."""
    most = model.config.max_batch_size
    for path, size in elements(_SIZES, model.config.dynamic_batching.preferred_batch_size):
        if size > most > 0:
            said = f"preferred_batch_size holds {size}, max_batch_size is {most}"
            yield Fault(said, path, f"use sizes of at most {most}")


@rule(
    "BAT005",
    Severity.ERROR,
    "dynamic_batching with max_batch_size 0.",
    why="0 means that the model has no batch dimension, so nothing can be batched. Triton refuses preferred sizes then; the "
    "block alone it accepts in silence.",
    source=f"{VALIDATOR}; measured on 24.10",
    good=HEAD + "dynamic_batching { }\n",
    bad=HEAD.replace("100", "0") + "dynamic_batching { }\n",
)
def batching_without_batches(model: Model) -> Iterator[Fault]:
    """The block is present and ``max_batch_size`` is 0 or missing."""
    config = model.config
    if not config.HasField("dynamic_batching") or config.max_batch_size != 0:
        return
    sizes = list(config.dynamic_batching.preferred_batch_size)
    preferred = f" with preferred_batch_size {sizes}" if sizes else ""
    said = f"dynamic_batching{preferred} needs max_batch_size of 1 or more, got 0"
    path = f"{_SIZES}[0]" if sizes else "dynamic_batching"
    yield Fault(said, path, "set max_batch_size, or remove dynamic_batching (its queue policy acts only on batches)")


@rule(
    "BAT006",
    Severity.ERROR,
    "response_cache on a decoupled model.",
    why="The cache stores one answer a request; a decoupled model sends any number.",
    source=VALIDATOR,
    good=HEAD + "model_transaction_policy { decoupled: true }\n",
    bad=HEAD + "model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }\n",
)
def cache_and_decoupled(model: Model) -> Iterator[Fault]:
    """``response_cache.enable`` beside ``decoupled``."""
    if model.config.response_cache.enable and model.config.model_transaction_policy.decoupled:
        said = "response_cache.enable excludes model_transaction_policy.decoupled"
        yield Fault(said, "response_cache.enable", "switch one of them off")


@rule(
    "BAT007",
    Severity.ERROR,
    "response_cache with sequence batching.",
    why="The answer to a sequence request depends on what came before it.",
    source=VALIDATOR,
    good=HEAD + "sequence_batching { }\n",
    bad=HEAD + "sequence_batching { }\nresponse_cache { enable: true }\n",
)
def cache_and_sequences(model: Model) -> Iterator[Fault]:
    """``response_cache.enable`` beside ``sequence_batching``."""
    if model.config.response_cache.enable and model.config.HasField("sequence_batching"):
        yield Fault("response_cache.enable excludes sequence_batching", "response_cache.enable", "switch the cache off")


@rule(
    "BAT008",
    Severity.WARNING,
    "Preferred sizes are unsorted or repeated.",
    why="Triton keeps them as a sorted set: the order that is written has no meaning, and neither has a repetition.",
    source="core `dynamic_batch_scheduler.cc`, Create",
    good=HEAD + "dynamic_batching { preferred_batch_size: 100 }\n",
    bad=HEAD + "dynamic_batching { preferred_batch_size: [ 100, 100 ] }\n",
)
def preferred_order(model: Model) -> Iterator[Fault]:
    """A preferred list that is not strictly increasing."""
    sizes = list(model.config.dynamic_batching.preferred_batch_size)
    if sizes != sorted(set(sizes)):
        said = f"preferred_batch_size {sizes} is read as {sorted(set(sizes))}"
        yield Fault(said, _SIZES, f"write {sorted(set(sizes))}")


@rule(
    "BAT009",
    Severity.WARNING,
    "Several preferred sizes without a queue delay.",
    why="Without a delay nothing waits for a larger size, and what is queued is cut at a preferred size: 150 waiting rows "
    "with [ 32, 64 ] ran as 64, 64, 22, without the list as 100, 50.",
    source="measured on tritonserver 2.51.0 (24.10)",
    good=HEAD + "dynamic_batching { }\n",
    bad=HEAD + "dynamic_batching { preferred_batch_size: [ 50, 100 ] }\n",
)
def preferred_without_delay(model: Model) -> Iterator[Fault]:
    """Two or more preferred sizes and delay 0."""
    batching = model.config.dynamic_batching
    sizes = sorted(set(batching.preferred_batch_size))
    if len(sizes) > 1 and batching.max_queue_delay_microseconds == 0:
        said = (
            f"preferred_batch_size {sizes} with max_queue_delay_microseconds 0: batches are only cut, never waited for"
        )
        yield Fault(said, _SIZES, "drop the list, or set a delay and keep the largest size")


@rule(
    "BAT010",
    Severity.WARNING,
    "Several preferred sizes with a queue delay: the smallest rules.",
    why="As soon as the queue holds any preferred size the largest one reached is launched, though delay is left and a "
    "larger size could come; at moderate load that is the smallest.",
    source="core `dynamic_batch_scheduler.cc`, GetDynamicBatch; server issue 3116; measured on 24.10",
    good=HEAD + "dynamic_batching { preferred_batch_size: 100 max_queue_delay_microseconds: 2000 }\n",
    bad=HEAD + "dynamic_batching { preferred_batch_size: [ 50, 100 ] max_queue_delay_microseconds: 2000 }\n",
)
def smallest_preferred_rules(model: Model) -> Iterator[Fault]:
    """Two or more preferred sizes and a delay."""
    batching = model.config.dynamic_batching
    sizes = sorted(set(batching.preferred_batch_size))
    if len(sizes) > 1 and batching.max_queue_delay_microseconds:
        said = f"preferred_batch_size {sizes}: {sizes[0]} rows launch at once, without waiting for {sizes[-1]}"
        yield Fault(said, _SIZES, f"keep [ {sizes[-1]} ] if large batches are wanted")


@rule(
    "BAT011",
    Severity.WARNING,
    "The queue delay is above one second.",
    why="The field counts microseconds. A lone caller waits for all of it; a value from nanoseconds is 1,000 times too large.",
    source="inferred from the unit",
    good=HEAD + "dynamic_batching { max_queue_delay_microseconds: 2000 }\n",
    bad=HEAD + "dynamic_batching { max_queue_delay_microseconds: 2000000 }\n",
)
def long_delay(model: Model) -> Iterator[Fault]:
    """More than a second of delay."""
    delay_us = model.config.dynamic_batching.max_queue_delay_microseconds
    if delay_us > LONG_DELAY_US:
        said = f"max_queue_delay_microseconds {delay_us} is {delay_us / US_PER_S:g} s: a lone caller waits that long"
        yield Fault(said, _DELAY, f"if nanoseconds were meant, write {delay_us // 1000}")


@rule(
    "BAT012",
    Severity.WARNING,
    f"The queue delay is 1 to {SHORT_DELAY_US} microseconds.",
    why="That is less than a request takes to arrive; milliseconds were probably meant.",
    source="inferred from the unit",
    good=HEAD + "dynamic_batching { max_queue_delay_microseconds: 5000 }\n",
    bad=HEAD + "dynamic_batching { max_queue_delay_microseconds: 5 }\n",
)
def short_delay(model: Model) -> Iterator[Fault]:
    """A delay that cannot gather anything."""
    delay_us = model.config.dynamic_batching.max_queue_delay_microseconds
    if 1 <= delay_us <= SHORT_DELAY_US:
        said = f"max_queue_delay_microseconds {delay_us} is {delay_us} us, too short to gather a batch"
        yield Fault(said, _DELAY, f"if {delay_us} ms was meant, write {delay_us * 1000}; else write 0")


@rule(
    "BAT013",
    Severity.WARNING,
    "A variable-size input without allow_ragged_batch: only equal neighbours share a batch.",
    why="Only consecutive requests of equal shape are batched: lengths A B A B A B A B ran as 8 executions.",
    source="core `backend_model.cc`, SetConfiguredScheduler; measured on 24.10",
    good=HEAD + 'dynamic_batching { }\ninput { name: "x" data_type: TYPE_INT64 dims: 16 }\n',
    bad=HEAD + 'dynamic_batching { }\ninput { name: "x" data_type: TYPE_INT64 dims: -1 }\n',
)
def equal_shapes_only(model: Model) -> Iterator[Fault]:
    """A variable dimension that is not ragged, under the dynamic batcher."""
    if not model.config.HasField("dynamic_batching"):
        return
    for path, tensor in elements("input", model.config.input):
        if -1 in tensor.dims and not tensor.allow_ragged_batch:
            said = f"input {tensor.name!r} has a variable size: requests of different shapes do not share a batch"
            hint = "fix the size, pad to a few lengths, or use allow_ragged_batch with a model that takes it"
            yield Fault(said, f"{path}.dims", hint)


@rule(
    "BAT014",
    Severity.WARNING,
    "Optional inputs under the dynamic batcher.",
    why="Only requests with the same set of inputs share a batch.",
    source="core `scheduler_utils.cc`, RequiredEqualInputs",
    good=HEAD + 'dynamic_batching { }\ninput { name: "x" data_type: TYPE_FP32 dims: 4 }\n',
    bad=HEAD + 'dynamic_batching { }\ninput { name: "x" data_type: TYPE_FP32 dims: 4 optional: true }\n',
)
def optional_inputs(model: Model) -> Iterator[Fault]:
    """An optional input beside ``dynamic_batching``."""
    if not model.config.HasField("dynamic_batching"):
        return
    for path, tensor in elements("input", model.config.input):
        if tensor.optional:
            said = f"input {tensor.name!r} is optional: requests with and without it do not share a batch"
            yield Fault(said, f"{path}.optional", "let every caller send it, with a neutral value")


@rule(
    "BAT015",
    Severity.WARNING,
    "response_cache gives callers what was the answer to another request.",
    why="What is looked up is a 64-bit hash of the model's name, its version and the bytes of the inputs, and nothing else. On a real "
    "server two rows of three numbers had the answer of three rows of two; who asked for one output left it alone for whoever "
    "asked for all; a request that had been refused with 400 got 200 without any output the second time; and a model that was "
    "loaded anew went on with the answers of the one before. Without --cache-config the setting is ignored in silence.",
    source="core `cache_manager.cc`, Hash and Insert; `dynamic_batch_scheduler.cc`; measured on 24.10",
    good=HEAD + "response_cache { enable: false }\n",
    bad=HEAD + "response_cache { enable: true }\n",
)
def cached_answers(model: Model) -> Iterator[Fault]:
    """``response_cache.enable`` on a model that may have one."""
    config = model.config
    if (
        config.response_cache.enable
        and not config.model_transaction_policy.decoupled
        and not config.HasField("sequence_batching")
    ):
        said = (
            "response_cache tells requests apart by the bytes of their inputs alone, and keeps errors as empty answers"
        )
        hint = "leave it out, and keep answers in the client, who knows what is the same; it also needs --cache-config=local,size=BYTES"
        yield Fault(said, "response_cache.enable", hint)
