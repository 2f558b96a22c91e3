"""Text to token ids, once, in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tokenizers import Encoding, Tokenizer

from brim.errors import ModelFileError
from brim.runtime.contract import Array, Request
from brim.runtime.preparation import Surroundings

TOKENIZER_FILE = "tokenizer.json"
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
FIELDS = frozenset({IDS, MASK, TYPES})
"""Graph inputs that a text can be turned into, by the names that transformers gives them."""


class Tokenisation:
    """Makes ``input_ids``, ``attention_mask`` and, where the graph wants them, ``token_type_ids`` (INT64 ``[tokens]``).

    As transformers' fast tokenizers do with ``truncation=True``: special tokens are added, and a text is cut so that
    all of it, special tokens included, has at most ``longest_tokens``, or what the model takes if that is less. Padding
    and truncation that the file brings along are replaced: padding is the batch's business. An empty text is a text.
    """

    def __init__(self, around: Surroundings) -> None:
        """Read ``tokenizer.json`` in the version folder.

        Raises:
            ModelFileError: the file is missing or broken, gives ids that the model has no entry for, the graph wants
                inputs that text does not give, or the contract's input is not one text a row (BYTES ``[1]``).
        """
        path, remedy = around.folder / TOKENIZER_FILE, around.remedy
        if not path.is_file():
            raise ModelFileError(f"{path} is missing", hint=remedy)
        strange = sorted(set(around.graph_inputs) - FIELDS)
        if strange:
            raise ModelFileError(f"the graph wants {strange}, and text gives only {sorted(FIELDS)}", hint=remedy)
        spec = around.contract.inputs[0]
        if len(around.contract.inputs) != 1 or spec.dtype.kind != "O" or spec.shape != (1,):
            raise ModelFileError(
                f"the configuration's inputs are {[(item.name, list(item.shape)) for item in around.contract.inputs]}, "
                "expected one TYPE_STRING input with dims [ 1 ]: one text a row",
                hint=remedy,
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelFileError(f"{path} is not a tokenizer: {error}", hint=remedy) from error
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        entries = around.record.index_ranges.get(IDS)
        if entries and largest > entries[1]:
            raise ModelFileError(
                f"{path} gives token ids up to {largest}, the model's table ends at {entries[1]}", hint=remedy
            )
        padding = self._tokenizer.padding or {}
        values = {IDS: padding.get("pad_id", 0), MASK: 0, TYPES: padding.get("pad_type_id", 0)}
        self.pads = {name: float(values[name]) for name in around.graph_inputs}
        longest = min(around.longest_tokens, around.record.largest_size.get(IDS, around.longest_tokens))
        self._tokenizer.enable_truncation(max_length=longest)
        self._tokenizer.no_padding()
        self._name = spec.name
        self._fields = around.graph_inputs

    def __call__(self, requests: Sequence[Request]) -> list[list[Mapping[str, Array]]]:
        """Rows of each request: ``{graph input: INT64 [tokens]}`` for each of its texts."""
        sizes = [request[self._name].size for request in requests]
        texts = [_text(value) for request in requests for value in request[self._name].ravel()]
        rows = iter([self._row(encoding) for encoding in self._tokenizer.encode_batch_fast(texts)])
        return [[next(rows) for _ in range(size)] for size in sizes]

    def _row(self, encoding: Encoding) -> dict[str, Array]:
        values = {IDS: encoding.ids, MASK: encoding.attention_mask, TYPES: encoding.type_ids}
        return {name: np.array(values[name], dtype=np.int64) for name in self._fields}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
