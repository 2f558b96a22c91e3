"""Schema of ``services/NAME.yaml``. Unknown keys are refused; every default is the value that an empty file would get.

Milliseconds here, integer microseconds everywhere else (``brim.units``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from brim.limits import BATCH_LIMIT

NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,99}$"
"""Of services, which name folders and files, and of caller classes."""
TENSOR_NAME_PATTERN = r"^[^\x00-\x1f\x7f]{1,256}$"
"""Anything that can be shown on one line."""
LARGEST_SIZE = 2**31 - 1
"""Along one axis: what ONNX Runtime and TensorRT index an axis with."""
LARGEST_RANK = 31
"""Axes of one row: numpy 1 holds 32, and the batch is one of them."""
# Strict: ``true`` and ``"10"`` are no numbers, though Python would take them for some.
Integer = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Milliseconds = Annotated[Number, Field(ge=0, le=3_600_000)]
PositiveMilliseconds = Annotated[Number, Field(gt=0, le=3_600_000)]
Rows = Annotated[Integer, Field(ge=1, le=BATCH_LIMIT)]
Size = Annotated[Integer, Field(ge=1, le=LARGEST_SIZE)]
UInt32 = Annotated[Integer, Field(ge=0, le=2**32 - 1)]
UInt64 = Annotated[Integer, Field(ge=0, le=2**64 - 1)]
Int32 = Annotated[Integer, Field(ge=0, le=2**31 - 1)]
Requests = Annotated[Integer, Field(ge=1, le=2**31 - 1)]
Tokens = Annotated[Integer, Field(ge=1, le=2**31 - 1)]


KV_BLOCK_TOKENS = 32
"""Tokens of a block of the KV cache on a CPU (openvino-genai 2026.4)."""


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

    name: str = Field(pattern=TENSOR_NAME_PATTERN, description="as callers spell it")
    dtype: DataType = Field(description="KServe v2 data type; text is BYTES")
    shape: tuple[Integer, ...] = Field(
        max_length=LARGEST_RANK, description="sizes of one row, without the batch; -1 is variable"
    )
    graph_name: str | None = Field(
        default=None, pattern=TENSOR_NAME_PATTERN, description="its name in the ONNX graph, when that is another one"
    )

    @field_validator("shape")
    @classmethod
    def _sizes(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        for size in shape:
            if size == 0 or not -1 <= size <= LARGEST_SIZE:
                raise ValueError(f"a size is 1 to {LARGEST_SIZE}, or -1 for variable; got {size}")
        return shape


class Precision(StrEnum):
    """What the exported graph computes in. The three INT8 differ in where an activation's scale comes from: a constant, the
    row itself, or the whole batch. With the last rows mix: the export refuses it wherever a batch has more than one row."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    INT8_ROWS = "int8-rows"
    INT8_DYNAMIC = "int8-dynamic"


class Source(Part):
    """Where the model comes from: a torch factory ``package.module:function``, an ONNX file, or a language model."""

    torch: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$", description="factory, `package.module:function`")
    onnx: str | None = Field(default=None, min_length=1, description="ONNX file, relative to the checkout")
    llm: str | None = Field(
        default=None,
        min_length=1,
        description="language model: a GGUF file, an OpenVINO folder or a Hugging Face folder, relative to the checkout, "
        "or `package:file.gguf`",
    )
    tolerance: Number = Field(
        default=1e-4, gt=0, lt=1, description="largest difference from torch that parity allows, in fp32"
    )
    precision: Precision = Field(
        default=Precision.FP32, description="what the exported graph computes in: docs/precision.md"
    )
    adapter: str | None = Field(
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="class that turns requests into graph inputs; not needed when they map one to one, nor for text to token ids",
    )

    graph_inputs: tuple[Tensor, ...] = Field(
        default=(), description="inputs of the ONNX graph, for the native profiles, when an adapter makes them"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Source:
        if sum(source is not None for source in (self.torch, self.onnx, self.llm)) != 1:
            raise ValueError("give exactly one of torch, onnx and llm")
        if self.llm is not None and self.precision is not Precision.FP32:
            raise ValueError("precision is of a graph; of a language model it is generation.precision")
        return self


class InputTensor(Tensor):
    """An input, with what the guard lets pass."""

    optional: bool = Field(default=False, description="a request may leave it out")
    finite: bool = Field(default=True, description="refuse NaN and infinities")
    minimum: Number | None = Field(default=None, description="smallest value; null: the export's index range, if any")
    maximum: Number | None = Field(default=None, description="largest value; null: the export's index range, if any")
    longest_bytes: Size | None = Field(default=None, description="longest BYTES element")
    largest_size: Size | None = Field(default=None, description="most elements along any variable axis")

    @model_validator(mode="after")
    def _bounds(self) -> InputTensor:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum ({self.minimum:g}) is above maximum ({self.maximum:g}): every value is refused")
        return self


class OutputTensor(Tensor):
    """An output."""

    labels: str | None = Field(
        default=None, description="label file, one line a class, relative to the model's folder in the repository"
    )


class Slo(Part):
    """How long a caller may wait, and what happens when it waits longer."""

    latency_ms: PositiveMilliseconds = Field(default=1000.0, description="what `percentile` of answers must meet")
    percentile: Number = Field(default=99.0, gt=0, lt=100, description="of all answers, 0..100")
    caller_gives_up_ms: PositiveMilliseconds | None = Field(
        default=None, description="when the client leaves by itself; null when it waits for ever"
    )
    ttft_ms: PositiveMilliseconds | None = Field(
        default=None, description="of a language model: what `percentile` of first tokens must meet"
    )
    tpot_ms: PositiveMilliseconds | None = Field(
        default=None, description="of a language model: what `percentile` of mean times per further token must meet"
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

    rate_per_s: Number = Field(default=10.0, gt=0, description="requests a second, on average")
    peak_per_s: Number | None = Field(default=None, gt=0, description="requests a second at the worst")
    arrival: Arrival = Field(default=Arrival.STEADY, description="whether requests come evenly or in bursts")
    size: Literal["fixed", "variable"] = Field(default="fixed", description="whether all requests cost about the same")

    @model_validator(mode="after")
    def _peak(self) -> Traffic:
        if self.peak_per_s is not None and self.peak_per_s < self.rate_per_s:
            raise ValueError(f"peak_per_s ({self.peak_per_s:g}) is below rate_per_s ({self.rate_per_s:g})")
        return self


class CallerClass(Part):
    """Callers that are treated alike. Priority 1 is the most important."""

    name: str = Field(pattern=NAME_PATTERN, description="as it stands in reports")
    priority: UInt64 = Field(default=1, ge=1, description="1 is served first")
    share: Number = Field(default=1.0, gt=0, le=1, description="part of the traffic")
    deadline_ms: PositiveMilliseconds | None = Field(default=None, description="null: the objective of the service")


class TenantRate(Part):
    """What each tenant may send, whom callers name in the header `x-brim-tenant`; those who name none are one tenant."""

    rate_per_s: Integer = Field(ge=1, le=1_000_000, description="requests a second that one tenant may send for long")
    burst: Integer = Field(ge=1, le=10_000_000, description="requests that one tenant may send at once")
    most_tenants: Integer = Field(
        default=1_000, ge=1, le=100_000, description="tenants that are counted at once; the longest unseen is forgotten"
    )


class QueuePolicy(Part):
    """Triton's ModelQueuePolicy. Any of these switches payload prefetching off: see `brim lint` before using it."""

    timeout_action: Literal["REJECT", "DELAY"] = Field(default="REJECT", description="what happens on a timeout")
    default_timeout_ms: Milliseconds = Field(default=0.0, description="longest wait in the queue; 0 is no bound")
    allow_timeout_override: bool = Field(default=False, description="a request may lower the timeout")
    max_queue_size: UInt32 = Field(default=0, description="requests that may wait; 0 is no bound")


class BatchTime(Part):
    """What a batch takes in service, as `brim tune` measured it: tau0_us + alpha_us * rows."""

    tau0_us: Number = Field(ge=0, le=3_600_000_000, description="microseconds that a batch costs, whatever it carries")
    alpha_us: Number = Field(ge=0, le=3_600_000_000, description="microseconds that each of its rows adds")


def _ascending_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"sizes must ascend and differ; got {list(sizes)}")
    return sizes


class Batching(Part):
    """When a batch starts, every field of Triton's ModelDynamicBatching; and what `brim tune` derived for the gateway."""

    preferred: tuple[Rows, ...] = Field(default=(), description="preferred batch sizes; none means serve what waits")
    max_queue_delay_ms: Milliseconds = Field(default=0.0, description="how long a request may wait for company")
    preserve_ordering: bool = Field(default=False, description="answer in the order of arrival")
    priority_levels: UInt64 = Field(default=0, description="number of levels; 1 is served first; 0 is one queue")
    default_priority_level: UInt64 = Field(default=0, description="level of a request that names none")
    default_queue_policy: QueuePolicy | None = Field(default=None, description="bound and timeout of the queue")
    priority_queue_policy: dict[UInt64, QueuePolicy] = Field(default_factory=dict, description="the same, by level")
    in_flight_bound: Requests | None = Field(
        default=None,
        description="most requests that the gateway lets in at once; null: no bound. Not Triton's own queue bound",
    )
    batch_time: BatchTime | None = Field(default=None, description="what a batch takes; null: not measured")

    @field_validator("preferred")
    @classmethod
    def _ascending(cls, preferred: tuple[int, ...]) -> tuple[int, ...]:
        return _ascending_sizes(preferred)


class Kind(StrEnum):
    """Where instances run. AUTO takes a GPU when the server has one, else the CPU."""

    AUTO = "AUTO"
    CPU = "CPU"
    GPU = "GPU"


class Instances(Part):
    """One instance group."""

    count: Integer = Field(default=1, ge=1, le=64, description="instances, on each GPU where they run on GPUs")
    kind: Kind = Field(default=Kind.AUTO, description="AUTO takes a GPU when the server has one")
    gpus: tuple[Int32, ...] = Field(default=(), description="which GPUs; all when empty")

    @model_validator(mode="after")
    def _gpus_need_gpu(self) -> Instances:
        if self.gpus and self.kind is Kind.CPU:
            raise ValueError("gpus are listed and kind is CPU")
        return self


class Padding(Part):
    """Cost model that cuts a batch of unequal lengths into sub-batches: fixed + per token of rows x longest."""

    fixed_us: Number = Field(ge=0, description="cost of a run, whatever it carries")
    per_token_us: Number = Field(gt=0, description="cost of a padded token")
    per_pair_us: Number = Field(default=0.0, ge=0, description="cost of a pair of tokens of one row (attention)")
    max_tokens: Int32 = Field(default=0, description="most padded tokens a run; 0 is no bound")


class Runtime(Part):
    """What the adapter does with each batch in the python-backend profile."""

    threads: Integer = Field(
        default=0, ge=0, le=256, description="ONNX Runtime intra-op threads; 0 leaves it to the adapter"
    )
    longest_tokens: Size | None = Field(default=None, ge=2, description="token models: where text is cut")
    padding: Padding | None = Field(default=None, description="cost model for rows of unequal length; null: by device")


class Provider(StrEnum):
    """What ONNX Runtime computes with on a GPU."""

    CUDA = "cuda"
    TENSORRT = "tensorrt"


class Native(Part):
    """How the native profiles run the graph on a GPU. The default profile has no use for it."""

    provider: Provider = Field(
        default=Provider.CUDA,
        description="of `onnx-gpu`: ONNX Runtime's own CUDA kernels, or TensorRT inside ONNX Runtime, which builds its "
        "engine when the model is loaded",
    )
    precision: Literal["fp32", "fp16"] = Field(
        default="fp32", description="of the provider `tensorrt`: what it may compute in"
    )
    cuda_graphs: tuple[Rows, ...] = Field(
        default=(),
        description="of `tensorrt`: batch sizes that are launched as one captured CUDA graph; for inputs of fixed sizes",
    )
    pinned_memory: bool = Field(
        default=True,
        description="batches go to the GPU and back through page-locked memory, of which a server has a pool",
    )

    @field_validator("cuda_graphs")
    @classmethod
    def _ascending(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return _ascending_sizes(sizes)

    @model_validator(mode="after")
    def _precision_of_tensorrt(self) -> Native:
        if self.precision != "fp32" and self.provider is not Provider.TENSORRT:
            raise ValueError(
                f"precision {self.precision} with provider {self.provider.value}: CUDA kernels compute in the graph's own "
                "types; only provider tensorrt may choose"
            )
        return self


class Generation(Part):
    """How texts are generated: what the engine of a language model may hold, and who may wait for it."""

    context_tokens: Tokens = Field(default=4096, ge=2, description="most tokens of a prompt and its text together")
    kv_blocks: Tokens = Field(default=512, description="blocks of the KV cache, of 32 tokens each on a CPU")
    max_sequences: Integer = Field(default=32, ge=1, le=1024, description="most texts that are generated at once")
    chunk_tokens: Integer = Field(
        default=256, ge=32, le=65_536, description="most tokens of one step; longer prompts are taken in pieces"
    )
    max_waiting: Integer = Field(
        default=64, ge=0, le=100_000, description="most requests that wait for a place; more are refused at once"
    )
    batch_kept_share: Number = Field(
        default=1.0,
        gt=0,
        le=1,
        description="part of seats and KV cache that the classes after the first keep when the first wants them",
    )
    prefix_cache: bool = Field(
        default=True,
        description="on a CPU: prompts that begin alike are computed once, and long ones are fed in pieces that shorter ones pass",
    )
    precision: Literal["f32", "bf16", "f16", "auto"] = Field(
        default="f32", description="what the engine computes in on a CPU; auto follows the processor"
    )
    vllm_model: str | None = Field(
        default=None, min_length=1, description="what vLLM loads: a name or a path there; null: the exported file"
    )
    gpu_memory_share: Number = Field(
        default=0.9, gt=0, lt=1, description="part of a GPU's memory that vLLM takes, its KV cache included"
    )

    @model_validator(mode="after")
    def _steps(self) -> Generation:
        least = self.max_sequences + KV_BLOCK_TOKENS - 1
        if self.chunk_tokens < least:
            raise ValueError(
                f"chunk_tokens ({self.chunk_tokens}) is below {least}: a step needs a token for each of max_sequences "
                f"({self.max_sequences}) texts and room for a prompt's next block of {KV_BLOCK_TOKENS} tokens"
            )
        return self


class Tracing(Part):
    """Which requests Triton follows from their arrival to their answer, and where that goes (`docs/tracing.md`).

    The switch is the server's: services that are served together and ask for it ask for the same.
    """

    mode: Literal["triton", "opentelemetry"] = Field(
        default="triton", description="triton: files beside the server; opentelemetry: sent to a collector"
    )
    rate: Integer = Field(default=1000, ge=1, le=1_000_000, description="one request of so many is followed")
    most_traces: Integer = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="triton: requests that are followed in a server's life, about a kilobyte each; then no more",
    )
    traces_per_file: Integer = Field(default=100, ge=1, le=10_000, description="triton: requests of one file")
    endpoint: str | None = Field(
        default=None,
        pattern=r"^http://[^\s/,]+(/[^\s,]*)?$",
        description="opentelemetry: where the collector takes OTLP over HTTP, `http://collector:4318/v1/traces`",
    )
    follow_callers: bool = Field(
        default=False,
        description="opentelemetry: a request that brings a `traceparent` is followed whatever the rate; else the gateway takes it away",
    )

    @model_validator(mode="after")
    def _by_mode(self) -> Tracing:
        if self.mode == "opentelemetry" and self.endpoint is None:
            raise ValueError("mode opentelemetry needs an endpoint: where the collector takes OTLP over HTTP")
        lost = [name for name, given in (("endpoint", self.endpoint), ("follow_callers", self.follow_callers)) if given]
        if self.mode == "triton" and lost:
            raise ValueError(f"{' and '.join(lost)} with mode triton, which writes files: mode opentelemetry has them")
        return self


class Sample(Part):
    """One real input, for the canary, the warm-up, the load tests and the self-check: input name -> value of one row."""

    inputs: dict[str, str | float | int | bool | list[object]] = Field(description="input name -> value of one row")


def _flag(name: str) -> InputTensor:
    return InputTensor(name=name, dtype=DataType.BOOL, shape=(1,), optional=True)


TEXT_INPUTS = (
    InputTensor(name="text_input", dtype=DataType.BYTES, shape=(1,), longest_bytes=1_000_000),
    _flag("stream"),
    InputTensor(name="sampling_parameters", dtype=DataType.BYTES, shape=(1,), optional=True, longest_bytes=100_000),
    _flag("exclude_input_in_output"),
    _flag("return_finish_reason"),
    _flag("return_num_input_tokens"),
    _flag("return_num_output_tokens"),
)
"""What a language model takes: names and types of Triton's vLLM backend (its ``src/model.py``)."""
TEXT_OUTPUTS = (
    OutputTensor(name="text_output", dtype=DataType.BYTES, shape=(-1,)),
    OutputTensor(name="finish_reason", dtype=DataType.BYTES, shape=(-1,)),
    OutputTensor(name="num_input_tokens", dtype=DataType.UINT32, shape=(1,)),
    OutputTensor(name="num_output_tokens", dtype=DataType.UINT32, shape=(-1,)),
)
"""What it gives."""


class Service(Part):
    """One model behind one endpoint."""

    name: str = Field(pattern=NAME_PATTERN, description="the model's name on the server, and of this file")
    description: str = Field(default="", description="one line for people")
    model: Source = Field(description="where the model comes from")
    inputs: tuple[InputTensor, ...] = Field(
        min_length=1, description="what a caller sends; a language model's are fixed and left out"
    )
    outputs: tuple[OutputTensor, ...] = Field(
        min_length=1, description="what a caller gets; a language model's are fixed and left out"
    )
    max_batch_size: Rows = Field(
        default=BATCH_LIMIT, description="most rows an execution carries; 100 is the GPU's limit"
    )
    slo: Slo = Field(default=Slo(), description="how long a caller may wait")
    traffic: Traffic = Field(default=Traffic(), description="how much is expected, and how it arrives")
    callers: tuple[CallerClass, ...] = Field(default=(), description="classes of callers; none when all are equal")
    tenant_rate: TenantRate | None = Field(default=None, description="bound on each tenant's requests; null: none")
    batching: Batching = Field(default=Batching(), description="when a batch starts")
    instances: tuple[Instances, ...] = Field(
        default=(Instances(),), description="how often the model is loaded, and where"
    )
    runtime: Runtime = Field(default=Runtime(), description="how a batch is run")
    native: Native = Field(default=Native(), description="how the native profiles use a GPU")
    generation: Generation | None = Field(default=None, description="of a language model: how texts are generated")
    tracing: Tracing | None = Field(default=None, description="which requests Triton follows; null: none")
    samples: tuple[Sample, ...] = Field(default=(), description="real rows; the first is the canary")

    @model_validator(mode="before")
    @classmethod
    def _contract_of_text(cls, data: Any) -> Any:
        """A language model has the tensors of the vLLM backend, and the defaults of ``generation`` unless it says more."""
        if not isinstance(data, dict) or not isinstance(data.get("model"), dict) or data["model"].get("llm") is None:
            return data
        fixed = {"inputs": TEXT_INPUTS, "outputs": TEXT_OUTPUTS, "max_batch_size": 1}
        given = [key for key, tensors in fixed.items() if data.get(key, tensors) != tensors]
        if given:
            raise ValueError(
                f"{' and '.join(given)} of a language model: leave out what Triton's vLLM backend fixes, one text a request"
            )
        traffic = data.get("traffic", {})
        sized = {**traffic, "size": traffic.get("size", "variable")} if isinstance(traffic, dict) else traffic
        return {"generation": {}, **data, **fixed, "traffic": sized}

    @model_validator(mode="after")
    def _consistent(self) -> Service:
        problems = []
        if self.generation is not None and self.model.llm is None:
            problems.append("generation is for a language model (model.llm)")
        if self.generation is None:
            of_text = [name for name in ("ttft_ms", "tpot_ms") if getattr(self.slo, name) is not None]
            if of_text:
                problems.append(
                    f"slo.{' and slo.'.join(of_text)}: only a language model (model.llm) answers token by token"
                )
        if self.generation is not None and (len(self.instances) != 1 or self.instances[0].count != 1):
            problems.append(
                "a language model has one instance, whose engine serves all callers: give instances count 1"
            )
        problems += self._native_problems()
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

    def _native_problems(self) -> list[str]:
        if self.generation is not None:
            return (
                [] if self.native == Native() else ["native is for a model that answers a batch at once, not for texts"]
            )
        problems = []
        over = [size for size in self.native.cuda_graphs if size > self.max_batch_size]
        if over:
            problems.append(f"native.cuda_graphs has {over[0]}, above max_batch_size {self.max_batch_size}")
        variable = [one.name for one in self.model.graph_inputs or self.inputs if -1 in one.shape]
        if self.native.cuda_graphs and variable:
            problems.append(
                f"native.cuda_graphs and input {', '.join(variable)} of variable size: a CUDA graph runs exactly the shapes "
                "that it was captured with"
            )
        return problems
