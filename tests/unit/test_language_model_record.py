"""The record of a language model's export: what may be served by it, and what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.cli.commands.serve import require_artifacts
from brim.config.files import write_configs
from brim.config.generate import Profile
from brim.config.generation import LANGUAGE_MODEL_RECORD
from brim.errors import ModelFileError
from brim.paths import Project
from brim.service.load import load_service
from brim.service.schema import Service
from brim_export.artifact import GateRecord, hash_files
from brim_export.language_model_record import KnownText, LanguageModelRecord


@pytest.fixture
def story(checkout: Path) -> Service:
    return load_service(checkout / "tests" / "golden" / "story.yaml")


@pytest.fixture
def version(tmp_path: Path, story: Service) -> Path:
    """A version folder as an export leaves it."""
    project = Project(tmp_path)
    write_configs(project.model_repository, story)
    folder = project.model_repository / story.name / "1"
    (folder / "model.gguf").write_bytes(b"weights")
    files = {name: record for name, record in hash_files(folder).items() if name == "model.gguf"}
    record = LanguageModelRecord(
        source="story.gguf",
        fingerprint="",
        files=files,
        versions={},
        gates=[GateRecord(gate="parity", ok=True, message="")],
        answers=[KnownText(prompt="Once", tokens=1, text=" upon")],
    )
    (folder / LANGUAGE_MODEL_RECORD).write_text(record.model_dump_json(), encoding="utf-8")
    return folder


def test_what_was_exported_is_served(tmp_path: Path, story: Service, version: Path) -> None:
    require_artifacts(Project(tmp_path), [story], Profile.DEFAULT)
    record = LanguageModelRecord.verified(version)
    assert (record.answers[0].text, record.reference) == (" upon", "torch")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.gguf", b"Weights", "model.gguf has another content than was exported"),
        ("model.gguf", b"weights and more", "model.gguf has 16 bytes, exported were 7"),
        (LANGUAGE_MODEL_RECORD, b"{", "is corrupt"),
    ],
)
def test_what_was_changed_since_is_not(
    tmp_path: Path, story: Service, version: Path, file: str, content: bytes, said: str
) -> None:
    (version / file).write_bytes(content)
    with pytest.raises(ModelFileError, match=said) as caught:
        require_artifacts(Project(tmp_path), [story], Profile.DEFAULT)
    assert "`brim export story --force` makes it anew" in caught.value.message


def test_answers_that_nothing_was_held_against_say_so(version: Path) -> None:
    record = LanguageModelRecord.load(version)
    skipped = GateRecord(gate="parity", ok=True, message="", skipped=True)
    assert record.model_copy(update={"gates": [skipped]}).reference == "the engine at its export"
