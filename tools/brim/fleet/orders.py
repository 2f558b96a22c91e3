"""How a running fleet is told what to do, and how it tells how it is: files in a folder of its own.

``status.json`` is written by the fleet. An order is a file in ``orders``, put there whole by a rename, which the fleet takes
away when it has read it; what came of it stands in the next status under the order's name.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from brim.errors import InputError
from brim.gateway.replica_files import write_whole

STATUS_FILE, ORDERS_FOLDER, RUNS_FOLDER = "status.json", "orders", "replicas"
MOST_ORDERS = 100
"""Taken at one look."""
LONGEST_ORDER_BYTES = 10_000
MOST_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class Order:
    """What a fleet shall do.

    Attributes:
        drain: name of a replica that shall go; None for none.
        replicas: how many there shall be; None for as many as there are.
        deadline_s: how long requests under way on a replica that goes may last.
    """

    drain: str | None = None
    replicas: int | None = None
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            InputError: with every fault at once.
        """
        faults = []
        if (self.drain is None) is (self.replicas is None):
            faults.append("give either the name of a replica or a number of replicas")
        if self.drain is not None and not isinstance(self.drain, str):
            faults.append(f"drain {self.drain!r}: expected a name")
        if self.replicas is not None and (
            not isinstance(self.replicas, int) or not 1 <= self.replicas <= MOST_REPLICAS
        ):
            faults.append(f"replicas {self.replicas!r}: expected 1 to {MOST_REPLICAS}")
        if not isinstance(self.deadline_s, int | float) or not 0 <= self.deadline_s <= 86_400:
            faults.append(f"deadline_s {self.deadline_s!r}: expected 0 to 86400")
        if faults:
            raise InputError("; ".join(faults), hint="`brim replicas --help` shows what it takes")


def place_order(folder: Path, order: Order) -> str:
    """Put an order down; its name.

    Raises:
        InputError: there is no fleet in this folder.
        NoSpace: it cannot be written.
    """
    orders = folder / ORDERS_FOLDER
    if not orders.is_dir():
        raise InputError(f"{folder}: no fleet runs here", hint="`brim serve --replicas N` starts one")
    name = f"{time.time_ns():020d}-{os.getpid()}"
    write_whole(orders / f"{name}.json", json.dumps(asdict(order)))
    return name


def taken_orders(folder: Path) -> list[tuple[str, Order | InputError]]:
    """The orders that have come, oldest first, each taken away; in place of a wrong one, what is wrong with it."""
    found: list[tuple[str, Order | InputError]] = []
    for path in sorted((folder / ORDERS_FOLDER).glob("*.json"))[:MOST_ORDERS]:
        found.append((path.stem, _read(path)))
        path.unlink(missing_ok=True)
    return found


def _read(path: Path) -> Order | InputError:
    hint = "`brim replicas` writes orders"
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_ORDER_BYTES)
        return Order(**json.loads(text))
    except InputError as error:
        return error
    except (OSError, ValueError, TypeError) as error:
        return InputError(f"{path.name}: no order: {error}", hint=hint)


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Tell how the fleet is.

    Raises:
        NoSpace: it cannot be written.
    """
    write_whole(folder / STATUS_FILE, json.dumps(status))


def read_status(folder: Path) -> dict[str, Any]:
    """How the fleet in this folder was when it last said so.

    Raises:
        InputError: there is none, or what it said cannot be read.
    """
    try:
        status = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: no fleet runs here: {error}", hint="`brim serve --replicas N` starts one"
        ) from error
    if not isinstance(status, dict):
        raise InputError(f"{folder / STATUS_FILE}: expected an object", hint="start the fleet again")
    return status


def new_run(cache: Path) -> Path:
    """The folder of a fleet that this process is about to start; those of processes that have ended are removed."""
    living = runs(cache)
    for old in (cache / RUNS_FOLDER).glob("*"):
        if old not in living:
            shutil.rmtree(old, ignore_errors=True)
    return cache / RUNS_FOLDER / str(os.getpid())


def runs(cache: Path) -> list[Path]:
    """Folders of the fleets of this checkout whose process lives."""
    found = (cache / RUNS_FOLDER).glob("*")
    return sorted(path for path in found if path.name.isdigit() and psutil.pid_exists(int(path.name)))
