"""Schema of ``services/NAME.yaml``. Unknown keys are refused; every default is the value that an empty file would get.

Milliseconds here, integer microseconds everywhere else (``brim.units``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from brim.limits import BATCH_LIMIT

NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False, le=3_600_000)]
PositiveMilliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False, le=3_600_000)]
Rows = Annotated[int, Field(ge=1, le=BATCH_LIMIT)]
UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
UInt64 = Annotated[int, Field(ge=0, le=2**64 - 1)]


class Part(BaseModel):
    """A block of the service file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataType(StrEnum):
    """KServe v2 data types."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"


class Tensor(Part):
    """One input or output of a row, as a caller sees it. ``shape`` is without the batch; -1 is a variable size."""

    name: str = Field(min_length=1)
    dtype: DataType
    shape: tuple[int, ...]
    graph_name: str | None = Field(default=None, description="its name in the ONNX graph, when that is another one")
    labels: str | None = Field(default=None, description="label file beside config.pbtxt, one line a class")
    optional: bool = False

    @field_validator("shape")
    @classmethod
    def _sizes(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        for size in shape:
            if size == 0 or size < -1:
                raise ValueError(f"a size is positive, or -1 for variable; got {size}")
        return shape


class Source(Part):
    """Where the model comes from: a torch factory ``package.module:function``, or an ONNX file."""

    torch: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    onnx: str | None = None
    tolerance: float = Field(default=1e-4, gt=0, lt=1, description="largest difference from torch that parity allows")
    adapter: str | None = Field(
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="class that turns requests into the model's inputs; none when they map one to one",
    )

    graph_inputs: tuple[Tensor, ...] = Field(
        default=(), description="inputs of the ONNX graph, for the native profiles, when an adapter makes them"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Source:
        if (self.torch is None) == (self.onnx is None):
            raise ValueError("give exactly one of torch and onnx")
        return self


class InputTensor(Tensor):
    """An input, with what the guard lets pass."""

    finite: bool = Field(default=True, description="refuse NaN and infinities")
    minimum: float | None = None
    maximum: float | None = None
    longest_bytes: int | None = Field(default=None, ge=1, description="longest BYTES element")
    largest_size: int | None = Field(default=None, ge=1, description="most elements along any variable axis")


class Slo(Part):
    """How long a caller may wait, and what happens when it waits longer."""

    latency_ms: PositiveMilliseconds = Field(default=1000.0, description="what `percentile` of answers must meet")
    percentile: float = Field(default=99.0, gt=0, lt=100)
    caller_gives_up_ms: PositiveMilliseconds | None = Field(
        default=None, description="when the client leaves by itself; null when it waits for ever"
    )

    @model_validator(mode="after")
    def _order(self) -> Slo:
        if self.caller_gives_up_ms is not None and self.caller_gives_up_ms < self.latency_ms:
            raise ValueError(
                f"caller_gives_up_ms ({self.caller_gives_up_ms:g}) is below latency_ms ({self.latency_ms:g}): "
                "callers would leave before the objective is missed"
            )
        return self


class Arrival(StrEnum):
    """Shape of the traffic."""

    STEADY = "steady"
    BURSTY = "bursty"


class Traffic(Part):
    """How much traffic is expected, and how it arrives."""

    rate_per_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    peak_per_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    arrival: Arrival = Arrival.STEADY
    size: Literal["fixed", "variable"] = "fixed"

    @model_validator(mode="after")
    def _peak(self) -> Traffic:
        if self.peak_per_s is not None and self.peak_per_s < self.rate_per_s:
            raise ValueError(f"peak_per_s ({self.peak_per_s:g}) is below rate_per_s ({self.rate_per_s:g})")
        return self


class CallerClass(Part):
    """Callers that are treated alike. Priority 1 is the most important."""

    name: str = Field(pattern=NAME_PATTERN)
    priority: int = Field(default=1, ge=1)
    share: float = Field(default=1.0, gt=0, le=1, description="part of the traffic")
    deadline_ms: PositiveMilliseconds | None = Field(default=None, description="null: the objective of the service")


class QueuePolicy(Part):
    """Triton's ModelQueuePolicy. Any of these switches payload prefetching off: see `brim lint` before using it."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_ms: Milliseconds = 0.0
    allow_timeout_override: bool = False
    max_queue_size: UInt32 = Field(default=0, description="requests that may wait; 0 is no bound")


class Batching(Part):
    """When a batch starts: every field of Triton's ModelDynamicBatching."""

    preferred: tuple[Rows, ...] = Field(default=(), description="preferred batch sizes; none means serve what waits")
    max_queue_delay_ms: Milliseconds = 0.0
    preserve_ordering: bool = False
    priority_levels: UInt64 = 0
    default_priority_level: UInt64 = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[UInt64, QueuePolicy] = Field(default_factory=dict)

    @field_validator("preferred")
    @classmethod
    def _ascending(cls, preferred: tuple[int, ...]) -> tuple[int, ...]:
        if list(preferred) != sorted(set(preferred)):
            raise ValueError(f"sizes must ascend and differ; got {list(preferred)}")
        return preferred


class Kind(StrEnum):
    """Where instances run. AUTO takes a GPU when the server has one, else the CPU."""

    AUTO = "AUTO"
    CPU = "CPU"
    GPU = "GPU"


class Instances(Part):
    """One instance group."""

    count: int = Field(default=1, ge=1, le=64)
    kind: Kind = Kind.AUTO
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _gpus_need_gpu(self) -> Instances:
        if self.gpus and self.kind is Kind.CPU:
            raise ValueError("gpus are listed and kind is CPU")
        return self


class Padding(Part):
    """Cost model that cuts a batch of unequal lengths into sub-batches: fixed + per token of rows x longest."""

    fixed_us: float = Field(default=1000.0, ge=0)
    per_token_us: float = Field(default=20.0, gt=0)


class Runtime(Part):
    """What the adapter does with each batch in the python-backend profile."""

    threads: int = Field(
        default=0, ge=0, le=256, description="ONNX Runtime intra-op threads; 0 leaves it to the adapter"
    )
    longest_tokens: int | None = Field(default=None, ge=2, description="token models: where text is cut")
    padding: Padding | None = None


class Sample(Part):
    """One real input, for the canary, the warm-up, the load tests and the self-check: input name -> value of one row."""

    inputs: dict[str, str | float | int | bool | list[object]]


class TensorRt(Part):
    """How the TensorRT engine is built: the optimum batch of the profile, and smallest/typical/largest variable sizes."""

    optimum_rows: Rows = 50
    sizes: dict[str, tuple[int, int, int]] = Field(default_factory=dict)


class Service(Part):
    """One model behind one endpoint."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str = ""
    model: Source
    inputs: tuple[InputTensor, ...] = Field(min_length=1)
    outputs: tuple[Tensor, ...] = Field(min_length=1)
    max_batch_size: Rows = BATCH_LIMIT
    slo: Slo = Slo()
    traffic: Traffic = Traffic()
    callers: tuple[CallerClass, ...] = ()
    batching: Batching = Batching()
    instances: tuple[Instances, ...] = (Instances(),)
    runtime: Runtime = Runtime()
    tensorrt: TensorRt = TensorRt()
    samples: tuple[Sample, ...] = ()
    files: tuple[str, ...] = Field(default=(), description="further files that the export puts beside the model")

    @model_validator(mode="after")
    def _consistent(self) -> Service:
        problems = []
        for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [tensor.name for tensor in tensors]
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                problems.append(f"{kind} has {', '.join(doubled)} more than once")
        if not self.instances:
            problems.append("instances is empty; at least one group is needed")
        over = [size for size in self.batching.preferred if size > self.max_batch_size]
        if over:
            problems.append(f"batching.preferred has {over[0]}, above max_batch_size {self.max_batch_size}")
        known = {tensor.name: tensor for tensor in self.inputs}
        for index, sample in enumerate(self.samples):
            unknown = sorted(set(sample.inputs) - set(known))
            missing = sorted(
                name for name, tensor in known.items() if not tensor.optional and name not in sample.inputs
            )
            if unknown:
                problems.append(f"samples[{index}] has unknown input {', '.join(unknown)}; known: {', '.join(known)}")
            if missing:
                problems.append(f"samples[{index}] lacks input {', '.join(missing)}")
        variable = any(-1 in tensor.shape for tensor in self.inputs)
        if variable and self.traffic.size == "fixed":
            problems.append("an input has a variable size (-1) and traffic.size says fixed")
        names = [caller.name for caller in self.callers]
        if len(set(names)) < len(names):
            problems.append("callers has a class name more than once")
        if self.callers and abs(sum(caller.share for caller in self.callers) - 1) > 1e-6:
            problems.append(f"the shares of callers add up to {sum(c.share for c in self.callers):g}, not 1")
        if problems:
            raise ValueError("; ".join(problems))
        return self
