"""``brim config``: Triton's configuration of a service, printed, written or checked."""

from __future__ import annotations

from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say
from brim.config.files import config_path, config_texts, differences, write_configs
from brim.config.generate import Profile, models_of
from brim.errors import InputError
from brim.paths import Project, find_project
from brim.service.load import find_services


def config(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Services; all when none.")] = None,
    profile: Annotated[Profile | None, typer.Option(help="One profile only (printing: default).")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the committed files; exit 1 on a difference.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the files into the model repository.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Generate config.pbtxt from a service file."""
    project = find_project()
    services = find_services(project.services, names or [])
    profiles = [profile] if profile else list(Profile)
    if check and write:
        raise InputError("--check and --write exclude each other", hint="--check compares, --write changes")
    if write:
        changed = [
            str(path.relative_to(project.root))
            for service in services
            for path in write_configs(project.model_repository, service, profiles)
        ]
        if as_json:
            put_answer("config", {"changed": changed})
        else:
            say("\n".join(f"wrote {path}" for path in changed) or "every file was up to date")
        return 0
    if check:
        found = [item for service in services for item in differences(project.model_repository, service, profiles)]
        if as_json:
            listed = [{"file": str(item.path.relative_to(project.root)), "diff": item.diff} for item in found]
            put_answer("config", {"differences": listed}, ok=not found)
        for item in [] if as_json else found:
            say(
                f"{item.path.relative_to(project.root)} {'differs from' if item.diff else 'is missing; expected from'} the service file"
            )
            put(item.diff or "\n")
        if found and not as_json:
            say("hint: `brim config --write` brings the files up to date")
        return 1 if found else 0
    if len(services) != 1:
        raise InputError(
            f"{len(services)} services, and one is printed at a time",
            hint="name one, or use --write or --check for all",
        )
    chosen = profile or Profile.DEFAULT
    *behind, (_, text) = config_texts(services[0], chosen).items()
    files = {model: _shown(project, model, chosen) for model in models_of(services[0], chosen)}
    if as_json:
        inner = [{"file": files[model], "text": inside} for model, inside in behind]
        put_answer("config", {"file": files[services[0].name], "text": text, "behind": inner})
        return 0
    put(text)
    for model, _ in behind:
        say(f"{model} runs its batches: {files[model]} (--write writes both, --json shows both)")
    return 0


def _shown(project: Project, model: str, profile: Profile) -> str:
    return str(config_path(project.model_repository, model, profile).relative_to(project.root))
