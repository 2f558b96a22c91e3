"""TRI: defects of Triton itself that a configuration runs into, by release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType, ModelQueuePolicy

from brim.errors import InputError
from brim.findings import Severity
from brim.lint.batcher import queue_policies
from brim.lint.fields import elements
from brim.lint.instances import instance_count
from brim.lint.rule import HEAD, Check, Example, Fault, rule, warm_up
from brim.lint.subject import Model

RELEASES = tuple(
    f"{year}.{month:02d}" for year in (24, 25, 26) for month in range(1, 13) if (24, 10) <= (year, month) <= (26, 7)
)
"""Releases that the table knows: 24.10 was measured, core was read up to June 2026 (26.06)."""

STALL = "TRI001"
LATE_TIMEOUT = "TRI002"
CONSUMER_DRIFT = "TRI003"
UNKNOWN_FIELD = "TRI004"
EMPTY_AGENTS = "TRI005"
RAGGED_ROWS = "TRI006"
SHARED_FAILURE = "TRI007"
STRING_ROWS = "TRI008"
GENERATE_ERRORS = "TRI009"


@dataclass(frozen=True, slots=True)
class Affected:
    """The releases that have a defect: from ``first`` to ``last``, both included."""

    first: str
    last: str

    def has(self, release: str) -> bool:
        """Whether ``release`` has the defect."""
        return self.first <= release <= self.last


DEFECTS: dict[str, Affected] = {
    STALL: Affected("24.10", RELEASES[-1]),
    LATE_TIMEOUT: Affected("24.10", RELEASES[-1]),
    CONSUMER_DRIFT: Affected("24.10", "26.06"),
    UNKNOWN_FIELD: Affected("24.10", "24.10"),
    EMPTY_AGENTS: Affected("24.10", RELEASES[-1]),
    RAGGED_ROWS: Affected("24.10", RELEASES[-1]),
    SHARED_FAILURE: Affected("24.10", RELEASES[-1]),
    STRING_ROWS: Affected("24.10", RELEASES[-1]),
    GENERATE_ERRORS: Affected("24.10", RELEASES[-1]),
}
"""Defect to the releases that have it. A defect whose repair is not known goes up to the last known release."""


def check_release(release: str) -> None:
    """Make sure that the table knows ``release``.

    Raises:
        InputError: it does not; the message lists the releases that it knows.
    """
    if release not in RELEASES:
        raise InputError(
            f"Triton release {release!r} is unknown; known: {', '.join(RELEASES)}",
            hint="releases are YY.MM, as in the container tag 24.10-py3",
        )


def _defect(
    code: str, severity: Severity, title: str, why: str, source: str, good: Example, bad: Example
) -> Callable[[Check], Check]:
    """Register a rule that is silent for releases without the defect."""
    affected = DEFECTS[code]

    def register(check: Check) -> Check:
        def guarded(model: Model) -> Iterator[Fault]:
            if affected.has(model.workspace.release):
                yield from check(model)

        shown = f"{source}. Releases {affected.first} to {affected.last}."
        rule(code, severity, title, why=why, source=shown, good=good, bad=bad)(guarded)
        return check

    return register


def _switches(model: Model) -> list[tuple[str, str]]:
    """Settings that turn prefetching off, with their paths (core ``scheduler_utils.cc``, PriorityQueue)."""
    batching = model.config.dynamic_batching
    found = []
    if batching.priority_levels:
        found.append(("priority_levels", "dynamic_batching.priority_levels"))
    policy, path = batching.default_queue_policy, "dynamic_batching.default_queue_policy"
    for name in ("default_timeout_microseconds", "allow_timeout_override", "max_queue_size"):
        if not batching.priority_levels and getattr(policy, name):
            found.append((name, f"{path}.{name}"))
    return found


_BOUNDED = "dynamic_batching { default_queue_policy { max_queue_size: 400 } }\n"


@_defect(
    STALL,
    Severity.WARNING,
    "A queue policy on exactly one instance: the batcher stalls for up to 500 ms.",
    "default_timeout_microseconds, allow_timeout_override, max_queue_size and priority_levels switch prefetching off; "
    "the batcher then misses the wake-up when its only instance gets free and sleeps out a 500 ms tick. 5 ms batches, "
    "100 callers: 5,736 answers a second without the bound, 416 to 2,395 with it, p99 514 ms. Two instances hide it.",
    "core `dynamic_batch_scheduler.cc`, WaitForPayloadSlotAvailable; measured on 24.10",
    HEAD + "instance_group { count: 2 }\n" + _BOUNDED,
    HEAD + _BOUNDED,
)
def bounded_queue_stall(model: Model) -> Iterator[Fault]:
    """Any of the four settings while one instance serves."""
    switches = _switches(model)
    if switches and instance_count(model) == 1:
        names = ", ".join(name for name, _ in switches)
        said = f"{names} with one instance: the batcher can sleep 500 ms while requests wait"
        hint = "hold the bound in the gateway and leave the queue policy out, or use two instances"
        yield Fault(said, switches[0][1], hint)


@_defect(
    LATE_TIMEOUT,
    Severity.WARNING,
    "Queue timeouts are answered up to 500 ms late.",
    "Expired requests are looked for when a batch is formed or every 500 ms while all instances are busy, so a caller with a "
    "shorter timeout hears of it late.",
    "core `dynamic_batch_scheduler.cc`, WaitForPayloadSlotAvailable; measured on 24.10",
    HEAD + "instance_group { count: 2 }\n" + _BOUNDED,
    HEAD + "instance_group { count: 2 }\n"
    "dynamic_batching { default_queue_policy { default_timeout_microseconds: 200000 } }\n",
)
def late_timeout(model: Model) -> Iterator[Fault]:
    """REJECT with a timeout."""
    for path, policy in queue_policies(model):
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.REJECT:
            said = f"a request that expires after {policy.default_timeout_microseconds} us may be told 500000 us later"
            hint = "keep deadlines in the gateway, and give callers a timeout of their own"
            yield Fault(said, f"{path}.default_timeout_microseconds", hint)


@_defect(
    CONSUMER_DRIFT,
    Severity.WARNING,
    "A queue policy with a queue delay: throughput sinks over minutes.",
    "When queued payloads are merged, which a queue delay allows, the count of waiting instances is not given back; with "
    "prefetching off the batcher waits for that count and comes to a halt until the model is loaded again.",
    "core `instance_queue.cc`, Dequeue; server issue 8870, repaired by core pull request 509",
    HEAD + "instance_group { count: 2 }\n" + _BOUNDED,
    HEAD
    + "instance_group { count: 2 }\n"
    + _BOUNDED.replace("{ default", "{ max_queue_delay_microseconds: 2000 default", 1),
)
def consumer_drift(model: Model) -> Iterator[Fault]:
    """A setting that turns prefetching off beside a delay, where batches can merge."""
    switches = _switches(model)
    delay_us = model.config.dynamic_batching.max_queue_delay_microseconds
    if switches and delay_us and model.config.max_batch_size > 1:
        names = ", ".join(name for name, _ in switches)
        said = f"{names} with max_queue_delay_microseconds {delay_us}: merged batches starve the batcher over time"
        yield Fault(said, "dynamic_batching.max_queue_delay_microseconds", "leave out the delay or the queue policy")


@_defect(
    UNKNOWN_FIELD,
    Severity.ERROR,
    "The configuration uses a field that this release does not know.",
    "The whole file is refused.",
    "every field of the schema was tried on tritonserver 2.51.0 (24.10)",
    HEAD,
    HEAD
    + 'model_metrics {\n  metric_control { metric_identifier { family: "f" } histogram_options { buckets: 1 } }\n}\n',
)
def newer_field(model: Model) -> Iterator[Fault]:
    """``model_metrics`` and ``ensemble_scheduling.max_inflight_requests``."""
    for path in ("model_metrics", "ensemble_scheduling.max_inflight_requests"):
        if path in model.parsed.positions:
            yield Fault(
                f"Triton {model.workspace.release} has no field {path}", path, "remove it, or use a newer release"
            )


@_defect(
    EMPTY_AGENTS,
    Severity.ERROR,
    "An empty model_repository_agents block kills the server.",
    "tritonserver reads the last agent of the list without looking whether there is one, and dies of a segmentation fault.",
    "measured on tritonserver 2.51.0 (24.10); core `model_repository_manager.cc`, unchanged in June 2026",
    HEAD,
    HEAD + "model_repository_agents { }\n",
)
def empty_agents(model: Model) -> Iterator[Fault]:
    """``model_repository_agents`` without agents."""
    config = model.config
    if config.HasField("model_repository_agents") and not config.model_repository_agents.agents:
        said = "model_repository_agents is empty: the server crashes while it reads this file"
        yield Fault(said, "model_repository_agents", "remove the block")


_RAGGED = (
    'input { name: "ids" data_type: TYPE_INT64 dims: -1 allow_ragged_batch: true }\n'
    'batch_input { target_name: "n" data_type: TYPE_INT32 source_input: "ids" }\n'
)


@_defect(
    RAGGED_ROWS,
    Severity.WARNING,
    "Ragged batches mix the rows of callers when a row has a bad length.",
    "A row of length 0 gives later rows uninitialised memory with a 200; with two ragged inputs, lengths that make up for "
    "each other mix neighbours' data in silence.",
    "measured on 24.10",
    HEAD + _RAGGED.replace(" allow_ragged_batch: true", ""),
    HEAD + _RAGGED,
)
def ragged_rows(model: Model) -> Iterator[Fault]:
    """Ragged inputs that a ``batch_input`` describes."""
    described = {name for batch in model.config.batch_input for name in batch.source_input}
    inputs = elements("input", model.config.input)
    ragged = [(path, t.name) for path, t in inputs if t.allow_ragged_batch and t.name in described]
    if ragged:
        names = ", ".join(repr(name) for _, name in ragged)
        said = f"ragged {names}: a row of length 0 corrupts its neighbours' answers"
        if len(ragged) > 1:
            said += ", and lengths that contradict each other mix their data"
        hint = "check lengths before the batcher, for each request"
        yield Fault(said, f"{ragged[0][0]}.allow_ragged_batch", hint)


@_defect(
    SHARED_FAILURE,
    Severity.WARNING,
    "One bad row fails every caller in its batch.",
    "The native ONNX Runtime backend answers every row of a failed batch with the same error, which quotes the offender's "
    "value: a shape [0, n], or an index outside a table. Nothing retries the others.",
    "measured on 24.10",
    'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 0\n',
    'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 100\ndynamic_batching { }\n'
    'input { name: "ids" data_type: TYPE_INT64 dims: 4 }\n'
    + "".join(warm_up(size, "ids", "data_type: TYPE_INT64 dims: 4 zero_data: true") for size in (1, 100)),
)
def shared_failure(model: Model) -> Iterator[Fault]:
    """Integer or variable-size inputs on the native backend, under the dynamic batcher."""
    config = model.config
    if model.backend != "onnxruntime" or config.max_batch_size < 2 or not config.HasField("dynamic_batching"):
        return
    indexed = [tensor.name for tensor in config.input if tensor.data_type in _INTEGERS or -1 in tensor.dims]
    if indexed:
        names = ", ".join(map(repr, indexed))
        said = f"a bad value or size in {names} fails the whole batch on backend onnxruntime"
        hint = "guard the values in the graph, or check each request before it joins a batch"
        yield Fault(said, "dynamic_batching", hint)


_INTEGERS = {DataType.TYPE_INT8, DataType.TYPE_INT16, DataType.TYPE_INT32, DataType.TYPE_INT64}
_INTEGERS |= {DataType.TYPE_UINT8, DataType.TYPE_UINT16, DataType.TYPE_UINT32, DataType.TYPE_UINT64}


@_defect(
    STRING_ROWS,
    Severity.WARNING,
    "A malformed string input fails every caller in its batch.",
    "A BYTES element whose length prefix lies passes the server's checks; on the python backend every row of the batch gets "
    "400, quoting the offender's length.",
    "measured on 24.10",
    HEAD + 'input { name: "text" data_type: TYPE_STRING dims: 1 }\n',
    HEAD + 'dynamic_batching { }\ninput { name: "text" data_type: TYPE_STRING dims: 1 }\n',
)
def string_rows(model: Model) -> Iterator[Fault]:
    """TYPE_STRING on the python backend, under the dynamic batcher."""
    if model.backend != "python" or not model.config.HasField("dynamic_batching") or model.config.max_batch_size < 2:
        return
    for path, tensor in elements("input", model.config.input):
        if tensor.data_type == DataType.TYPE_STRING:
            said = f"input {tensor.name!r}: one malformed string fails every request in its batch"
            hint = "check the length prefixes in the gateway, or decode each request by itself"
            yield Fault(said, f"{path}.data_type", hint)


@_defect(
    GENERATE_ERRORS,
    Severity.WARNING,
    "/generate hides the errors of a decoupled model and does not notice callers who leave.",
    "Every error becomes 400, refusals included, and generation goes on after the caller has gone.",
    "measured on 24.10",
    HEAD,
    HEAD + "model_transaction_policy { decoupled: true }\n",
)
def generate_errors(model: Model) -> Iterator[Fault]:
    """Decoupled models, unless the configuration is refused for a response cache."""
    if model.config.model_transaction_policy.decoupled and not model.config.response_cache.enable:
        said = "on /generate an error of this decoupled model becomes 400, and a caller who leaves is not noticed"
        hint = "use gRPC streaming, or answer through the gateway"
        yield Fault(said, "model_transaction_policy.decoupled", hint)
