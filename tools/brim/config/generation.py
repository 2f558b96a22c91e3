"""From a language model's service to Triton's configuration, and to the engine arguments of Triton's vLLM backend.

One contract for both engines: names, types and the decoupled policy are those that the vLLM backend completes a model with
(``src/model.py`` there), so a caller cannot tell which one answers. The default profile runs openvino-genai's
continuous-batching pipeline in the python backend (``brim.engine``); the profile ``vllm`` is the backend of that name.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from brim.service.schema import Generation, Kind, Service

MODEL_NAMES = {"gguf": "model.gguf", "folder": "model"}
"""What the export puts into the version folder: a GGUF file, or a folder that the engine reads as it is."""
LANGUAGE_MODEL_RECORD = "language_model.json"
"""File of the version folder that says what was exported, from what, and what the gates saw."""
ENGINE_ARGUMENTS_NAME = "model.json"
"""File of the version folder from which the vLLM backend reads its engine's arguments."""
MOUNTED_AT = PurePosixPath("/models")
"""Where the container has the model repository."""


def generation_of(service: Service) -> Generation:
    """The generation block of a language model's service.

    Raises:
        ValueError: the service is none.
    """
    if service.generation is None:
        raise ValueError(f"{service.name} is no language model: its service file has no model.llm")
    return service.generation


def engine_settings(service: Service) -> dict[str, Any]:
    """Settings of the python backend's host, as its configuration's parameter holds them (``brim.engine.settings``)."""
    generation = generation_of(service)
    classes = [
        {"name": caller.name, "priority": caller.priority, "deadline_ms": caller.deadline_ms}
        for caller in service.callers
    ]
    return {
        "context_tokens": generation.context_tokens,
        "kv_blocks": generation.kv_blocks,
        "max_sequences": generation.max_sequences,
        "chunk_tokens": generation.chunk_tokens,
        "max_waiting": generation.max_waiting,
        "batch_kept_share": generation.batch_kept_share,
        "ttft_ms": service.slo.ttft_ms,
        "prefix_cache": generation.prefix_cache,
        "precision": generation.precision,
        "threads": service.runtime.threads,
        "gives_up_ms": service.slo.caller_gives_up_ms,
        "classes": classes,
    }


def vllm_arguments(service: Service) -> dict[str, Any]:
    """Arguments of vLLM's engine (``AsyncEngineArgs``), by name.

    Its KV cache is what the share of the GPU's memory leaves beside the weights: ``kv_blocks`` counts for CPUs alone.
    """
    generation = generation_of(service)
    exported = MOUNTED_AT / service.name / "1" / MODEL_NAMES["gguf" if is_gguf(service) else "folder"]
    return {
        "model": generation.vllm_model or str(exported),
        "max_model_len": generation.context_tokens,
        "max_num_seqs": generation.max_sequences,
        "max_num_batched_tokens": generation.chunk_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "gpu_memory_utilization": generation.gpu_memory_share,
        "disable_log_stats": False,
    }


def vllm_arguments_text(service: Service) -> str:
    """The file that the vLLM backend reads. JSON has no comments, so it cannot say where it comes from."""
    return json.dumps(vllm_arguments(service), indent=2) + "\n"


def is_gguf(service: Service) -> bool:
    """Whether the service's language model is a GGUF file, be it in a package or on disk."""
    return str(service.model.llm).lower().endswith(".gguf")


def add_backend(config: pb.ModelConfig, service: Service, *, vllm: bool) -> None:
    """Complete a configuration that has name and tensors: decoupled, never batched by Triton, one instance."""
    config.max_batch_size = 0
    config.model_transaction_policy.decoupled = True
    (group,) = service.instances
    if vllm:
        config.backend = "vllm"
        # The engine finds its GPUs itself: all of those that the server sees, or as many as its arguments say.
        config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.Kind.Value("KIND_MODEL"))
        config.parameters["REPORT_CUSTOM_METRICS"].string_value = "true"
        return
    config.backend = "python"
    kind = Kind.CPU if group.kind is Kind.AUTO else group.kind
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.Kind.Value(f"KIND_{kind.value}"), gpus=group.gpus)
