"""``brim rules``: Prometheus' rules and alerts, for scaling and for people, printed, written or checked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say
from brim.config.generate import Profile, profiles_of
from brim.errors import InputError
from brim.paths import find_project
from brim.plan.alerts import Document
from brim.plan.rules import SCALING_MODULES, rules_text, scaling_rules
from brim.plan.scaling import LEAST_SPARES, Fleet
from brim.plan.service_rules import MODULES, service_rules
from brim.service.load import find_services
from brim.service.schema import Service

PLACES = {
    "monitoring/rules/scaling.yml": Profile.DEFAULT,
    "deploy/chart/files/scaling.yml": Profile.DEFAULT,
    "deploy/chart/files/scaling-vllm.yml": Profile.VLLM,
}
"""The committed files: for a Prometheus of one's own, and those of the chart, which can read only what it holds."""
SERVICE_PLACE = "monitoring/rules/service.yml"
"""Of the rules for people, which need `brim exporter` beside each server."""


class Kind(StrEnum):
    """Which rules are printed."""

    SCALING = "scaling"
    SERVICE = "service"


def rules(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Services; all when none.")] = None,
    min_replicas: Annotated[int, typer.Option(help="Never fewer.")] = 1,
    max_replicas: Annotated[int, typer.Option(help="Never more.")] = 8,
    spares: Annotated[int, typer.Option(help="Replicas kept warm beyond what is needed.")] = LEAST_SPARES,
    profile: Annotated[Profile, typer.Option(help="What the servers run; of vLLM less is known.")] = Profile.DEFAULT,
    kind: Annotated[
        Kind, typer.Option(help="scaling: how many replicas. service: objectives, batches and waits, for people.")
    ] = Kind.SCALING,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the committed files; exit 1 on a difference.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the committed files.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Generate Prometheus' rules and alerts from the service files."""
    project = find_project()
    if check and write:
        raise InputError("--check and --write exclude each other", hint="--check compares, --write changes")
    fleet = Fleet(min_replicas, max_replicas, spares)
    services = find_services(project.services, names or [])
    if not check and not write:
        if kind is Kind.SCALING:
            document, modules = _of(services, fleet, profile), SCALING_MODULES
        else:
            document, modules = service_rules(services), MODULES
        if as_json:
            put_answer("rules", {"rules": document})
        else:
            put(rules_text(document, modules))
        return 0
    texts = {
        place: rules_text(_of(services, fleet, of_profile), SCALING_MODULES) for place, of_profile in PLACES.items()
    }
    texts[SERVICE_PLACE] = rules_text(service_rules(services), MODULES)
    differing = [place for place, text in texts.items() if _content(project.root / place) != text]
    if write:
        for place in differing:
            (project.root / place).parent.mkdir(parents=True, exist_ok=True)
            (project.root / place).write_text(texts[place], encoding="utf-8")
    if as_json:
        put_answer("rules", {"changed" if write else "differences": differing}, ok=write or not differing)
    elif write:
        say("\n".join(f"wrote {place}" for place in differing) or "every file was up to date")
    else:
        for place in differing:
            say(f"{place} differs from the service files")
            put("".join(_difference(_content(project.root / place), texts[place], place)) or "\n")
        if differing:
            say("hint: `brim rules --write` brings the files up to date")
    return 0 if write or not differing else 1


def _of(services: Sequence[Service], fleet: Fleet, profile: Profile) -> Document:
    served = [service for service in services if profile in profiles_of(service)]
    if not served:
        raise InputError(
            f"none of the services has the profile {profile.value}", hint="leave --profile out, or name others"
        )
    return scaling_rules(served, fleet, profile)


def _content(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _difference(before: str, after: str, place: str) -> list[str]:
    return list(
        difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), place, "generated")
    )
