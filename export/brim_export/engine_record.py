"""``engine.json`` beside a TensorRT engine: what it was built of, and for what."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from brim.config.tensorrt_plan import EnginePrecision
from brim_export.artifact import FileRecord, GateRecord

RECORD_NAME = "engine.json"


class EngineRecord(BaseModel):
    """``engine.json``: what ``model.plan`` is, and what its gates said."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: str
    gpu: str
    tensorrt: str
    graph: str
    profile: str
    precision: EnginePrecision
    command: str
    plan: FileRecord
    gates: list[GateRecord]


def read_engine_record(folder: Path) -> EngineRecord | None:
    """The record in a version folder; None where there is none that can be read, so that the engine is built anew."""
    try:
        return EngineRecord.model_validate_json((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
