"""Language models that tests make themselves: two layers of random weights, and a byte-level vocabulary of 300 tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CONTEXT_TOKENS = 512
HEADS, KV_HEADS = 4, 2
CORPUS = "Once upon a time the capital of France is the sea, and the sky is blue because the time is 12:30. " * 3
FAMILIES: Mapping[str, Any] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
LAYER_PARTS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


class Tiny(NamedTuple):
    """A model and its tokenizer, as transformers has them."""

    module: Any
    tokenizer: Any

    def tokens(self, prompt: str) -> list[int]:
        return list(self.tokenizer(prompt, add_special_tokens=False).input_ids)

    def greedy(self, prompt: list[int], length: int) -> list[int]:
        """What transformers generates in float32."""
        texts = self.module.generate(
            torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        return list(texts[0, len(prompt) :].tolist())

    def text(self, prompt: str, length: int) -> str:
        """The same as text."""
        return str(self.tokenizer.decode(self.greedy(self.tokens(prompt), length), skip_special_tokens=True))

    def save(self, folder: Path) -> Path:
        """As a Hugging Face folder."""
        self.module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return folder


def tiny_tokenizer() -> Any:
    """Cuts digits apart and words as GPT-2 does, which GGUF files call smollm."""
    tokenizer = Tokenizer(models.BPE())
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def tiny(family: str = "llama", *, halved: bool = True, padding: int = 0) -> Tiny:
    """A model of the family.

    Args:
        family: of ``FAMILIES``.
        halved: its weights are such as half precision holds.
        padding: rows of zeros that the embedding has beyond the vocabulary.
    """
    torch.manual_seed(3)
    tokenizer = tiny_tokenizer()
    config_class, module_class = FAMILIES[family]
    config = config_class(
        vocab_size=len(tokenizer) + padding,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=16,
        max_position_embeddings=CONTEXT_TOKENS,
        sliding_window=None,
        tie_word_embeddings=family != "qwen3",
        initializer_range=0.3,
        attn_implementation="eager",
    )
    module = module_class(config).eval()
    with torch.no_grad():
        for name, weights in module.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weights.normal_(1.0 if "norm" in name else 0.0, 0.2)
            if halved:
                weights.copy_(weights.half())
            if weights.shape[0] == config.vocab_size:
                weights[len(tokenizer) :] = 0
    return Tiny(module, tokenizer)


def paired(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What the converter to GGUF does to the rows of q and k: those that rotate together stand side by side."""
    rows, *rest = values.shape
    return values.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(values.shape)


def gguf_tensors(module: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A llama's weights by the names and in the order of a GGUF file."""
    found = {}
    for name, weights in module.state_dict().items():
        parts, values = name.split("."), weights.numpy()
        if "layers" in parts:
            part = parts[-2]
            heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(part)
            found[f"blk.{parts[2]}.{LAYER_PARTS[part]}.weight"] = paired(values, heads) if heads else values
        elif "embed_tokens" in parts:
            found["token_embd.weight"] = values
        elif parts[-2] == "norm":
            found["output_norm.weight"] = values
    return found


def save_gguf(
    path: Path,
    model: Tiny,
    *,
    kinds: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """Write a llama with its tokenizer.

    Args:
        path: of the file.
        model: what to write.
        kinds: quantisations of tensors; float16 otherwise for matrices.
        changes: metadata that is another one; None leaves it out.
        tensors: in the place of the model's.
        architecture: that the file says it has.
    """
    vocabulary = sorted(model.tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    specials = set(model.tokenizer.all_special_ids) | {1, 2}
    metadata = {
        f"{architecture}.block_count": 2,
        f"{architecture}.context_length": CONTEXT_TOKENS,
        f"{architecture}.embedding_length": 64,
        f"{architecture}.feed_forward_length": 128,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": float(model.module.config.rms_norm_eps),
        f"{architecture}.rope.freq_base": 10_000.0,
        "general.name": "tiny \u00e9",
        "general.file_type": 3,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [piece for piece, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if token in specials else 1 for _, token in vocabulary],
        "tokenizer.ggml.merges": merge_lines(model.tokenizer.backend_tokenizer),
        "tokenizer.ggml.eos_token_id": int(model.tokenizer.eos_token_id),
        **(changes or {}),
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    for name, values in (gguf_tensors(model.module) if tensors is None else tensors).items():
        kind = (kinds or {}).get(name)
        if kind is not None:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            half = kinds is None and values.ndim == 2
            writer.add_tensor(name, np.ascontiguousarray(values, np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merge_lines(tokenizer: Any) -> list[str]:
    """The merges as GGUF files have them."""
    return [
        " ".join(pair) if isinstance(pair, list) else pair for pair in json.loads(tokenizer.to_str())["model"]["merges"]
    ]
