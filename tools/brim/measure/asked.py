"""``sweep.json``: what a sweep was asked to measure, recorded before it begins, so that what is missing can be told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brim.errors import InputError
from brim.measure.json_lines import write_whole
from brim.measure.plan import Mode, Plan
from brim.measure.sweep import Settings

FILE_NAME = "sweep.json"
CLOSED = "closed"
METHOD = ("window_ms", "stability_percent", "max_trials", "max_threads", "percentile", "percentiles")
"""What of a plan says how a load is measured; the rows that are sent are kept as a digest."""


class Loads(BaseModel):
    """Loads of one kind: ``closed``, ``poisson`` or ``constant``, and callers or requests a second."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    arrivals: str
    values: list[float]


class Asked(BaseModel):
    """Every load on every configuration, and how it is measured.

    Attributes:
        model: name of the model.
        protocol: how requests travel.
        configuration: digest of the model's configuration as it stands.
        method: windows and rows, by name.
        settings: the configurations.
        loads: one a kind.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    model: str
    protocol: str
    configuration: str
    method: dict[str, Any]
    settings: list[Settings] = Field(min_length=1)
    loads: list[Loads] = Field(min_length=1)

    @property
    def points(self) -> list[tuple[Settings, str, float]]:
        """Settings, arrivals and load of every point, in the order in which they are measured."""
        return [
            (settings, one.arrivals, value) for settings in self.settings for one in self.loads for value in one.values
        ]


def arrivals(plan: Plan) -> str:
    """``closed``, or how requests of an open loop are spaced."""
    return CLOSED if plan.mode is Mode.CONCURRENCY else plan.distribution.value


def asked_for(model: str, configuration: str, settings: Sequence[Settings], plans: Sequence[Plan]) -> Asked:
    """What these plans under these settings ask for.

    Args:
        model: name of the model.
        configuration: digest of its configuration as it stands.
        settings: at least one.
        plans: one a kind of load, alike in everything else.
    """
    first = plans[0]
    rows = b"" if first.input_data is None else first.input_data.read_bytes()
    method = {name: getattr(first, name) for name in METHOD} | {
        "percentiles": list(first.percentiles),
        "rows": hashlib.sha256(rows).hexdigest()[:12],
        "shapes": {name: list(shape) for name, shape in sorted(first.shapes.items())},
    }
    loads = [Loads(arrivals=arrivals(plan), values=list(plan.values)) for plan in plans]
    return Asked(
        model=model,
        protocol=first.protocol.value,
        configuration=configuration,
        method=method,
        settings=list(settings),
        loads=loads,
    )


def record_asked(
    folder: Path, model: str, configuration: str, settings: Sequence[Settings], plans: Sequence[Plan]
) -> Asked:
    """Write what is asked for, whole or not at all; a folder that holds it already may ask for more from now on.

    Args:
        folder: the run folder.
        model, configuration, settings, plans: as for ``asked_for``.

    Raises:
        InputError: the folder is of another sweep, or of one that asked for what is not asked for now: every difference
            at once.
    """
    asked = asked_for(model, configuration, settings, plans)
    before = read_asked(folder)
    if before is not None:
        differences = _differences(before, asked)
        if differences:
            raise InputError(
                f"{folder / FILE_NAME}: the folder is of another sweep: {'; '.join(differences)}",
                hint="repeat the command that began it, ask for more than it did, or use a new folder",
            )
    if before != asked:
        write_whole(folder / FILE_NAME, asked.model_dump_json(indent=1) + "\n")
    return asked


def read_asked(folder: Path) -> Asked | None:
    """What the sweep in a folder was asked for; None where nobody recorded it.

    Raises:
        InputError: the file is something else.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        return Asked.model_validate_json(path.read_bytes())
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg']}" for one in error.errors()]
        raise InputError(
            f"{path}: not what a sweep records: {'; '.join(faults)}", hint="sweep into a new folder, or remove the file"
        ) from error


def _differences(before: Asked, now: Asked) -> list[str]:
    """What is another way of measuring, and what is not asked for any more."""
    found = [
        f"{name} was {getattr(before, name)}, is {getattr(now, name)}"
        for name in ("model", "protocol")
        if getattr(before, name) != getattr(now, name)
    ]
    if before.configuration != now.configuration:
        found.append("the model's configuration has changed since")
    found += [
        "the rows that are sent are others (--seed)"
        if name == "rows"
        else f"{name} was {before.method.get(name)}, is {now.method.get(name)}"
        for name in sorted(before.method.keys() | now.method.keys())
        if before.method.get(name) != now.method.get(name)
    ]
    lost = [str(one) for one in before.settings if one not in now.settings]
    found += [f"it asked for the configuration {one}" for one in lost]
    wanted = {one.arrivals: set(one.values) for one in now.loads}
    for one in before.loads:
        values = [value for value in one.values if value not in wanted.get(one.arrivals, set())]
        if values:
            found.append(f"it asked for {one.arrivals} {', '.join(f'{value:g}' for value in values)}")
    return found
