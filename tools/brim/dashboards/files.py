"""The committed files of the dashboards."""

from __future__ import annotations

from pathlib import Path

from brim.dashboards.batcher import BATCHER
from brim.dashboards.fleet import FLEET
from brim.dashboards.grafana import text_of
from brim.dashboards.overview import OVERVIEW
from brim.dashboards.tokens import TOKENS

BOARDS = (OVERVIEW, BATCHER, TOKENS, FLEET)
PLACES = ("monitoring/grafana/dashboards", "deploy/chart/files/dashboards")
"""For a Grafana of one's own (``docker compose``), and for the chart, which can read only what it holds."""


def texts(folders: tuple[str, ...] = PLACES) -> dict[str, str]:
    """Path below the checkout -> what belongs there."""
    return {f"{folder}/{board.name}.json": text_of(board) for folder in folders for board in BOARDS}


def differing(root: Path, wanted: dict[str, str]) -> list[str]:
    """Paths whose file says something else, or is not there."""
    return [place for place, text in wanted.items() if not _says(root / place, text)]


def _says(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
