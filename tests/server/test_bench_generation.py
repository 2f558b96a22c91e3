"""``brim bench generation`` on the real server, as short as it can be: everything is counted, whatever the speed."""

from __future__ import annotations

from pathlib import Path

from brim.bench.generation import Effort, generation
from brim.paths import Project
from brim.service.load import find_service

EFFORT = Effort(rounds=1, streams=4, tokens=8, long_words=300, capacity_s=1, overload_s=3)


def test_every_part_is_measured_and_every_request_accounted_for(exported_text: Project, tmp_path: Path) -> None:
    service = find_service(exported_text.services, "text_generation")
    said: list[str] = []
    found = generation(
        exported_text, service, log_file=tmp_path / "triton.log", effort=EFFORT, on_progress=said.append
    ).as_json()
    figures = found["figures"]
    assert isinstance(figures, dict)
    assert all(len(values) == 1 and values[0] > 0 for values in figures.values())
    assert figures["long_tokens"][0] >= EFFORT.long_words
    overload = found["overload"]
    assert isinstance(overload, dict)
    sent = sum(sum(ends.values()) for ends in overload["ends"].values())
    assert sent == round(overload["offered_per_s"] * EFFORT.overload_s) > 0
    assert 0 < overload["most_blocks_promised"] <= overload["blocks"] and overload["blocks_left"] == 0
    counted = {
        str(ratio["ratio"]): ratio["median"] for ratio in found["ratios"] if str(ratio["ratio"]).startswith("overload: ")
    }  # fmt: skip
    assert counted["overload: neither complete nor refused with a reason"] == 0
    assert counted["overload: texts cut after they had begun"] == 0
    assert any("tokens/s through Triton" in one for one in said)
