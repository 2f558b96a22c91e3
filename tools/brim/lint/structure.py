"""CFG030 and up: names, tensors, shapes, backend, parameters."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import ModelInput

from brim.findings import Severity
from brim.limits import BATCH_LIMIT
from brim.lint.fields import elements, tensors
from brim.lint.rule import HEAD, Fault, rule
from brim.lint.subject import ENSEMBLE, PLATFORM_BACKENDS, Model

SHAPES = "core `model_config_utils.cc`, ValidateIOShape"
PYTHON_PARAMETERS = {"FORCE_CPU_ONLY_INPUT_TENSORS": ["yes", "no"]}
"""Parameters of the python backend that take certain words only (python_backend ``python_be.cc``)."""

_X = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\n'


@rule(
    "CFG030",
    Severity.ERROR,
    "An input or output has no data type.",
    why="TYPE_INVALID is what a missing data_type means, and Triton refuses it.",
    source=SHAPES,
    good=HEAD + _X,
    bad=HEAD + 'input { name: "x" dims: 4 }\n',
)
def missing_data_type(model: Model) -> Iterator[Fault]:
    """A tensor whose ``data_type`` is missing or TYPE_INVALID."""
    for path, tensor in tensors(model):
        if tensor.data_type == 0:
            yield Fault(f"{path} {tensor.name!r} has no data_type", f"{path}.data_type", "give one, such as TYPE_FP32")


@rule(
    "CFG031",
    Severity.ERROR,
    "An input or output has no name.",
    why="Requests address tensors by name.",
    source=SHAPES,
    good=HEAD + _X,
    bad=HEAD + "input { data_type: TYPE_FP32 dims: 4 }\n",
)
def missing_tensor_name(model: Model) -> Iterator[Fault]:
    """A tensor without a name."""
    for path, tensor in tensors(model):
        if not tensor.name:
            yield Fault(f"{path} has no name", path, "give the name that the model file uses")


@rule(
    "CFG032",
    Severity.ERROR,
    "Two inputs, or two outputs, have the same name.",
    why="Only one of them can be addressed.",
    source="inferred: tensors are looked up by name",
    good=HEAD + _X + _X.replace('"x"', '"z"'),
    bad=HEAD + _X + _X,
)
def duplicate_tensor_name(model: Model) -> Iterator[Fault]:
    """A name given to two inputs, or to two outputs."""
    for kind, names in (
        ("input", [tensor.name for tensor in model.config.input]),
        ("output", [tensor.name for tensor in model.config.output]),
    ):
        for index, name in enumerate(names):
            if name and name in names[:index]:
                said = f"{kind} {name!r} is declared twice: {kind}[{names.index(name)}] and {kind}[{index}]"
                yield Fault(said, f"{kind}[{index}].name", "remove or rename one")


@rule(
    "CFG033",
    Severity.ERROR,
    "A dimension is 0 or below -1.",
    why="A size is at least 1; -1 stands for a variable one.",
    source=SHAPES,
    good=HEAD + _X.replace("4", "-1"),
    bad=HEAD + _X.replace("4", "0"),
)
def bad_dimension(model: Model) -> Iterator[Fault]:
    """A value in ``dims`` or ``reshape.shape`` that is no size."""
    for path, tensor in tensors(model):
        for name, sizes in (("dims", tensor.dims), ("reshape.shape", tensor.reshape.shape)):
            for where, size in elements(f"{path}.{name}", sizes):
                if size < 1 and size != -1:
                    said = f"{path} {tensor.name!r} has dimension {size}; sizes are 1 or more, -1 is variable"
                    yield Fault(said, where, "write -1 for a variable size")


@rule(
    "CFG034",
    Severity.ERROR,
    "An input or output has no dims.",
    why="Triton has no scalars: a single value per row is dims [ 1 ], with an empty reshape when the model wants none.",
    source=SHAPES,
    good=HEAD + 'input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { } }\n',
    bad=HEAD + 'input { name: "x" data_type: TYPE_FP32 dims: [ ] }\n',
)
def missing_dims(model: Model) -> Iterator[Fault]:
    """A tensor without ``dims``."""
    for path, tensor in tensors(model):
        if not tensor.dims:
            hint = "write dims: [ 1 ], and reshape { } if the model takes a bare batch of values"
            yield Fault(f"{path} {tensor.name!r} has no dims", f"{path}.dims", hint)


@rule(
    "CFG035",
    Severity.ERROR,
    "reshape does not hold as many values as dims.",
    why="A reshape may only regroup values; parts between variable sizes must agree one by one.",
    source=SHAPES,
    good=HEAD + 'input { name: "x" data_type: TYPE_FP32 dims: [ 2, -1, 6 ] reshape { shape: [ 2, -1, 2, 3 ] } }\n',
    bad=HEAD + 'input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 4 ] } }\n',
)
def reshape_mismatch(model: Model) -> Iterator[Fault]:
    """A reshape whose element count differs from that of ``dims``."""
    for path, tensor in tensors(model):
        if not tensor.HasField("reshape") or not tensor.dims:
            continue
        dims, shape = list(tensor.dims), list(tensor.reshape.shape)
        if any(size == 0 or size < -1 for size in dims + shape):
            continue
        where = f"{path}.reshape"
        if not shape and model.config.max_batch_size == 0:
            said = f"{path} {tensor.name!r} has an empty reshape, but max_batch_size 0 leaves no batch dimension"
            yield Fault(said, where, "keep at least one dimension")
        elif _segments(dims) != _segments(shape):
            said = f"{path} {tensor.name!r}: dims {dims} and reshape {shape} hold different numbers of values"
            yield Fault(said, where, "make the products equal, between variable sizes too")


def _segments(sizes: Sequence[int]) -> list[int]:
    """Products of the runs of fixed sizes between variable ones."""
    runs: list[list[int]] = [[]]
    for size in sizes:
        if size == -1:
            runs.append([])
        else:
            runs[-1].append(size)
    return [math.prod(run) for run in runs]


@rule(
    "CFG036",
    Severity.WARNING,
    "dims start with a variable size that may be the batch.",
    why="With max_batch_size above 0 Triton puts the batch in front by itself; written again it becomes one dimension "
    "too many, and the model does not load or every request has the wrong rank.",
    source="core `model_config_utils.cc`; server issues 2192 and 6196",
    good=HEAD + _X,
    bad=HEAD + _X.replace("4", "[ -1, 4 ]"),
)
def batch_in_dims(model: Model) -> Iterator[Fault]:
    """``[-1, fixed...]`` with batching on, where no ONNX file settles the question."""
    if model.config.max_batch_size < 1 or model.onnx_path is not None:
        return
    for path, tensor in tensors(model):
        dims = list(tensor.dims)
        if len(dims) > 1 and dims[0] == -1 and -1 not in dims[1:]:
            said = (
                f"{path} {tensor.name!r} has dims {dims}: with max_batch_size above 0 the full shape is {[-1, *dims]}"
            )
            yield Fault(said, f"{path}.dims", f"if the leading -1 is the batch, write dims: {dims[1:]}")


@rule(
    "CFG037",
    Severity.WARNING,
    "Neither backend nor platform is given.",
    why="Triton then guesses from the files in the first version folder, and fails when it finds none it knows.",
    source="core `model_config_utils.cc`, AutoCompleteBackendFields",
    good=HEAD,
    bad='name: "m"\nmax_batch_size: 100\n',
)
def missing_backend(model: Model) -> Iterator[Fault]:
    """No backend, no platform; an error when the model folder does not tell either."""
    config = model.config
    if config.backend or config.platform or not model.parsed.positions:
        return
    hint = 'write backend: "onnxruntime", "tensorrt" or "python"'
    if model.backend:
        said = f"backend is not given; Triton will take {model.backend}"
        yield Fault(said, "name", f'write backend: "{model.backend}"')
    elif model.folder is not None and "." not in model.folder.name:
        said = "backend is not given, and no version folder holds a model file that would tell"
        yield Fault(said, "name", hint, Severity.ERROR)
    else:
        yield Fault("backend is not given", "name", hint)


@rule(
    "CFG038",
    Severity.ERROR,
    "platform and backend contradict each other, or the platform is unknown.",
    why="Triton refuses the pair; backend alone is enough.",
    source="core `model_config_utils.cc`, ValidateModelConfig and GetBackendTypeFromPlatform",
    good='name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 100\n',
    bad='name: "m"\nplatform: "onnx"\nmax_batch_size: 100\n',
)
def platform_mismatch(model: Model) -> Iterator[Fault]:
    """A platform that is unknown without a backend, or belongs to another backend."""
    platform, backend = model.config.platform, model.config.backend
    if not platform or platform == ENSEMBLE:
        return
    known = PLATFORM_BACKENDS.get(platform)
    if known is None and not backend:
        hint = f"known platforms: {', '.join(sorted([*PLATFORM_BACKENDS, ENSEMBLE]))}"
        yield Fault(f"platform {platform!r} is unknown", "platform", hint)
    elif known is not None and backend and backend in PLATFORM_BACKENDS.values() and backend != known:
        said = f"platform {platform!r} belongs to backend {known!r}, not to {backend!r}"
        yield Fault(said, "platform", "remove platform")


@rule(
    "CFG039",
    Severity.ERROR,
    "max_batch_size is negative.",
    why="0 switches batching off; there is nothing below.",
    source="core `model_config_utils.cc`, ValidateModelConfig",
    good=HEAD,
    bad=HEAD.replace("100", "-1"),
)
def negative_batch(model: Model) -> Iterator[Fault]:
    """``max_batch_size`` below 0."""
    if model.config.max_batch_size < 0:
        yield Fault(f"max_batch_size is {model.config.max_batch_size}", "max_batch_size", "write 0 for no batching")


@rule(
    "CFG040",
    Severity.ERROR,
    f"max_batch_size is above {BATCH_LIMIT}.",
    why=f"The GPU takes at most {BATCH_LIMIT} rows a batch.",
    source="the project's limit, `brim.limits.BATCH_LIMIT`",
    good=HEAD,
    bad=HEAD.replace("100", "128"),
)
def batch_above_limit(model: Model) -> Iterator[Fault]:
    """``max_batch_size`` above what the GPU takes."""
    size = model.config.max_batch_size
    if size > BATCH_LIMIT:
        said = f"max_batch_size is {size}, the GPU takes at most {BATCH_LIMIT} rows"
        yield Fault(said, "max_batch_size", f"write max_batch_size: {BATCH_LIMIT}")


@rule(
    "CFG041",
    Severity.ERROR,
    "An image format needs three dims.",
    why="FORMAT_NHWC and FORMAT_NCHW name height, width and channels.",
    source="core `model_config_utils.cc`, ValidateModelInput",
    good=HEAD + 'input { name: "x" data_type: TYPE_UINT8 format: FORMAT_NHWC dims: [ 8, 8, 3 ] }\n',
    bad=HEAD + 'input { name: "x" data_type: TYPE_UINT8 format: FORMAT_NHWC dims: [ 8, 8 ] }\n',
)
def image_format(model: Model) -> Iterator[Fault]:
    """NHWC or NCHW with another number of dims than 3."""
    for path, tensor in elements("input", model.config.input):
        if tensor.format in (ModelInput.FORMAT_NHWC, ModelInput.FORMAT_NCHW) and len(tensor.dims) != 3:
            said = (
                f"input {tensor.name!r} has {ModelInput.Format.Name(tensor.format)} and {len(tensor.dims)} dims, not 3"
            )
            yield Fault(said, f"{path}.format", "leave out format, or give three dims without the batch")


@rule(
    "CFG042",
    Severity.ERROR,
    "is_shape_tensor or is_non_linear_format_io outside TensorRT.",
    why="Only TensorRT engines have such tensors.",
    source="core `model_config_utils.cc`, ValidateModelInput and ValidateNonLinearFormatIO",
    good='name: "m"\nplatform: "tensorrt_plan"\nmax_batch_size: 0\n'
    'input { name: "x" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true }\n',
    bad=HEAD + 'input { name: "x" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true }\n',
)
def tensorrt_only(model: Model) -> Iterator[Fault]:
    """A TensorRT flag on a tensor of another backend."""
    if model.backend == "tensorrt":
        return
    for path, tensor in tensors(model):
        for flag in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(tensor, flag):
                yield Fault(
                    f"{path} {tensor.name!r} has {flag}, which only TensorRT knows", f"{path}.{flag}", "remove it"
                )


@rule(
    "CFG043",
    Severity.WARNING,
    "A parameter cannot mean what it says.",
    why="Backends ignore a key that they do not know, so a space in a key or an empty value goes unnoticed.",
    source="python_backend `python_be.cc` for FORCE_CPU_ONLY_INPUT_TENSORS; inferred for the rest",
    good=HEAD + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n',
    bad=HEAD + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "false" } }\n',
)
def odd_parameter(model: Model) -> Iterator[Fault]:
    """An empty value, a key with spaces around it, or a value that the backend does not take."""
    for key, parameter in sorted(model.config.parameters.items()):
        path = f"parameters[{_quoted(key)}]"
        if key != key.strip() or not key:
            yield Fault(f"parameter key {key!r} has spaces around it or is empty", path, f"write {key.strip()!r}")
        elif not parameter.string_value:
            yield Fault(f"parameter {key!r} has no value", path, "give a string_value, or remove it")
        elif model.backend == "python" and parameter.string_value not in PYTHON_PARAMETERS.get(
            key, [parameter.string_value]
        ):
            said = f"{key} is {parameter.string_value!r}; the python backend refuses all but yes and no"
            yield Fault(said, path, 'write "yes" or "no"', Severity.ERROR)


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


@rule(
    "CFG044",
    Severity.ERROR,
    "A metric control is incomplete.",
    why="Triton wants the family and at least one bucket.",
    source="core `model_config_utils.cc`, ValidateModelMetrics",
    good=HEAD,
    bad=HEAD + 'model_metrics { metric_control { metric_identifier { family: "f" } } }\n',
    release="26.06",
)
def incomplete_metric(model: Model) -> Iterator[Fault]:
    """A ``metric_control`` without family or buckets."""
    for path, control in elements("model_metrics.metric_control", model.config.model_metrics.metric_control):
        if not control.metric_identifier.family:
            yield Fault("metric_control has no metric_identifier.family", path, "name the metric family")
        if not control.histogram_options.buckets:
            yield Fault("metric_control has no histogram_options.buckets", path, "give at least one bucket")


@rule(
    "CFG045",
    Severity.ERROR,
    "A sequence batcher value is out of range.",
    why="Preferred sizes of the oldest strategy lie in 1..max_batch_size, the slot utilisation of the direct one in 0..1.",
    source="core `model_config_utils.cc`, ValidateModelConfig",
    good=HEAD + "sequence_batching { oldest { preferred_batch_size: [ 50, 100 ] } }\n",
    bad=HEAD + "sequence_batching { oldest { preferred_batch_size: [ 128 ] } }\n",
)
def sequence_values(model: Model) -> Iterator[Fault]:
    """Preferred sizes or slot utilisation of the sequence batcher outside their range."""
    batcher, most = model.config.sequence_batching, model.config.max_batch_size
    sizes = elements("sequence_batching.oldest.preferred_batch_size", batcher.oldest.preferred_batch_size)
    for path, size in sizes:
        if not 1 <= size <= most:
            yield Fault(f"preferred size {size} is outside 1..{most} (max_batch_size)", path, "keep to that range")
    if not 0.0 <= batcher.direct.minimum_slot_utilization <= 1.0:
        said = f"minimum_slot_utilization is {batcher.direct.minimum_slot_utilization:g}, outside 0..1"
        yield Fault(said, "sequence_batching.direct.minimum_slot_utilization", "it is a ratio")


@rule(
    "CFG046",
    Severity.WARNING,
    "The same model version is listed twice.",
    why="A list that was edited by hand usually meant another number.",
    source="inferred",
    good=HEAD + "version_policy { specific { versions: [ 1, 2 ] } }\n",
    bad=HEAD + "version_policy { specific { versions: [ 1, 1 ] } }\n",
)
def duplicate_version(model: Model) -> Iterator[Fault]:
    """``version_policy.specific`` naming a version more than once."""
    for version, times in Counter(model.config.version_policy.specific.versions).items():
        if times > 1:
            yield Fault(
                f"version {version} is listed {times} times", "version_policy.specific.versions", "list it once"
            )
