"""Generated configurations: the committed ones, and one in which every field of the service file shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from brim.config.files import config_text, differences, write_configs
from brim.config.generate import ADAPTER_PARAMETER, Profile, model_config
from brim.config.textformat import parse
from brim.runtime.settings import PARAMETER, Settings
from brim.service.load import find_services, load_service
from brim.service.schema import Service


@pytest.fixture(scope="module")
def everything(checkout: Path) -> Service:
    return load_service(checkout / "tests" / "golden" / "everything.yaml")


def test_committed_files_are_what_the_service_files_give(checkout: Path) -> None:
    services = find_services(checkout / "services", [])
    assert {service.name for service in services} >= {"text_embedding", "image_classifier"}
    assert [item for service in services for item in differences(checkout / "model_repository", service)] == []


@pytest.mark.parametrize("profile", list(Profile))
def test_every_field_reaches_the_configuration(checkout: Path, everything: Service, profile: Profile) -> None:
    golden = checkout / "tests" / "golden" / f"everything.{profile.value}.pbtxt"
    assert config_text(everything, profile) == golden.read_text(encoding="utf-8")


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
    for profile in Profile:
        parsed = parse(config_text(everything, profile), "config.pbtxt")
        assert parsed.findings == []
        assert parsed.message == model_config(everything, profile)


def test_warm_up_covers_one_each_preferred_and_the_largest(everything: Service) -> None:
    assert [item.batch_size for item in model_config(everything).model_warmup] == [1, 8, 32, 64]


def test_empty_batcher_block_is_present(checkout: Path) -> None:
    service = load_service(checkout / "services" / "text_embedding.yaml")
    assert model_config(service).HasField("dynamic_batching")


def test_adapter_reads_what_the_generator_writes(everything: Service) -> None:
    assert PARAMETER == ADAPTER_PARAMETER
    settings = Settings.model_validate_json(model_config(everything).parameters[PARAMETER].string_value)
    assert settings.guard["X"].maximum == 2.5
    assert settings.guard["X"].finite is False
    assert settings.guard["TEXT"].longest_bytes == 10
    assert settings.inputs == {"X": "x"}
    assert settings.outputs == {"Y": "y"}
    assert (settings.threads, settings.longest_tokens) == (3, 128)
    assert settings.padding is not None and settings.padding.max_tokens == 4096
    assert json.loads(model_config(everything).parameters[PARAMETER].string_value)["adapter"] == "pkg.mod:Adapter"


def test_native_profiles_speak_the_graphs_names(checkout: Path) -> None:
    service = load_service(checkout / "services" / "text_embedding.yaml")
    for profile in (Profile.ONNX_GPU, Profile.TENSORRT):
        config = model_config(service, profile)
        assert [tensor.name for tensor in config.input] == ["input_ids", "attention_mask"]
        assert [tensor.name for tensor in config.output] == ["sentence_embedding"]
        assert PARAMETER not in config.parameters
        assert all(group.kind == pb.ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def test_check_shows_the_difference_and_write_mends_it(tmp_path: Path, everything: Service) -> None:
    assert [item.diff for item in differences(tmp_path, everything)] == ["", "", ""]
    assert len(write_configs(tmp_path, everything)) == 3
    assert differences(tmp_path, everything) == []
    assert write_configs(tmp_path, everything) == []
    path = tmp_path / "everything" / "config.pbtxt"
    path.write_text(path.read_text(encoding="utf-8").replace("64", "63", 1), encoding="utf-8")
    (found,) = differences(tmp_path, everything)
    assert found.path == path
    assert "-max_batch_size: 63" in found.diff and "+max_batch_size: 64" in found.diff
