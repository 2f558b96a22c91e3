"""Fixtures that every kind of test shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.config.files import differences
from brim.paths import Project
from brim.service.load import find_services
from brim_export.pipeline import require
from brim_export.service_export import export_service

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture(scope="session")
def cases() -> Path:
    """Small faulty inputs restated from public reports."""
    return ROOT / "tests" / "cases"


@pytest.fixture(scope="session")
def exported(checkout: Path) -> Project:
    """The checkout with both shipped models exported. An export that is up to date is kept."""
    project = Project(checkout)
    for service in find_services(project.services, ["text_embedding", "image_classifier"]):
        result = export_service(project, service)
        if result is not None:
            require(result)
        assert differences(project.model_repository, service) == []
    return project
