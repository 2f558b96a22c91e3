"""The cost of a padded run on this machine, by least squares over measured runs: the ``padding:`` block of a service file.

A run of ``rows`` rows padded to ``longest`` tokens is modelled as in ``brim.runtime.padding``:
``fixed_us + per_token_us * rows * longest + per_pair_us * rows * longest^2``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brim.bench.conditions import Conditions, Watch
from brim.errors import InputError
from brim.limits import BATCH_LIMIT
from brim.paths import Project
from brim.runtime.contract import Array
from brim.runtime.padding import PaddingCost
from brim.runtime.record import read_record
from brim.runtime.session import Device, OnnxSession, cores
from brim.runtime.text import FIELDS, IDS, MASK
from brim.service.schema import Service

SHAPES = (
    *((1, longest) for longest in (4, 8, 16, 32, 64, 128, 256)),
    *((rows, 16) for rows in (4, 16, BATCH_LIMIT)),
    *((rows, 32) for rows in (4, 8, 16, 32, 64)),
    *((rows, 128) for rows in (2, 4, 8)),
    (2, 256),
)
"""Rows and longest: what a hundred sentences are cut into, and runs beyond it, so that each term has its own weight."""
REPEATS = 7
SLACK = 1.04
"""A token may cost this much more than in the cheapest run before the bound on a run's tokens keeps it from growing."""

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost, and how well it says what was measured.

    Attributes:
        cost: fitted, with the bound on a run's tokens.
        measured_us: least time of each shape.
        worst_error: largest relative error of the cost over the shapes, 0..1.
        threads: of ONNX Runtime.
        conditions: of the measurement.
    """

    cost: PaddingCost
    measured_us: Mapping[Shape, float]
    worst_error: float
    threads: int
    conditions: Conditions

    def block(self) -> str:
        """As it stands under ``runtime:`` in a service file."""
        lines = [
            f"  padding:  # measured by `brim bench fit-padding`: {self.conditions.processor}, {self.threads} threads",
            f"    fixed_us: {self.cost.fixed_us:.0f}",
            f"    per_token_us: {self.cost.per_token_us:.4g}",
        ]
        if self.cost.per_pair_us:
            lines.append(f"    per_pair_us: {self.cost.per_pair_us:.3g}")
        lines.append(f"    max_tokens: {self.cost.max_tokens}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """For the envelope."""
        cost = self.cost
        return {
            "fixed_us": cost.fixed_us,
            "per_token_us": cost.per_token_us,
            "per_pair_us": cost.per_pair_us,
            "max_tokens": cost.max_tokens,
            "worst_error": self.worst_error,
            "threads": self.threads,
            "measured": [
                {"rows": rows, "longest": longest, "us": us} for (rows, longest), us in self.measured_us.items()
            ],
            "conditions": self.conditions.as_json(),
        }


def fit_cost(measured_us: Mapping[Shape, float]) -> PaddingCost:
    """The cost with the least relative squared error, no term of it negative.

    Raises:
        ValueError: fewer than three shapes, or a time that is not above 0.
    """
    if len(measured_us) < 3 or min(measured_us.values()) <= 0:
        raise ValueError(f"{len(measured_us)} shapes, each with a time above 0: three at least are needed")
    times = np.array(list(measured_us.values()))
    rows, longest = np.array(list(measured_us), dtype=np.float64).T
    terms = np.stack([np.ones_like(rows), rows * longest, rows * longest**2], axis=1)
    # Relative errors: the smallest runs decide the fixed part, and are a thousandth of the largest.
    scaled = terms / times[:, np.newaxis]
    fixed_us, per_token_us, per_pair_us = _least_squares_not_negative(scaled)
    return PaddingCost(float(fixed_us), float(per_token_us), float(per_pair_us), most_tokens(measured_us))


def _least_squares_not_negative(scaled: Array) -> Array:
    """Coefficients, none negative, that bring every row of ``scaled`` closest to 1; the term per token is never left out."""
    best, least = np.zeros(scaled.shape[1]), np.inf
    for kept in ([1], [0, 1], [1, 2], [0, 1, 2]):
        found, *_ = np.linalg.lstsq(scaled[:, kept], np.ones(len(scaled)), rcond=None)
        error = float(((scaled[:, kept] @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least:
            least = error
            best = np.zeros(scaled.shape[1])
            best[kept] = found
    return best


def most_tokens(measured_us: Mapping[Shape, float]) -> int:
    """The bound on ``rows * longest`` of a run: the largest measured whose tokens cost no more than ``SLACK`` allows.

    Beyond the caches a token costs more, which the model does not say; and nothing is said of runs beyond those measured.
    """
    a_token_us = {rows * longest: us / (rows * longest) for (rows, longest), us in measured_us.items()}
    cheapest_us = min(a_token_us.values())
    return max(tokens for tokens, us in a_token_us.items() if us <= SLACK * cheapest_us)


def fit_padding(
    project: Project,
    service: Service,
    *,
    seed: int = 0,
    repeats: int = REPEATS,
    shapes: Sequence[Shape] = SHAPES,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Measure runs of an exported token model, with the threads that it is served with on a CPU, and fit their cost.

    Raises:
        InputError: the graph is not one of token ids.
        ModelFileError: it is not exported.
    """
    folder = project.model_repository / service.name / "1"
    remedy = f"run `brim export {service.name}`"
    threads = service.runtime.threads or max(1, cores() // sum(group.count for group in service.instances))
    session = OnnxSession(folder / "model.onnx", Device(None, threads), remedy=remedy)
    if IDS not in session.inputs or not set(session.inputs) <= FIELDS:
        raise InputError(
            f"{service.name}: the graph takes {sorted(session.inputs)}, and only token ids can be padded",
            hint=f"the cost of padding is that of models whose inputs are among {sorted(FIELDS)}",
        )
    _, largest = read_record(folder, remedy).index_ranges.get(IDS, (0, 1))
    draw = np.random.default_rng(seed)
    taken: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    watch = Watch()
    for repeat, shape in itertools.product(range(-1, repeats), shapes):
        us = _run_us(session, shape, draw, largest)
        # The first time round memory is made.
        if repeat >= 0:
            taken[shape].append(us)
        if shape == shapes[-1]:
            on_progress(f"pass {repeat + 1} of {repeats} over {len(shapes)} shapes")
    # The least: what other work on the machine adds to a run is never negative.
    measured_us = {shape: min(times) for shape, times in taken.items()}
    cost = fit_cost(measured_us)
    worst = max(abs(cost.of(*shape) / us - 1) for shape, us in measured_us.items())
    return Fit(cost, measured_us, worst, threads, watch.stop())


def _run_us(session: OnnxSession, shape: Shape, draw: np.random.Generator, largest: int) -> float:
    feeds: dict[str, Array] = {name: np.zeros(shape, dtype=np.int64) for name in session.inputs}
    feeds[IDS] = draw.integers(0, largest, shape, endpoint=True)
    if MASK in feeds:
        feeds[MASK] = np.ones(shape, dtype=np.int64)
    began_ns = time.perf_counter_ns()
    session.run(list(session.outputs), feeds)
    return (time.perf_counter_ns() - began_ns) / 1_000
