"""From a service to Triton's configuration: one ModelConfig message a profile, never string pasting.

Profiles are Triton's own mechanism (``--model-config-name``): ``config.pbtxt`` is the default and runs anywhere, through
the python backend that hosts ONNX Runtime; ``configs/onnx-gpu.pbtxt`` and ``configs/tensorrt.pbtxt`` use native backends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from brim.service.schema import Batching, DataType, InputTensor, Kind, QueuePolicy, Service, Tensor
from brim.units import ms_to_us

ADAPTER_PARAMETER = "brim"
"""Name of the configuration parameter that carries the adapter's settings, as JSON."""
WARMUP_VARIABLE_SIZE = 16
"""Size that a variable dimension takes in warm-up data: one typical size is enough to warm."""


class Profile(StrEnum):
    """A way to run the same service."""

    DEFAULT = "default"
    ONNX_GPU = "onnx-gpu"
    TENSORRT = "tensorrt"


def triton_type(dtype: DataType) -> Any:
    """The configuration's enum value; BYTES is called STRING there."""
    return pb.DataType.Value("TYPE_STRING" if dtype is DataType.BYTES else f"TYPE_{dtype.value}")


def graph_tensors(service: Service) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inputs and outputs of the ONNX graph, as a native backend needs them: its own names, the service's shapes."""
    inputs: Sequence[Tensor] = service.model.graph_inputs or service.inputs
    return [_in_graph(tensor) for tensor in inputs], [_in_graph(tensor) for tensor in service.outputs]


def _in_graph(tensor: Tensor) -> Tensor:
    return tensor.model_copy(update={"name": tensor.graph_name or tensor.name})


def may_be_absent(tensor: Tensor) -> bool:
    """Whether a request may leave the input out. The inputs of a graph are all needed."""
    return isinstance(tensor, InputTensor) and tensor.optional


def model_config(service: Service, profile: Profile = Profile.DEFAULT) -> pb.ModelConfig:
    """The configuration of a service under one profile."""
    config = pb.ModelConfig(name=service.name, max_batch_size=service.max_batch_size)
    inputs: Sequence[Tensor] = service.inputs
    outputs: Sequence[Tensor] = service.outputs
    if profile is Profile.DEFAULT:
        config.backend = "python"
        config.parameters[ADAPTER_PARAMETER].string_value = json.dumps(adapter_settings(service), sort_keys=True)
    else:
        config.backend = "onnxruntime" if profile is Profile.ONNX_GPU else "tensorrt"
        config.default_model_filename = "model.onnx" if profile is Profile.ONNX_GPU else "model.plan"
        inputs, outputs = graph_tensors(service)
    for tensor in inputs:
        config.input.add(
            name=tensor.name,
            data_type=triton_type(tensor.dtype),
            dims=tensor.shape,
            optional=may_be_absent(tensor),
        )
    for tensor, output in zip(outputs, service.outputs, strict=True):
        config.output.add(
            name=tensor.name,
            data_type=triton_type(tensor.dtype),
            dims=tensor.shape,
            label_filename=output.labels or "",
        )
    for group in service.instances:
        kind = group.kind if profile is Profile.DEFAULT else Kind.GPU
        config.instance_group.add(
            count=group.count, kind=pb.ModelInstanceGroup.Kind.Value(f"KIND_{kind.value}"), gpus=group.gpus
        )
    config.dynamic_batching.CopyFrom(dynamic_batching(service.batching))
    for rows in sorted({1, *service.batching.preferred, service.max_batch_size}):
        config.model_warmup.append(_warmup(rows, inputs))
    return config


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


def adapter_settings(service: Service) -> dict[str, Any]:
    """Settings of the adapter, without what it would assume anyway."""
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
        "threads": service.runtime.threads,
        "longest_tokens": service.runtime.longest_tokens,
        "padding": service.runtime.padding.model_dump(exclude_defaults=True) if service.runtime.padding else None,
    }
    return {key: value for key, value in settings.items() if value}
