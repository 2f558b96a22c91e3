"""Triton's statistics of a model: read at two moments, their difference is what happened between them.

Source: ``GET /v2/models/M/stats`` (gRPC ``ModelStatistics``), described in docs/protocol/extension_statistics.md of
triton-inference-server/server. Words: an *inference* is one row, an *execution* is one batch run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tritonclient import grpc as triton_grpc

from brim.errors import CouldNotTell
from brim.limits import BATCH_LIMIT
from brim.units import US_PER_S, ns_to_us

PHASES = ("compute_input", "compute_infer", "compute_output")
SETTLE_POLL_S = 0.1


class CountersWentBackwards(CouldNotTell):
    """A counter is smaller than before: the server or the model was started anew in between."""

    code = "counters_went_backwards"


class UnreadableStatistics(CouldNotTell):
    """The server's statistics have another form than Triton's."""

    code = "unreadable_statistics"


@dataclass(frozen=True, slots=True)
class Sized:
    """Executions of one batch size: how many, and the time that they took in each phase."""

    executions: int
    input_ns: int
    infer_ns: int
    output_ns: int

    @property
    def busy_ns(self) -> int:
        """Time in which an instance was taken."""
        return self.input_ns + self.infer_ns + self.output_ns


@dataclass(frozen=True, slots=True)
class Counters:
    """The running totals of one model version."""

    inferences: int
    executions: int
    succeeded: int
    failed: int
    queued: int
    queue_ns: int
    by_size: Mapping[int, Sized]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The running totals of a model at one moment.

    Attributes:
        taken_us: monotonic time on this machine.
        versions: version name -> its totals.
        failures: reason -> failed requests, from the metrics page; None when it was not read.
    """

    taken_us: int
    versions: Mapping[str, Counters]
    failures: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What a model did between two snapshots, all versions together.

    Attributes:
        executions_by_size: batch size -> executions of that size.
        inferences: rows answered.
        executions: batch runs. With a response cache some inferences have none.
        mean_batch: inferences / executions; None without an execution.
        fill: mean_batch / ``BATCH_LIMIT``; None without an execution.
        wall_us: the time that ``duty`` is taken over.
        instances: instances of the model.
        duty: time in which instances were taken / (wall time x instances). Not clamped: what was running at either end
            is counted whole when it ends, so a short time can give a little above 1. None without wall time.
        queue_us: mean queue time of a request; None when none was queued.
        compute_us: mean time of an execution in each of ``PHASES``; empty without an execution.
        execution_us_by_size: batch size -> mean time of an execution of that size, all phases.
        succeeded: requests that were answered.
        failed: requests that failed, as the statistics count them: an item that a python model refuses by itself counts
            as answered, a request refused by a full queue is not counted at all.
        failures: reason -> failed requests, from the metrics page; None when it was not read.
    """

    executions_by_size: dict[int, int]
    inferences: int
    executions: int
    mean_batch: float | None
    fill: float | None
    wall_us: int
    instances: int
    duty: float | None
    queue_us: int | None
    compute_us: dict[str, int]
    execution_us_by_size: dict[int, int]
    succeeded: int
    failed: int
    failures: dict[str, int] | None


def snapshot(client: Any, model: str, *, metrics: str | None = None) -> Snapshot:
    """Read a model's totals.

    Args:
        client: a tritonclient HTTP or gRPC client.
        model: name of the model; all its versions are read.
        metrics: text of the metrics page read at the same time, for failures by reason.

    Raises:
        UnreadableStatistics: the answer has another form.
    """
    over_grpc = isinstance(client, triton_grpc.InferenceServerClient)
    document = client.get_inference_statistics(model, **({"as_json": True} if over_grpc else {}))
    versions = parse_statistics(document, model)
    failures = None if metrics is None else parse_failures(metrics, model)
    return Snapshot(time.monotonic_ns() // 1_000, versions, failures)


def settle(read: Callable[[], Snapshot], *, timeout_s: float) -> tuple[Snapshot, bool]:
    """Read until two readings in a row agree, so that nothing of an earlier load is still being run.

    Returns:
        The last reading, and False when totals still moved after ``timeout_s``: somebody else uses the model.
    """
    deadline = time.monotonic() + timeout_s
    earlier = read()
    while True:
        time.sleep(SETTLE_POLL_S)
        later = read()
        if later.versions == earlier.versions:
            return later, True
        if time.monotonic() > deadline:
            return later, False
        earlier = later


def parse_statistics(document: Mapping[str, Any], model: str) -> dict[str, Counters]:
    """Totals by version from the JSON answer. Over gRPC numbers are strings, and zeros are left out.

    Raises:
        UnreadableStatistics: it has another form, or does not hold the model.
    """
    versions = parse_every_model(document, only=model).get(model)
    if not versions:
        raise UnreadableStatistics(f"{model}: the statistics do not hold this model", hint="check the model's name")
    return versions


def parse_every_model(document: Mapping[str, Any], *, only: str | None = None) -> dict[str, dict[str, Counters]]:
    """Totals by model and version from the JSON answer. Entries of the same model and version are one.

    Args:
        document: the answer.
        only: leave other models out.

    Raises:
        UnreadableStatistics: it has another form.
    """
    found: dict[str, dict[str, Counters]] = {}
    try:
        for entry in document["model_stats"]:
            if only in (None, entry["name"]):
                versions, version = found.setdefault(entry["name"], {}), str(entry.get("version", ""))
                counters = _counters(entry)
                versions[version] = _together(versions[version], counters) if version in versions else counters
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise UnreadableStatistics(
            f"{only or 'all models'}: the statistics have another form than Triton's: {error!r}",
            hint="this needs a server with Triton's statistics extension",
        ) from error
    return found


def parse_failures(metrics: str, model: str) -> dict[str, int]:
    """Failed requests by reason from the text of the metrics page, all versions together."""
    reasons: dict[str, int] = {}
    for labels, value in re.findall(r"^nv_inference_request_failure\{(.*)\} (\S+)$", metrics, flags=re.MULTILINE):
        by_name = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        if by_name.get("model") == model and "reason" in by_name:
            reasons[by_name["reason"]] = reasons.get(by_name["reason"], 0) + int(float(value))
    return reasons


def instance_count(config: Mapping[str, Any]) -> int:
    """Instances that a model configuration asks for: each group's count, on each of its GPUs."""
    config = config.get("config", config)
    groups = config.get("instance_group") or [{}]
    return sum(int(group.get("count", 1) or 1) * max(1, len(group.get("gpus", []))) for group in groups)


def difference(before: Snapshot, after: Snapshot, *, instances: int, wall_us: int | None = None) -> BatchStats:
    """What happened between two snapshots of one model.

    A version that was loaded in between counts from zero.

    Args:
        before: the earlier snapshot.
        after: the later one.
        instances: instances of the model, for ``duty``.
        wall_us: the time under load, when it is known better than as the time between the snapshots.

    Raises:
        CountersWentBackwards: a counter shrank or a version is gone: the server or the model was started anew.
    """
    wall_us = after.taken_us - before.taken_us if wall_us is None else wall_us
    gone = sorted(before.versions.keys() - after.versions.keys())
    if gone:
        raise _backwards(f"version {', '.join(gone)} is gone")
    parts = [_subtract(version, before.versions.get(version), counters) for version, counters in after.versions.items()]
    by_size: dict[int, Sized] = {}
    for part in parts:
        for size, sized in part.by_size.items():
            by_size[size] = _plus(by_size[size], sized) if size in by_size else sized
    executions = sum(part.executions for part in parts)
    inferences = sum(part.inferences for part in parts)
    queued = sum(part.queued for part in parts)
    sized_executions = sum(sized.executions for sized in by_size.values())
    mean_batch = inferences / executions if executions else None
    busy_us = sum(sized.busy_ns for sized in by_size.values()) / 1_000
    return BatchStats(
        executions_by_size={size: by_size[size].executions for size in sorted(by_size)},
        inferences=inferences,
        executions=executions,
        mean_batch=mean_batch,
        fill=None if mean_batch is None else mean_batch / BATCH_LIMIT,
        wall_us=wall_us,
        instances=instances,
        duty=busy_us / (wall_us * instances) if wall_us > 0 else None,
        queue_us=ns_to_us(sum(part.queue_ns for part in parts) / queued) if queued else None,
        compute_us={
            phase: ns_to_us(sum(_phases(sized)[phase] for sized in by_size.values()) / sized_executions)
            for phase in PHASES
        }
        if sized_executions
        else {},
        execution_us_by_size={
            size: ns_to_us(by_size[size].busy_ns / by_size[size].executions) for size in sorted(by_size)
        },
        succeeded=sum(part.succeeded for part in parts),
        failed=sum(part.failed for part in parts),
        failures=_failures_between(before, after),
    )


def rate_per_s(stats: BatchStats) -> float | None:
    """Rows answered a second over the wall time; None without wall time."""
    return stats.inferences * US_PER_S / stats.wall_us if stats.wall_us > 0 else None


def _counters(entry: Mapping[str, Any]) -> Counters:
    stats = entry.get("inference_stats", {})
    by_size = {}
    for line in entry.get("batch_stats", []):
        executions, _ = _duration(line, "compute_infer")
        times = [_duration(line, phase)[1] for phase in PHASES]
        by_size[int(line["batch_size"])] = Sized(executions, *times)
    queued, queue_ns = _duration(stats, "queue")
    return Counters(
        inferences=int(entry.get("inference_count", 0)),
        executions=int(entry.get("execution_count", 0)),
        succeeded=_duration(stats, "success")[0],
        failed=_duration(stats, "fail")[0],
        queued=queued,
        queue_ns=queue_ns,
        by_size=by_size,
    )


def _duration(stats: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Count and nanoseconds."""
    entry = stats.get(name, {})
    return int(entry.get("count", 0)), int(entry.get("ns", 0))


def _phases(sized: Sized) -> dict[str, int]:
    return dict(zip(PHASES, (sized.input_ns, sized.infer_ns, sized.output_ns), strict=True))


def _plus(one: Sized, other: Sized) -> Sized:
    return Sized(
        one.executions + other.executions,
        one.input_ns + other.input_ns,
        one.infer_ns + other.infer_ns,
        one.output_ns + other.output_ns,
    )


def _together(one: Counters, other: Counters) -> Counters:
    names = ("inferences", "executions", "succeeded", "failed", "queued", "queue_ns")
    by_size = dict(one.by_size)
    for size, sized in other.by_size.items():
        by_size[size] = _plus(by_size[size], sized) if size in by_size else sized
    return Counters(**{name: getattr(one, name) + getattr(other, name) for name in names}, by_size=by_size)


def _backwards(what: str) -> CountersWentBackwards:
    return CountersWentBackwards(
        f"{what}: the server or the model was started anew between the two readings",
        hint="measure again, and leave the server alone meanwhile",
    )


def _subtract(version: str, before: Counters | None, after: Counters) -> Counters:
    """Totals of one version that came between; sizes that did not run are left out."""
    before = before or Counters(0, 0, 0, 0, 0, 0, {})
    none = Sized(0, 0, 0, 0)

    def minus(name: str, earlier: int, later: int) -> int:
        if later < earlier:
            raise _backwards(f"version {version}: {name} fell from {earlier} to {later}")
        return later - earlier

    by_size = {}
    for size in before.by_size.keys() | after.by_size.keys():
        was, now = before.by_size.get(size, none), after.by_size.get(size, none)
        sized = Sized(
            *(
                minus(f"{name} of size {size}", getattr(was, name), getattr(now, name))
                for name in ("executions", "input_ns", "infer_ns", "output_ns")
            )
        )
        if sized.executions:
            by_size[size] = sized
    totals = {
        name: minus(name, getattr(before, name), getattr(after, name))
        for name in ("inferences", "executions", "succeeded", "failed", "queued", "queue_ns")
    }
    return Counters(**totals, by_size=by_size)


def _failures_between(before: Snapshot, after: Snapshot) -> dict[str, int] | None:
    if before.failures is None or after.failures is None:
        return None
    gone = [reason for reason, count in before.failures.items() if after.failures.get(reason, 0) < count]
    if gone:
        raise _backwards(f"failures by reason {', '.join(gone)} fell")
    return {reason: count - before.failures.get(reason, 0) for reason, count in after.failures.items()}
