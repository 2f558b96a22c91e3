"""What was exported of a language model, from what, what the gates saw, and answers to hold a server against."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brim.config.generation import LANGUAGE_MODEL_RECORD
from brim.errors import ModelFileError
from brim_export.artifact import FileRecord, GateRecord, file_faults


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KnownText(_Part):
    """How a greedy text begins after a prompt.

    Attributes:
        prompt: as it stands.
        tokens: so many, end-of-text passed over like any other token.
        text: what they say.
    """

    prompt: str
    tokens: int
    text: str


class LanguageModelRecord(_Part):
    """What was exported: no host names, no absolute paths, no time of day.

    Attributes:
        answers: what the engine said when it was exported, all prompts at once; held against torch where the gate ``parity``
            was not skipped.
    """

    schema_version: Literal[1] = 1
    source: str
    fingerprint: str
    files: dict[str, FileRecord]
    versions: dict[str, str]
    gates: list[GateRecord] = Field(min_length=1)
    answers: list[KnownText] = []

    @property
    def reference(self) -> str:
        """What the answers were held against."""
        skipped = any(gate.gate == "parity" and gate.skipped for gate in self.gates)
        return "the engine at its export" if skipped else "torch"

    @classmethod
    def load(cls, folder: Path) -> LanguageModelRecord:
        """Read the record of a version folder.

        Raises:
            ModelFileError: it is missing, or breaks the schema.
        """
        path = folder / LANGUAGE_MODEL_RECORD
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}", hint="export the model first") from error
        except (ValidationError, UnicodeDecodeError) as error:
            raise ModelFileError(
                f"{path} is corrupt: {str(error).splitlines()[0]}", hint="export the model again"
            ) from error

    @classmethod
    def verified(cls, folder: Path) -> LanguageModelRecord:
        """The record of a version folder, after hashing every file that it lists.

        Raises:
            ModelFileError: it cannot be read, or files are missing or changed; names all of them.
        """
        record = cls.load(folder)
        faults = file_faults(folder, record.files)
        if faults:
            raise ModelFileError(
                f"{folder} is not what was exported: {'; '.join(faults)}", hint="export the model again"
            )
        return record
