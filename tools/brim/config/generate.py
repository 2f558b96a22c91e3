"""From a service to Triton's configuration: one ModelConfig message a profile, never string pasting.

Profiles are Triton's own mechanism (``--model-config-name``): ``config.pbtxt`` is the default and runs anywhere, through
the python backend that hosts ONNX Runtime. ``configs/onnx-gpu.pbtxt`` and ``configs/tensorrt.pbtxt`` are two models: under
the service's own name a front in the python backend, which takes the requests and forms the batches, and behind it
``NAME-native``, which runs whole batches on the native backend (``brim.runtime.front``). ``configs/onnx-cpu.pbtxt`` is the
first of the two on KIND_CPU, for the same backend on a machine without a GPU. A language model has the default profile and
``configs/vllm.pbtxt`` (``brim.config.generation``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from brim.adapter_parameter import PARAMETER
from brim.config.generation import add_backend, engine_settings
from brim.config.native import by_tensorrt, with_onnx_runtime
from brim.errors import InputError
from brim.service.schema import Batching, DataType, InputTensor, Kind, QueuePolicy, Service, Tensor
from brim.units import ms_to_us

NATIVE_SUFFIX = "-native"
"""Ends the name of the model behind the front. No service's name has a hyphen, so the two cannot collide."""
VALID_OUTPUT = "valid"
"""Output of the guarded graph that tells which rows it could take, unless the service has a tensor of that name."""
MODEL_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}
"""File of each native backend, in the version folder."""
WARMUP_VARIABLE_SIZE = 16
"""Size that a variable dimension takes in warm-up data: one typical size is enough to warm."""


class Profile(StrEnum):
    """A way to run the same service."""

    DEFAULT = "default"
    ONNX_GPU = "onnx-gpu"
    TENSORRT = "tensorrt"
    ONNX_CPU = "onnx-cpu"
    VLLM = "vllm"


BATCH_PROFILES = (Profile.DEFAULT, Profile.ONNX_GPU, Profile.TENSORRT, Profile.ONNX_CPU)
"""Profiles of a model that answers a batch at once."""
TEXT_PROFILES = (Profile.DEFAULT, Profile.VLLM)
"""Profiles of a language model."""


def profiles_of(service: Service) -> tuple[Profile, ...]:
    """The ways to run the service."""
    return BATCH_PROFILES if service.generation is None else TEXT_PROFILES


def triton_type(dtype: DataType) -> Any:
    """The configuration's enum value; BYTES is called STRING there."""
    return pb.DataType.Value("TYPE_STRING" if dtype is DataType.BYTES else f"TYPE_{dtype.value}")


def graph_tensors(service: Service) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inputs and outputs of the ONNX graph, as a native backend needs them: its own names, the service's shapes."""
    inputs: Sequence[Tensor] = service.model.graph_inputs or service.inputs
    return [_in_graph(tensor) for tensor in inputs], [_in_graph(tensor) for tensor in service.outputs]


def _in_graph(tensor: Tensor) -> Tensor:
    return Tensor(name=tensor.graph_name or tensor.name, dtype=tensor.dtype, shape=tensor.shape)


def may_be_absent(tensor: Tensor) -> bool:
    """Whether a request may leave the input out. The inputs of a graph are all needed."""
    return isinstance(tensor, InputTensor) and tensor.optional


def native_name(service: Service) -> str:
    """Name of the model behind the front of the native profiles."""
    return service.name + NATIVE_SUFFIX


def valid_output(names: Iterable[str]) -> str:
    """What the guarded graph calls its row mask: a name that none of the service's tensors (``names``) has."""
    taken, name, number = set(names), VALID_OUTPUT, 1
    while name in taken:
        number += 1
        name = f"{VALID_OUTPUT}_{number}"
    return name


def tensor_names(service: Service) -> list[str]:
    """Every name that a tensor of the service has, for callers or in the graph."""
    tensors: list[Tensor] = [*service.inputs, *service.outputs, *service.model.graph_inputs]
    return [name for tensor in tensors for name in (tensor.name, tensor.graph_name) if name]


def models_of(service: Service, profile: Profile) -> list[str]:
    """The models that serve the service under a profile, in the order in which to load them; the last has its name."""
    return list(model_configs(service, profile))


def model_configs(service: Service, profile: Profile) -> dict[str, pb.ModelConfig]:
    """The configurations of ``models_of``, by model.

    Raises:
        InputError: the service has no such profile.
    """
    if profile not in profiles_of(service):
        known = ", ".join(one.value for one in profiles_of(service))
        what = "a model that answers a batch at once" if service.generation is None else "a language model"
        raise InputError(
            f"{service.name} has no profile {profile.value}: it is {what}, whose profiles are {known}",
            hint=f"choose one of {known}, or serve the models of different kinds apart",
        )
    if service.generation is not None:
        return {service.name: text_config(service, profile)}
    configs = [model_config(service, profile)]
    if profile is not Profile.DEFAULT:
        configs.insert(0, native_config(service, profile))
    return {config.name: config for config in configs}


def model_config(service: Service, profile: Profile = Profile.DEFAULT) -> pb.ModelConfig:
    """The configuration of the model that callers ask: it takes and batches requests under every profile.

    In front of a native backend it has no warm-up: that would call a model which Triton may not have loaded yet. The
    model behind has its own, and the front itself is warmed by the canary that readiness waits for.
    """
    config = _config(service, service.name, "python", service.inputs, service.outputs)
    for tensor, output in zip(config.output, service.outputs, strict=True):
        tensor.label_filename = output.labels or ""
    if profile is Profile.DEFAULT:
        for group in service.instances:
            _add_instances(config, group.count, group.kind, group.gpus)
    else:
        # One for each instance behind it: a front waits while its batch runs.
        on_gpus = profile is not Profile.ONNX_CPU
        fronts = sum(group.count * (max(1, len(group.gpus)) if on_gpus else 1) for group in service.instances)
        _add_instances(config, fronts, Kind.CPU)
    settings = adapter_settings(service, profile)
    config.parameters[PARAMETER].string_value = json.dumps(settings, sort_keys=True)
    config.dynamic_batching.CopyFrom(dynamic_batching(service.batching))
    if profile is Profile.DEFAULT:
        _warm(config, service, service.inputs)
    return config


def text_config(service: Service, profile: Profile = Profile.DEFAULT) -> pb.ModelConfig:
    """The configuration of a language model: decoupled, and batched by its engine before every step."""
    config = _config(service, service.name, "python", service.inputs, service.outputs)
    add_backend(config, service, vllm=profile is Profile.VLLM)
    if profile is Profile.DEFAULT:
        config.parameters[PARAMETER].string_value = json.dumps(engine_settings(service), sort_keys=True)
    return config


def native_config(service: Service, profile: Profile) -> pb.ModelConfig:
    """The model behind the front: the guarded graph on a native backend. It has no batcher, since whole batches come."""
    backend = "tensorrt" if profile is Profile.TENSORRT else "onnxruntime"
    on_gpus = profile is not Profile.ONNX_CPU
    inputs, outputs = graph_tensors(service)
    config = _config(service, native_name(service), backend, inputs, outputs)
    config.default_model_filename = MODEL_FILES[backend]
    config.output.add(name=valid_output(tensor_names(service)), data_type=pb.TYPE_FP32, dims=[1])
    for group in service.instances:
        _add_instances(config, group.count, Kind.GPU if on_gpus else Kind.CPU, group.gpus if on_gpus else ())
    if profile is Profile.TENSORRT:
        by_tensorrt(config, service, inputs)
    else:
        with_onnx_runtime(config, service, inputs, on_gpus=on_gpus)
    _warm(config, service, inputs)
    return config


def _config(
    service: Service, name: str, backend: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> pb.ModelConfig:
    config = pb.ModelConfig(name=name, backend=backend, max_batch_size=service.max_batch_size)
    for tensor in inputs:
        config.input.add(
            name=tensor.name,
            data_type=triton_type(tensor.dtype),
            dims=tensor.shape,
            optional=may_be_absent(tensor),
        )
    for tensor in outputs:
        config.output.add(name=tensor.name, data_type=triton_type(tensor.dtype), dims=tensor.shape)
    return config


def _add_instances(config: pb.ModelConfig, count: int, kind: Kind, gpus: Sequence[int] = ()) -> None:
    config.instance_group.add(count=count, kind=pb.ModelInstanceGroup.Kind.Value(f"KIND_{kind.value}"), gpus=gpus)


def _warm(config: pb.ModelConfig, service: Service, inputs: Sequence[Tensor]) -> None:
    for rows in sorted({1, *service.batching.preferred, service.max_batch_size}):
        config.model_warmup.append(_warmup(rows, inputs))


def dynamic_batching(batching: Batching) -> pb.ModelDynamicBatching:
    """The batcher block. Present even when empty: an empty block switches batching on."""
    block = pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred,
        max_queue_delay_microseconds=ms_to_us(batching.max_queue_delay_ms),
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
    )
    if batching.default_queue_policy is not None:
        block.default_queue_policy.CopyFrom(_queue_policy(batching.default_queue_policy))
    for level, policy in batching.priority_queue_policy.items():
        block.priority_queue_policy[level].CopyFrom(_queue_policy(policy))
    return block


def _queue_policy(policy: QueuePolicy) -> pb.ModelQueuePolicy:
    return pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.TimeoutAction.Value(policy.timeout_action),
        default_timeout_microseconds=ms_to_us(policy.default_timeout_ms),
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _warmup(rows: int, inputs: Sequence[Tensor]) -> pb.ModelWarmup:
    warmup = pb.ModelWarmup(name=f"rows_{rows}", batch_size=rows, count=1)
    for tensor in inputs:
        if may_be_absent(tensor):
            continue
        dims = [WARMUP_VARIABLE_SIZE if size == -1 else size for size in tensor.shape]
        warmup.inputs[tensor.name].CopyFrom(
            pb.ModelWarmup.Input(data_type=triton_type(tensor.dtype), dims=dims, zero_data=True)
        )
    return warmup


def adapter_settings(service: Service, profile: Profile = Profile.DEFAULT) -> dict[str, Any]:
    """Settings of the adapter, without what it would assume anyway."""
    native = None
    if profile is not Profile.DEFAULT:
        native = {"model": native_name(service), "valid": valid_output(tensor_names(service))}
    guard: dict[str, Any] = {}
    for tensor in service.inputs:
        rules = {
            "finite": None if tensor.finite else False,
            "minimum": tensor.minimum,
            "maximum": tensor.maximum,
            "longest_bytes": tensor.longest_bytes,
            "largest_size": tensor.largest_size,
        }
        if any(value is not None for value in rules.values()):
            guard[tensor.name] = {key: value for key, value in rules.items() if value is not None}
    settings: dict[str, Any] = {
        "adapter": service.model.adapter,
        "guard": guard,
        "inputs": {tensor.name: tensor.graph_name for tensor in service.inputs if tensor.graph_name},
        "outputs": {tensor.name: tensor.graph_name for tensor in service.outputs if tensor.graph_name},
        "native": native,
        "threads": None if native else service.runtime.threads,
        "longest_tokens": service.runtime.longest_tokens,
        "padding": service.runtime.padding.model_dump(exclude_defaults=True) if service.runtime.padding else None,
    }
    return {key: value for key, value in settings.items() if value}
