"""From text to tokens, by openvino's tokenizers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai

from brim.engine.detokenise import byte_table
from brim.errors import ModelFileError

TOKENIZER_FILES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
"""A tokenizer in OpenVINO's format, each with its .bin: of an OpenVINO folder, or beside a GGUF file."""


def has_own_tokenizer(model: Path) -> bool:
    """Whether a tokenizer lies beside the GGUF file.

    The engine's reader of GGUF files knows how two kinds of vocabulary cut words, and cuts all others as it likes, so
    weights that come with another tokenizer bring it along.
    """
    return model.is_file() and all((model.parent / name).is_file() for name in TOKENIZER_FILES)


class Tokenizer:
    """A model's tokenizer. Several threads may use it."""

    def __init__(self, found: Any) -> None:
        """Around an ``openvino_genai.Tokenizer``."""
        self.found = found
        self.vocabulary: dict[bytes, int] = found.get_vocab()
        self.end_of_text = int(found.get_eos_token_id())

    @classmethod
    def load(cls, model: Path) -> Tokenizer:
        """Of a GGUF file or an OpenVINO folder; it takes seconds. A tokenizer beside a GGUF file goes before the one inside.

        Raises:
            ModelFileError: there is none that can be loaded.
        """
        try:
            return cls(openvino_genai.Tokenizer(str(model.parent if has_own_tokenizer(model) else model)))
        except Exception as error:  # a bad file ends in whatever its reader stumbles over
            raise ModelFileError(
                f"{model} has no tokenizer that can be loaded: {(str(error).strip() or repr(error)).splitlines()[-1]}",
                hint="give a GGUF file with a byte-level vocabulary, or a folder that `optimum-cli export openvino` made",
            ) from error

    @cached_property
    def table(self) -> tuple[bytes, ...]:
        """The bytes of every token, by number.

        Raises:
            ModelFileError: the vocabulary is not a byte-level one.
        """
        return byte_table(self.vocabulary, self.found.decode)

    def tokens_of(self, text: str, *, most: int) -> list[int]:
        """The tokens of a prompt as it stands: nothing is put before or behind it, no chat template is applied.

        Args:
            text: what to cut.
            most: no more tokens come back. Without a bound the tokenizer cuts at the model's own context, in silence, so ask
                for one more than is taken, and refuse what has it.
        """
        ids = self.found.encode(text, add_special_tokens=False, max_length=most, truncation=True).input_ids.data
        return [int(token) for token in np.asarray(ids).ravel()]
