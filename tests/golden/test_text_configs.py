"""Generated configurations of language models: every field of the service file shows, and both profiles are one contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from brim.adapter_parameter import PARAMETER
from brim.config.files import config_texts, differences, needed_files, write_configs
from brim.config.generate import BATCH_PROFILES, TEXT_PROFILES, Profile, model_configs, models_of
from brim.config.generation import vllm_arguments_text
from brim.engine.lifecycle import RequestClass
from brim.engine.settings import read_settings
from brim.engine.template import MODEL_PY
from brim.errors import InputError
from brim.service.load import check_text, load_service
from brim.service.schema import Service


@pytest.fixture(scope="module")
def story(checkout: Path) -> Service:
    return load_service(checkout / "tests" / "golden" / "story.yaml")


@pytest.mark.parametrize("profile", TEXT_PROFILES)
def test_every_field_reaches_the_configuration(checkout: Path, story: Service, profile: Profile) -> None:
    golden = checkout / "tests" / "golden"
    (text,) = config_texts(story, profile).values()
    assert text == (golden / f"story.{profile.value}.pbtxt").read_text(encoding="utf-8")
    assert vllm_arguments_text(story) == (golden / "story.model.json").read_text(encoding="utf-8")


def test_the_host_reads_what_the_generator_writes(story: Service) -> None:
    (config,) = model_configs(story, Profile.DEFAULT).values()
    settings = read_settings(
        {"name": "story", "parameters": {PARAMETER: {"string_value": config.parameters[PARAMETER].string_value}}}
    )
    assert (settings.context_tokens, settings.kv_blocks, settings.chunk_tokens) == (2048, 100, 128)
    assert (settings.precision, settings.threads) == ("bf16", 3)
    assert (settings.policy.max_sequences, settings.policy.max_waiting) == (16, 10)
    assert settings.policy.first_token_within_us == {
        RequestClass.INTERACTIVE: 1_500_000,
        RequestClass.BATCH: 90_000_000,
    }
    assert settings.policy.batch_kept_share == 0.25
    assert settings.class_of(4) == (RequestClass.BATCH, 90_000_000)
    assert settings.class_of(1) == (RequestClass.INTERACTIVE, 20_000_000)


def test_callers_cannot_tell_the_profiles_apart(story: Service) -> None:
    (here,), (there,) = (model_configs(story, profile).values() for profile in TEXT_PROFILES)
    assert (here.backend, there.backend) == ("python", "vllm")
    for field in ("name", "input", "output", "max_batch_size", "model_transaction_policy"):
        assert getattr(here, field) == getattr(there, field)
    assert here.model_transaction_policy.decoupled
    assert not here.HasField("dynamic_batching") and not here.model_warmup


VLLM_INPUTS = {
    "text_input": ("TYPE_STRING", [1], False),
    "stream": ("TYPE_BOOL", [1], True),
    "sampling_parameters": ("TYPE_STRING", [1], True),
    "exclude_input_in_output": ("TYPE_BOOL", [1], True),
    "return_finish_reason": ("TYPE_BOOL", [1], True),
    "return_num_input_tokens": ("TYPE_BOOL", [1], True),
    "return_num_output_tokens": ("TYPE_BOOL", [1], True),
}
VLLM_OUTPUTS = {
    "text_output": ("TYPE_STRING", [-1]),
    "finish_reason": ("TYPE_STRING", [-1]),
    "num_input_tokens": ("TYPE_UINT32", [1]),
    "num_output_tokens": ("TYPE_UINT32", [-1]),
}
"""Of those with which Triton's vLLM backend completes a configuration (its src/model.py, read at 00ea75b), the ones that both
engines have. The rest (image, embedding_request, log probabilities) is optional there and left out."""
VLLM_ARGUMENTS = {
    "model",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "disable_log_stats",
}
"""Fields of vLLM's ``AsyncEngineArgs``: an unknown one would keep the backend from loading the model."""


def test_the_vllm_profile_is_what_its_backend_takes(story: Service) -> None:
    """Read in its source, and not run: the backend needs a GPU."""
    (config,) = model_configs(story, Profile.VLLM).values()
    kind = pb.DataType.Name
    assert {one.name: (kind(one.data_type), list(one.dims), one.optional) for one in config.input} == VLLM_INPUTS
    assert {one.name: (kind(one.data_type), list(one.dims)) for one in config.output} == VLLM_OUTPUTS
    assert (config.backend, config.max_batch_size, config.model_transaction_policy.decoupled) == ("vllm", 0, True)
    (group,) = config.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (pb.ModelInstanceGroup.KIND_MODEL, 1, [])
    # The backend takes "true" in any case for a yes, and reports nothing while disable_log_stats holds.
    assert config.parameters["REPORT_CUSTOM_METRICS"].string_value == "true"
    arguments = json.loads(vllm_arguments_text(story))
    assert arguments.keys() == VLLM_ARGUMENTS and arguments["disable_log_stats"] is False
    # Below max_num_seqs vLLM refuses a step, and below max_model_len one without chunked prefill.
    assert arguments["max_num_batched_tokens"] >= arguments["max_num_seqs"] and arguments["enable_chunked_prefill"]


def test_a_profile_of_the_other_kind_is_refused(checkout: Path, story: Service) -> None:
    with pytest.raises(InputError, match=r"story has no profile onnx-gpu: .* default, vllm"):
        models_of(story, Profile.ONNX_GPU)
    image = load_service(checkout / "services" / "image_classifier.yaml")
    with pytest.raises(InputError, match=r"image_classifier has no profile vllm: .* default, onnx-gpu, tensorrt"):
        models_of(image, Profile.VLLM)
    assert set(BATCH_PROFILES) | set(TEXT_PROFILES) == set(Profile)


def test_needed_files_are_those_that_the_profile_reads(tmp_path: Path, story: Service) -> None:
    def needed(service: Service, profile: Profile) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in needed_files(tmp_path, service, profile)]

    assert needed(story, Profile.DEFAULT) == ["story/config.pbtxt", "story/1/model.gguf"]
    assert needed(story, Profile.VLLM) == ["story/configs/vllm.pbtxt", "story/1/model.json"]
    folder, findings = check_text("name: story\nmodel: {llm: some/folder}\n", "services/story.yaml")
    assert folder is not None, findings
    assert needed(folder, Profile.DEFAULT)[-1] == "story/1/language_model.json"
    assert json.loads(vllm_arguments_text(folder))["model"] == "/models/story/1/model"
    assert needed(folder, Profile.VLLM)[-1] == "story/1/language_model.json"


def test_the_shipped_models_adapter_is_everybodys(checkout: Path) -> None:
    shipped = checkout / "model_repository" / "text_generation" / "1" / "model.py"
    assert shipped.read_text(encoding="utf-8") == MODEL_PY


def test_check_shows_the_difference_and_write_mends_it(tmp_path: Path, story: Service) -> None:
    assert len(write_configs(tmp_path, story)) == 3
    assert differences(tmp_path, story) == []
    arguments = tmp_path / "story" / "1" / "model.json"
    arguments.write_text(arguments.read_text(encoding="utf-8").replace("2048", "1024"), encoding="utf-8")
    (found,) = differences(tmp_path, story)
    assert found.path == arguments and '+  "max_model_len": 2048,' in found.diff


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {llm: a.gguf, onnx: b.onnx}\n", "exactly one of torch, onnx and llm"),
        (
            "model: {llm: a.gguf}\ninputs: [{name: X, dtype: FP32, shape: [1]}]\n",
            "inputs of a language model: leave out",
        ),
        ("model: {llm: a.gguf}\nmax_batch_size: 8\n", "max_batch_size of a language model"),
        ("model: {llm: a.gguf}\ninstances: [{count: 2}]\n", "a language model has one instance"),
        ("model: {llm: a.gguf}\ngeneration: {chunk_tokens: 32, max_sequences: 33}\n", "chunk_tokens (32)"),
        ("model: {llm: a.gguf}\ngeneration: {kv_block: 3}\n", "unknown key 'kv_block'"),
        (
            "model: {onnx: a.onnx}\ngeneration: {}\ninputs: [{name: X, dtype: FP32, shape: [1]}]\n"
            "outputs: [{name: Y, dtype: FP32, shape: [1]}]\n",
            "generation is for a language model",
        ),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str) -> None:
    service, findings = check_text(f"name: story\n{text}", "services/story.yaml")
    assert service is None
    assert said in "\n".join(finding.message for finding in findings)
