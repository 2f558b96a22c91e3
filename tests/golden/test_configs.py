"""Generated configurations: the committed ones, and one in which every field of the service file shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from brim.adapter_parameter import PARAMETER
from brim.config.files import config_texts, differences, needed_files, write_configs
from brim.config.generate import (
    BATCH_PROFILES,
    Profile,
    model_config,
    model_configs,
    models_of,
    native_name,
)
from brim.config.tensorrt_plan import EnginePrecision, optimisation_profile, trtexec_command
from brim.config.textformat import parse
from brim.runtime.settings import Settings
from brim.service.load import find_services, load_service
from brim.service.schema import NAME_PATTERN, Instances, Kind, Native, Provider, Service


@pytest.fixture(scope="module")
def everything(checkout: Path) -> Service:
    return load_service(checkout / "tests" / "golden" / "everything.yaml")


def test_committed_files_are_what_the_service_files_give(checkout: Path) -> None:
    services = find_services(checkout / "services", [])
    assert {service.name for service in services} >= {"text_embedding", "image_classifier"}
    assert [item for service in services for item in differences(checkout / "model_repository", service)] == []


@pytest.mark.parametrize("profile", BATCH_PROFILES)
def test_every_field_reaches_the_configuration(checkout: Path, everything: Service, profile: Profile) -> None:
    for model, text in config_texts(everything, profile).items():
        golden = checkout / "tests" / "golden" / f"{model}.{profile.value}.pbtxt"
        assert text == golden.read_text(encoding="utf-8")


def test_every_batcher_field_of_triton_can_be_set(everything: Service) -> None:
    config = model_config(
        everything.model_copy(update={"batching": everything.batching.model_copy(update={"preserve_ordering": True})})
    )
    block = config.dynamic_batching
    assert {field.name for field, _ in block.ListFields()} == {
        field.name for field in pb.ModelDynamicBatching.DESCRIPTOR.fields
    }
    policy = block.default_queue_policy
    assert {field.name for field, _ in policy.ListFields()} == {
        field.name for field in pb.ModelQueuePolicy.DESCRIPTOR.fields
    }
    assert policy.default_timeout_microseconds == 250_000
    assert block.max_queue_delay_microseconds == 2_500


def test_text_reads_back_as_the_same_message(everything: Service) -> None:
    for profile in BATCH_PROFILES:
        for model, text in config_texts(everything, profile).items():
            parsed = parse(text, "config.pbtxt")
            assert parsed.findings == []
            assert parsed.message == model_configs(everything, profile)[model]


def test_warm_up_covers_one_each_preferred_and_the_largest(everything: Service) -> None:
    assert [item.batch_size for item in model_config(everything).model_warmup] == [1, 8, 32, 64]


def test_empty_batcher_block_is_present(checkout: Path) -> None:
    service = load_service(checkout / "services" / "text_embedding.yaml")
    assert model_config(service).HasField("dynamic_batching")


def test_adapter_reads_what_the_generator_writes(everything: Service) -> None:
    settings = Settings.model_validate_json(model_config(everything).parameters[PARAMETER].string_value)
    assert settings.guard["X"].maximum == 2.5
    assert settings.guard["X"].finite is False
    assert settings.guard["TEXT"].longest_bytes == 10
    assert settings.inputs == {"X": "x"}
    assert settings.outputs == {"Y": "y"}
    assert (settings.threads, settings.longest_tokens) == (3, 128)
    assert settings.padding is not None and settings.padding.max_tokens == 4096
    assert json.loads(model_config(everything).parameters[PARAMETER].string_value)["adapter"] == "pkg.mod:Adapter"


NATIVE = [Profile.ONNX_GPU, Profile.TENSORRT, Profile.ONNX_CPU]


@pytest.mark.parametrize("profile", NATIVE)
def test_behind_a_front_stands_the_model_that_speaks_the_graphs_names(checkout: Path, profile: Profile) -> None:
    service = load_service(checkout / "services" / "text_embedding.yaml")
    assert models_of(service, profile) == ["text_embedding-native", "text_embedding"]
    inner, front = model_configs(service, profile).values()
    assert [tensor.name for tensor in inner.input] == ["input_ids", "attention_mask"]
    assert [tensor.name for tensor in inner.output] == ["sentence_embedding", "valid"]
    assert PARAMETER not in inner.parameters
    kind = pb.ModelInstanceGroup.KIND_CPU if profile is Profile.ONNX_CPU else pb.ModelInstanceGroup.KIND_GPU
    assert [group.kind for group in inner.instance_group] == [kind]
    assert not inner.HasField("dynamic_batching")
    assert inner.max_batch_size == front.max_batch_size == 100
    assert [tensor.name for tensor in front.input] == ["TEXT"]
    assert [tensor.name for tensor in front.output] == ["EMBEDDING"]
    settings = Settings.model_validate_json(front.parameters[PARAMETER].string_value)
    assert settings.native is not None
    assert (settings.native.model, settings.native.valid) == (inner.name, "valid")


@pytest.mark.parametrize("profile", NATIVE)
def test_only_the_model_behind_is_warmed_up(everything: Service, profile: Profile) -> None:
    inner, front = model_configs(everything, profile).values()
    assert [item.batch_size for item in inner.model_warmup] == [1, 8, 32, 64]
    assert list(front.model_warmup) == []
    assert front.HasField("dynamic_batching")
    assert sum(group.count for group in front.instance_group) == sum(group.count for group in inner.instance_group)


@pytest.mark.parametrize("name", ["text_embedding", "image_classifier"])
def test_on_a_cpu_only_the_place_of_the_native_model_differs(checkout: Path, name: str) -> None:
    """The official onnxruntime backend loads the same repository on KIND_CPU, by the name of the profile alone."""
    service = load_service(checkout / "services" / f"{name}.yaml")
    inner, front = model_configs(service, Profile.ONNX_GPU).values()
    inner_on_cpu, front_on_cpu = model_configs(service, Profile.ONNX_CPU).values()
    assert front_on_cpu == front
    for group in inner.instance_group:
        group.kind = pb.ModelInstanceGroup.KIND_CPU
    if service.runtime.threads:
        inner.parameters["intra_op_thread_count"].string_value = str(service.runtime.threads)
    assert inner_on_cpu == inner


def test_a_group_on_two_gpus_is_one_group_on_the_cpu(everything: Service) -> None:
    groups = (Instances(count=2, kind=Kind.GPU, gpus=(0, 1)), Instances(count=1, kind=Kind.GPU, gpus=(2,)))
    service = everything.model_copy(update={"instances": groups})
    on_gpus, front = model_configs(service, Profile.ONNX_GPU).values()
    assert [(group.count, list(group.gpus)) for group in on_gpus.instance_group] == [(2, [0, 1]), (1, [2])]
    assert [group.count for group in front.instance_group] == [5]
    on_cpu, front = model_configs(service, Profile.ONNX_CPU).values()
    assert [(group.count, list(group.gpus)) for group in on_cpu.instance_group] == [(2, []), (1, [])]
    assert [group.count for group in front.instance_group] == [3]


def test_tensorrt_inside_onnx_runtime_is_prepared_for_every_batch(checkout: Path) -> None:
    service = load_service(checkout / "services" / "text_embedding.yaml")
    service = service.model_copy(update={"native": Native(provider=Provider.TENSORRT)})
    inner, _ = model_configs(service, Profile.ONNX_GPU).values()
    (accelerator,) = inner.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    given = dict(accelerator.parameters)
    assert given["precision_mode"] == "FP32"
    assert given["trt_profile_min_shapes"] == "input_ids:1x1,attention_mask:1x1"
    assert given["trt_profile_max_shapes"] == "input_ids:100x512,attention_mask:100x512"
    paths = (Path("a"), Path("b"), Path("c"))
    command = trtexec_command(optimisation_profile(service), EnginePrecision.FP32, *paths)
    for bound in ("min", "opt", "max"):
        assert f"--{bound}Shapes={given[f'trt_profile_{bound}_shapes']}" in command
    for other in (Profile.TENSORRT, Profile.ONNX_CPU):
        inner, _ = model_configs(service, other).values()
        assert not inner.optimization.HasField("execution_accelerators")


def test_a_cuda_graph_serves_its_own_size_only(checkout: Path) -> None:
    service = load_service(checkout / "services" / "image_classifier.yaml")
    service = service.model_copy(update={"native": Native(cuda_graphs=(1, 64, 100))})
    inner, front = model_configs(service, Profile.TENSORRT).values()
    cuda = inner.optimization.cuda
    assert cuda.graphs
    assert [one.batch_size for one in cuda.graph_spec] == [1, 64, 100]
    for one in cuda.graph_spec:
        assert {name: list(shape.dim) for name, shape in one.input.items()} == {"IMAGE": [1, 8, 8]}
        assert not one.HasField("graph_lower_bound")
    assert not front.HasField("optimization")
    inner, _ = model_configs(service, Profile.ONNX_GPU).values()
    assert not inner.HasField("optimization")


@pytest.mark.parametrize("profile", [Profile.ONNX_GPU, Profile.TENSORRT])
def test_page_locked_memory_is_triton_s_default(everything: Service, profile: Profile) -> None:
    inner, _ = model_configs(everything, profile).values()
    for buffer in ("input_pinned_memory", "output_pinned_memory"):
        assert inner.optimization.HasField(buffer) and not getattr(inner.optimization, buffer).enable
    usual = everything.model_copy(update={"native": Native()})
    inner, _ = model_configs(usual, profile).values()
    assert not inner.HasField("optimization")


def test_the_default_profile_is_one_model(everything: Service) -> None:
    assert models_of(everything, Profile.DEFAULT) == ["everything"]


def test_no_service_can_have_the_name_of_a_model_behind_a_front(everything: Service) -> None:
    assert re.fullmatch(NAME_PATTERN, everything.name)
    assert not re.fullmatch(NAME_PATTERN, native_name(everything))


def test_the_row_mask_takes_no_name_of_the_service(everything: Service) -> None:
    outputs = (*everything.outputs, everything.outputs[0].model_copy(update={"name": "valid", "graph_name": "valid_2"}))
    inner, _ = model_configs(everything.model_copy(update={"outputs": outputs}), Profile.ONNX_GPU).values()
    assert [tensor.name for tensor in inner.output] == ["y", "valid_2", "valid_3"]


def test_needed_files_are_those_that_the_profile_reads(tmp_path: Path, everything: Service) -> None:
    def needed(profile: Profile) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in needed_files(tmp_path, everything, profile)]

    assert needed(Profile.DEFAULT) == ["everything/config.pbtxt", "everything/1/model.onnx"]
    assert needed(Profile.ONNX_GPU) == [
        "everything-native/configs/onnx-gpu.pbtxt",
        "everything/configs/onnx-gpu.pbtxt",
        "everything/1/model.onnx",
        "everything-native/1/model.onnx",
    ]
    assert needed(Profile.ONNX_CPU) == [path.replace("onnx-gpu", "onnx-cpu") for path in needed(Profile.ONNX_GPU)]
    assert needed(Profile.TENSORRT)[-1] == "everything-native/1/model.plan"
    *_, command = needed_files(tmp_path, everything, Profile.TENSORRT).values()
    assert command == "brim export everything --tensorrt"


def test_check_shows_the_difference_and_write_mends_it(tmp_path: Path, everything: Service) -> None:
    assert [item.diff for item in differences(tmp_path, everything)] == [""] * 8
    assert len(write_configs(tmp_path, everything)) == 8
    assert (tmp_path / "everything-native" / "1").is_dir()
    assert differences(tmp_path, everything) == []
    assert write_configs(tmp_path, everything) == []
    path = tmp_path / "everything" / "config.pbtxt"
    path.write_text(path.read_text(encoding="utf-8").replace("64", "63", 1), encoding="utf-8")
    (found,) = differences(tmp_path, everything)
    assert found.path == path
    assert "-max_batch_size: 63" in found.diff and "+max_batch_size: 64" in found.diff
