"""Fixtures that every kind of test shares."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture(scope="session")
def cases() -> Path:
    """Small faulty inputs restated from public reports."""
    return ROOT / "tests" / "cases"
