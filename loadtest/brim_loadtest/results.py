"""``loadtest.json``: what a run gave, and under which conditions. Pure, but for the writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.units import us_to_ms
from brim_loadtest.run import Ran
from brim_loadtest.verdict import Judgement

FILE_NAME = "loadtest.json"


@dataclass(frozen=True, slots=True)
class Slo:
    """The service's own objective, whatever those of its classes are."""

    latency_us: int
    percentile: float

    def as_json(self) -> dict[str, float]:
        """In milliseconds, as in a service file."""
        return {"latency_ms": us_to_ms(self.latency_us), "percentile": self.percentile}


def document(ran: Ran, found: Judgement, slo: Slo, conditions: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The whole file.

    Args:
        ran: what was counted.
        found: the verdict on it.
        slo: of the service.
        conditions: what was asked for, and on which machine.
        command: that does the same again.
    """
    counted = ran.tally.as_json()
    return {
        "verdict": found.verdict.value,
        "message": found.message,
        "limits": list(found.limits),
        "interrupted": ran.stopped,
        "classes": {name: {**one, **found.classes[name].as_json()} for name, one in counted["classes"].items()},
        "slo": slo.as_json(),
        "timeline": counted["timeline"],
        "generator": {**ran.evidence.as_json(), "lost": ran.lost},
        "conditions": dict(conditions),
        "command": command,
    }


def write(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write the file, whole or not at all."""
    path = folder / FILE_NAME
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return draft.replace(path)
