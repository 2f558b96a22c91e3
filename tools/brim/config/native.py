"""What a native backend is told beside tensors and instances: provider, CUDA graphs, page-locked memory, threads.

Fields and keys are those of Triton's ``ModelOptimizationPolicy`` (common ``model_config.proto``) and of the onnxruntime
backend's accelerators (its README).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from tritonclient.grpc import model_config_pb2 as pb

from brim.config.shapes import bounds, shapes_text, spans
from brim.service.schema import Provider, Service, Tensor

ENGINE_CACHE = PurePosixPath("/tmp/brim-engines")
"""Where the TensorRT provider keeps its engines, in the server's container: mount a folder there to keep them over a start.

One level below a folder that exists: the provider makes no more than that.
"""


def with_onnx_runtime(config: pb.ModelConfig, service: Service, inputs: Sequence[Tensor], *, on_gpus: bool) -> None:
    """Complete a model of the onnxruntime backend.

    Args:
        config: has tensors and instances.
        service: of the model.
        inputs: of its graph.
        on_gpus: whether its instances are on GPUs; on the CPU it gets the service's threads.
    """
    if not on_gpus:
        if service.runtime.threads:
            config.parameters["intra_op_thread_count"].string_value = str(service.runtime.threads)
        return
    _pinned_memory(config, service)
    if service.native.provider is Provider.TENSORRT:
        accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
        shapes = bounds(spans(service, inputs))
        # Without shapes given, an engine that meets a new one is built anew while callers wait.
        accelerator.parameters.update(
            {
                "precision_mode": service.native.precision.upper(),
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": str(ENGINE_CACHE),
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": str(ENGINE_CACHE),
                **{f"trt_profile_{bound}_shapes": shapes_text(shape) for bound, shape in shapes.items()},
            }
        )


def by_tensorrt(config: pb.ModelConfig, service: Service, inputs: Sequence[Tensor]) -> None:
    """Complete a model of the tensorrt backend: the graph's ``inputs`` have fixed sizes where CUDA graphs are asked for.

    Each graph serves exactly its own size. Triton's ``graph_lower_bound``, which lets a graph of 64 rows serve 37, is left
    out: the other 27 rows would be what an earlier batch left in the buffer.
    """
    _pinned_memory(config, service)
    if service.native.cuda_graphs:
        cuda = config.optimization.cuda
        cuda.graphs = True
        for rows in service.native.cuda_graphs:
            captured = cuda.graph_spec.add(batch_size=rows)
            for tensor in inputs:
                captured.input[tensor.name].dim.extend(tensor.shape)


def _pinned_memory(config: pb.ModelConfig, service: Service) -> None:
    # Where a configuration says nothing, Triton uses it.
    if not service.native.pinned_memory:
        config.optimization.input_pinned_memory.enable = False
        config.optimization.output_pinned_memory.enable = False
