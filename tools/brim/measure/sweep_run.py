"""A sweep: every load of some plans on every configuration of some settings, one server after the other.

What is asked for is recorded first (``brim.measure.asked``). Each point is a ``brim.measure`` point of its own and is on
the disk before the next one begins, so that a sweep that was stopped goes on where it was. A server is only started for a
configuration of which something is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.config.textformat import write
from brim.errors import BrimError, InputError
from brim.measure.asked import arrivals, record_asked
from brim.measure.json_lines import append_line, write_whole
from brim.measure.launcher import Launcher
from brim.measure.measure import ask_target, measure
from brim.measure.plan import Plan
from brim.measure.point import Point, read_points
from brim.measure.sweep import Settings, configured, read_config

CONFIGURATIONS_FILE = "configurations.json"
FAILURES_FILE = "failures.jsonl"

Serve = Callable[[Path], AbstractContextManager[Any]]
"""Serves the model repository in this folder; the block's value is its ``Endpoint``."""


@dataclass(frozen=True, slots=True)
class SweptPoint:
    """One point of a sweep: what was measured, under which settings and arrivals (``closed``, ``poisson``, ``constant``)."""

    settings: Settings
    arrivals: str
    point: Point

    def as_json(self) -> dict[str, Any]:
        """The point with both beside it."""
        return {**self.point.as_json(), "settings": self.settings.as_json(), "arrivals": self.arrivals}


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be measured, and why. Without a load it is the whole configuration."""

    settings: Settings
    load: str
    error: BrimError

    def as_json(self) -> dict[str, Any]:
        """The same as a dictionary."""
        return {
            "settings": self.settings.as_json(),
            "load": self.load,
            "code": self.error.code,
            "message": self.error.message,
            "hint": self.error.hint,
        }


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep gave; ``failures`` is empty when everything could be measured."""

    points: list[SweptPoint]
    failures: list[Failure]


def sweep(
    model_folder: Path,
    settings: Sequence[Settings],
    plans: Sequence[Plan],
    *,
    serve: Serve,
    launcher: Launcher,
    folder: Path,
    on_point: Callable[[SweptPoint], None] = lambda _: None,
    on_failure: Callable[[Failure], None] = lambda _: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Swept:
    """Measure every value of every plan under every settings, in this order. What fails is noted, and the rest goes on.

    Args:
        model_folder: ``model_repository/NAME``: its ``config.pbtxt`` is varied, its version folders are served as they are.
        settings: configurations (``grid``).
        plans: loads; values that are measured already in ``folder`` are taken from there.
        serve: starts a server on a model repository.
        launcher: a perf_analyzer that runs.
        folder: the run folder.
        on_point, on_failure: told of each as it comes.
        on_progress: told what is happening.

    Raises:
        InputError: the model's configuration cannot be read, settings do not fit it, or the folder holds something else:
            another sweep, or this one with more than is asked for now.
    """
    config = read_config(model_folder / "config.pbtxt")
    model = model_folder.name
    variants = [(one, write(configured(config, one))) for one in settings]
    record_asked(folder, model, _digest(write(config)), settings, plans)
    done = Swept([], [])

    def took(swept: SweptPoint) -> None:
        done.points.append(swept)
        on_point(swept)

    def failed(failure: Failure) -> None:
        done.failures.append(failure)
        append_line(folder / FAILURES_FILE, failure.as_json())
        on_failure(failure)

    for number, (one, text) in enumerate(variants, start=1):
        known = _known(folder, model, text, plans)
        if known is not None:
            for swept in (SweptPoint(one, arrivals(plan), point) for plan, point in known):
                took(swept)
            continue
        on_progress(f"configuration {number} of {len(variants)}: {one}")
        try:
            with serve(_repository(folder, model_folder, text)) as endpoint:
                _note(folder, text, one, ask_target(endpoint, model).config_digest)
                for plan in plans:
                    for outcome in _measure(endpoint, model, one, plan, launcher, folder, on_progress):
                        if isinstance(outcome, Failure):
                            failed(outcome)
                        else:
                            took(outcome)
        except BrimError as error:
            failed(Failure(one, "", error))
    return done


def _measure(
    endpoint: Any,
    model: str,
    settings: Settings,
    plan: Plan,
    launcher: Launcher,
    folder: Path,
    on_progress: Callable[[str], None],
) -> Iterator[SweptPoint | Failure]:
    """One value after the other. Those before are taken up again each time: what they gave helps to judge the generator."""
    good: list[float] = []
    for value in plan.values:
        values = replace(plan, values=(*good, value))
        try:
            points = measure(
                endpoint, model, values, launcher=launcher, folder=folder, resume=True, on_progress=on_progress
            )
        except BrimError as error:
            yield Failure(settings, f"{arrivals(plan)} {value:g}", error)
        else:
            good.append(value)
            yield SweptPoint(settings, arrivals(plan), points[-1])


def _known(folder: Path, model: str, text: str, plans: Sequence[Plan]) -> list[tuple[Plan, Point]] | None:
    """Every point of a configuration when the folder has them all; None when one is missing."""
    noted = _read_notes(folder).get(_digest(text))
    if noted is None:
        return None
    points = {point.key: point for point in read_points(folder)}
    wanted = [
        (plan, points.get(point_key(model, plan, value, noted["config_digest"])))
        for plan in plans
        for value in plan.values
    ]
    found = [(plan, point) for plan, point in wanted if point is not None]
    return found if len(found) == len(wanted) else None


def point_key(model: str, plan: Plan, value: float, config_digest: str) -> str:
    """The key under which ``measure`` keeps a point."""
    return f"{model}/{plan.protocol.value}/{plan.mode.value}={value:g}/{plan.fingerprint()}/{config_digest}"


def _repository(folder: Path, model_folder: Path, text: str) -> Path:
    """A model repository with this configuration: the text, and links to the model's own version folders."""
    repository = folder / "configurations" / _digest(text)
    made = repository / model_folder.name
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.pbtxt").write_text(text, encoding="utf-8")
    for version in sorted(model_folder.iterdir()):
        link = made / version.name
        if version.is_dir() and version.name.isdigit() and not link.is_symlink():
            link.symlink_to(version.resolve(), target_is_directory=True)
    return repository


def _note(folder: Path, text: str, settings: Settings, config_digest: str) -> None:
    """Keep what the server calls a configuration, so that its points are found again without a server."""
    notes = _read_notes(folder)
    notes[_digest(text)] = {"config_digest": config_digest, "settings": settings.as_json()}
    write_whole(folder / CONFIGURATIONS_FILE, json.dumps(notes, indent=1) + "\n")


def _read_notes(folder: Path) -> dict[str, Any]:
    path = folder / CONFIGURATIONS_FILE
    if not path.is_file():
        return {}
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        sound = all(isinstance(note["config_digest"], str) for note in notes.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise InputError(
            f"{path}: not the configurations of a sweep", hint="sweep into a new folder, or remove the file"
        )
    return dict(notes)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
