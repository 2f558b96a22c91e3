"""What ``model.llm`` means: a GGUF file, a folder in OpenVINO's format, or a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from brim.engine.tokenise import TOKENIZER_FILES
from brim.errors import ModelFileError
from brim_export.artifact import FileRecord, hash_file

PACKAGED = re.compile(r"(?P<package>[A-Za-z_]\w*):(?P<file>[^/\\:]+\.gguf)")
"""A file inside an installed package."""
Kind = Literal["gguf", "openvino", "hugging_face"]
_GRAPH = "openvino_model.xml"
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class LanguageModelSource:
    """Where it comes from: the text in the service file, and the file or folder that it means."""

    written: str
    path: Path
    kind: Kind

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, and no folder."""
        return self.kind == "gguf"

    @property
    def files(self) -> list[Path]:
        """The file, or those of the folder: what lies below it or is hidden is none of the model's."""
        if self.is_gguf:
            return [self.path]
        return sorted(path for path in self.path.iterdir() if path.is_file() and not path.name.startswith("."))

    def hashes(self) -> dict[str, FileRecord]:
        """Of every file, by name."""
        return {path.name: hash_file(path) for path in self.files}


def find_source(written: str, root: Path) -> LanguageModelSource:
    """What ``model.llm`` means: ``package:file.gguf``, or a path, a relative one counted from ``root``.

    Raises:
        ModelFileError: the package or the file is not there, or the folder is none that can be served.
    """
    packaged = PACKAGED.fullmatch(written)
    path = _in_package(packaged["package"], packaged["file"]) if packaged else root / written
    if path.is_dir():
        return LanguageModelSource(written, path, _folder_kind(path, written))
    if not path.is_file():
        raise ModelFileError(
            f"{written} is not there: no file {path.name}",
            hint="name a GGUF file, an OpenVINO folder or a Hugging Face folder",
        )
    if path.suffix.lower() != ".gguf":
        raise ModelFileError(
            f"{written} is no GGUF file by its name",
            hint="name a file that ends in .gguf, or the folder that it lies in",
        )
    return LanguageModelSource(written, path, "gguf")


def _in_package(package: str, file: str) -> Path:
    # Found without importing it: the package itself may need a library that nobody here uses.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelFileError(
            f"the package {package} is not installed", hint="`make env` installs what the project needs"
        )
    return Path(spec.origin).parent / file


def _folder_kind(path: Path, written: str) -> Kind:
    missing = [name for name in (_GRAPH, *TOKENIZER_FILES) if not (path / name).is_file()]
    if not missing:
        return "openvino"
    if _GRAPH not in missing:
        raise ModelFileError(
            f"{written} lacks {', '.join(missing)}", hint="name a folder that `optimum-cli export openvino` made"
        )
    if (path / _CONFIG).is_file():
        return "hugging_face"
    inside = sorted(path.glob("*.gguf"))
    if inside:
        raise ModelFileError(
            f"{written} is a folder of GGUF files", hint=f"name the file itself: {written}/{inside[0].name}"
        )
    raise ModelFileError(
        f"{written} is no folder of a language model: it has neither {_GRAPH} nor {_CONFIG}",
        hint="name a GGUF file, a folder that `optimum-cli export openvino` made, or a Hugging Face folder",
    )
