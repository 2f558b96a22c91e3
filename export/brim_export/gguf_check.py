"""What a GGUF file has to be so that the engine serves what the file means. All faults are told at once.

The engine's reader (openvino-genai 2026.4, ``src/cpp/src/gguf_utils``) computes three families and takes no notice of what
it does not know: scaled rotary embeddings are left unscaled, and of the ways to cut words it knows two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brim.errors import ModelFileError
from brim_export.gguf_file import value_of
from brim_export.llama_reference import FAMILIES
from brim_export.model_shape import ModelShape, gguf_shape

BYTE_LEVEL = "gpt2"
"""What ``tokenizer.ggml.model`` calls a byte-level vocabulary; a SentencePiece one is called llama."""
KNOWN_CUTS = ("qwen2", "smollm")
"""Values of ``tokenizer.ggml.pre`` that the engine cuts words by as the model's own tokenizer does."""
_SPLIT = "split.count"


def check_gguf(path: Path, reader: Any) -> None:
    """Refuse a file that the engine cannot read, or would read as something else.

    Raises:
        ModelFileError: names every fault.
    """
    if value_of(reader, _SPLIT, 1) != 1:
        raise ModelFileError(
            f"{path} is one of {value_of(reader, _SPLIT, 1)} files that make up the model",
            hint="put them together first: `llama-gguf-split --merge FIRST.gguf WHOLE.gguf`",
        )
    architecture = str(value_of(reader, "general.architecture", "none at all"))
    if architecture not in FAMILIES:
        raise ModelFileError(
            f"{path} has the architecture {architecture}, and the engine computes {', '.join(FAMILIES)} from GGUF files",
            hint="`optimum-cli export openvino --model MODEL FOLDER` converts others from their Hugging Face folder; "
            "the profile vllm reads more (vllm_model)",
        )
    shapeless = _shape_faults(reader)
    faults = [*(shapeless or _rope_faults(reader)), *_tokenizer_faults(reader)]
    if faults:
        raise ModelFileError(
            f"{path} cannot be served: {'; '.join(faults)}",
            hint="give the model's Hugging Face folder, or one that `optimum-cli export openvino` made, "
            "or serve it with the profile vllm",
        )


def _shape_faults(reader: Any) -> list[str]:
    if value_of(reader, "pooling_type", 0):
        return ["it is an embedding model (pooling_type), which generates no text"]
    try:
        shape = gguf_shape(reader)
        for key in ("feed_forward_length", "attention.layer_norm_rms_epsilon"):
            value_of(reader, key)
    except KeyError as error:
        return [f"it has no {error.args[0]}"]
    except StopIteration:
        return ["it has no tensor token_embd.weight"]
    except (TypeError, ValueError, ZeroDivisionError) as error:
        return [f"its sizes are no whole numbers: {error}"]
    faults = _size_faults(reader, shape)
    tokens = len(value_of(reader, "tokenizer.ggml.tokens", []))
    if tokens and tokens != shape.vocabulary:
        faults.append(f"its vocabulary has {tokens} tokens, and its embedding {shape.vocabulary} rows")
    return faults


def _size_faults(reader: Any, shape: ModelShape) -> list[str]:
    """What the metadata says against the tensors, before anything is as large as the former says."""
    tensors = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    width = value_of(reader, "embedding_length")
    said = {
        "token_embd.weight": [width, shape.vocabulary],
        "blk.0.attn_q.weight": [width, value_of(reader, "attention.head_count") * shape.head_size],
        "blk.0.attn_k.weight": [width, shape.kv_heads * shape.head_size],
        "blk.0.ffn_up.weight": [width, value_of(reader, "feed_forward_length")],
    }
    faults = [
        f"its {name} has the shape {tensors.get(name, 'of nothing')}, and its sizes say {sizes}"
        for name, sizes in said.items()
        if tensors.get(name) != sizes
    ]
    layers = sum(name.startswith("blk.") and name.endswith(".attn_q.weight") for name in tensors)
    if layers != shape.layers:
        faults.append(f"it has the tensors of {layers} layers, and says {shape.layers}")
    return faults


def _rope_faults(reader: Any) -> list[str]:
    scaled = str(value_of(reader, "rope.scaling.type", "none"))
    faults = []
    if scaled != "none" or any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        kind = scaled if scaled != "none" else "rope_freqs.weight"
        faults.append(f"its rotary embeddings are scaled ({kind}), which the engine does not do")
    heads = value_of(reader, "attention.head_count", 1)
    size = value_of(reader, "attention.key_length", value_of(reader, "embedding_length", heads) // heads)
    rotated = value_of(reader, "rope.dimension_count", size)
    if rotated != size:
        faults.append(f"its rotary embeddings take {rotated} of {size} values of a head, and the engine's take all")
    return faults


def _tokenizer_faults(reader: Any) -> list[str]:
    model = str(value_of(reader, "tokenizer.ggml.model", "none"))
    if model == "none" or not value_of(reader, "tokenizer.ggml.tokens", []):
        return ["it has no tokenizer inside (tokenizer.ggml.tokens)"]
    if model != BYTE_LEVEL:
        return [f"its vocabulary is of the kind {model} (llama: SentencePiece), and this host takes byte-level ones"]
    missing = [key for key in ("merges", "token_type", "eos_token_id") if f"tokenizer.ggml.{key}" not in reader.fields]
    faults = [f"its tokenizer has no {' and no '.join(missing)}"] if missing else []
    cut = str(value_of(reader, "tokenizer.ggml.pre", "none"))
    if cut not in KNOWN_CUTS:
        faults.append(
            f"its tokenizer cuts words as {cut}, and the engine's reader knows {' and '.join(KNOWN_CUTS)} only: "
            "it would cut this model's prompts otherwise"
        )
    return faults
