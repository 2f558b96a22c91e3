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
from brim.config.textformat import parse
from brim.runtime.settings import Settings
from brim.service.load import find_services, load_service
from brim.service.schema import NAME_PATTERN, Service


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


NATIVE = [Profile.ONNX_GPU, Profile.TENSORRT]


@pytest.mark.parametrize("profile", NATIVE)
def test_behind_a_front_stands_the_model_that_speaks_the_graphs_names(checkout: Path, profile: Profile) -> None:
    service = load_service(checkout / "services" / "text_embedding.yaml")
    assert models_of(service, profile) == ["text_embedding-native", "text_embedding"]
    inner, front = model_configs(service, profile).values()
    assert [tensor.name for tensor in inner.input] == ["input_ids", "attention_mask"]
    assert [tensor.name for tensor in inner.output] == ["sentence_embedding", "valid"]
    assert PARAMETER not in inner.parameters
    assert all(group.kind == pb.ModelInstanceGroup.KIND_GPU for group in inner.instance_group)
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
    assert needed(Profile.TENSORRT)[-1] == "everything-native/1/model.plan"
    *_, command = needed_files(tmp_path, everything, Profile.TENSORRT).values()
    assert command == "brim export everything --tensorrt"


def test_check_shows_the_difference_and_write_mends_it(tmp_path: Path, everything: Service) -> None:
    assert [item.diff for item in differences(tmp_path, everything)] == [""] * 6
    assert len(write_configs(tmp_path, everything)) == 6
    assert (tmp_path / "everything-native" / "1").is_dir()
    assert differences(tmp_path, everything) == []
    assert write_configs(tmp_path, everything) == []
    path = tmp_path / "everything" / "config.pbtxt"
    path.write_text(path.read_text(encoding="utf-8").replace("64", "63", 1), encoding="utf-8")
    (found,) = differences(tmp_path, everything)
    assert found.path == path
    assert "-max_batch_size: 63" in found.diff and "+max_batch_size: 64" in found.diff
