"""The accuracy gate: what a lower precision costs, in the model's own terms.

Parity bounds the deviation of single numbers. Whether the answers are still good is told by the ``accuracy`` hook beside
the torch factory (share of held-out digits, cosine of embeddings, order of retrieval); for a model without the hook, by
the direction of its outputs: the least cosine of a row's answer to the answer in full precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from brim.errors import InputError
from brim_export.compare import is_float
from brim_export.foreign import foreign, told
from brim_export.gates import GateResult, not_run, refused
from brim_export.session import Array, Feed, RunFailed, Runs
from brim_export.subject import Subject

GATE = "accuracy"
LEAST_COSINE = 0.99
"""Of a row's answer to that of full precision, where the model's source offers no measure of its own."""

Run = Callable[[Mapping[str, Array]], Feed]
"""Inputs by name to outputs by name."""
AccuracyHook = Callable[[Run, Run], Mapping[str, tuple[float, float]]]
"""``accuracy(run, reference)``: figure -> (value, least value allowed); higher is better."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure of a graph's answers; higher is better."""

    name: str
    value: float
    least: float

    @property
    def ok(self) -> bool:
        """Whether it is as good as it must be. NaN is not."""
        return self.value >= self.least


def measure(subject: Subject, reference: Runs, hook: AccuracyHook | None) -> list[Figure]:
    """Every figure, by the hook where there is one.

    Args:
        subject: the graph in its precision.
        reference: the same graph in full precision.
        hook: of the model's source.

    Raises:
        RunFailed: one of the graphs does not run the hook's rows.
        InputError: the hook raised, or gave something else than pairs of numbers.
    """
    if hook is None:
        return _cosines(subject, reference)
    answer: object = None
    try:
        with foreign(_hook_failed):
            answer = hook(subject.session.run, reference.run)
    except InputError as error:
        if isinstance(error.__cause__, RunFailed):
            raise error.__cause__ from error
        raise
    if not isinstance(answer, Mapping) or not answer:
        raise InputError(
            f"accuracy gave {type(answer).__name__}, expected a mapping of at least one figure to (value, least)",
            hint="it stands beside the torch factory; brim_export.torch_source documents it",
        )
    return [_figure(name, pair) for name, pair in answer.items()]


def gate(subject: Subject, reference: Runs, hook: AccuracyHook | None) -> GateResult:
    """Refuse answers that are worse than the model's source, or ``LEAST_COSINE``, allows. ``seen`` holds the figures.

    Raises:
        InputError: as ``measure``.
    """
    try:
        figures = measure(subject, reference, hook)
    except RunFailed as error:
        return not_run(GATE, f"the graph does not run: {error}")
    seen = {figure.name: figure.value for figure in figures}
    faults = [f"{one.name} is {one.value:.4g}, at least {one.least:.4g} is wanted" for one in figures if not one.ok]
    if faults:
        return refused(GATE, faults, "take a higher precision, or more calibration rows", seen)
    told_figures = ", ".join(f"{one.name} {one.value:.4g} (least {one.least:.4g})" for one in figures)
    return GateResult(GATE, True, told_figures or "no floating-point output to compare", seen)


def _hook_failed(error: BaseException) -> Exception:
    return InputError(f"accuracy raised {told(error)}", hint="it stands beside the torch factory; call it in python")


def _figure(name: object, pair: object) -> Figure:
    with foreign(
        lambda error: InputError(
            f"accuracy gave {name!r} as {pair!r}, expected (value, least)", hint="give two numbers for each figure"
        )
    ):
        value, least = map(float, pair)  # type: ignore[call-overload]
    return Figure(str(name), value, least)


def _cosines(subject: Subject, reference: Runs) -> list[Figure]:
    rng, least = subject.rng(GATE), dict[str, float]()
    for sizes in subject.axis_sizes:
        for rows in {1, min(subject.batch_limit, max(subject.row_counts()))}:
            if sizes not in subject.sizes_for(rows):
                continue
            feed = subject.source.rows(rng, rows, sizes)
            found, wanted = subject.session.run(feed), reference.run(feed)
            for name, values in wanted.items():
                if is_float(values) and len(values):
                    least[name] = min(least.get(name, math.inf), least_cosine(found[name], values))
    return [Figure(f"{name} least cosine", value, LEAST_COSINE) for name, value in least.items()]


def least_cosine(found: Array, wanted: Array) -> float:
    """The smallest cosine of two rows of the same place, FP64; two rows of zeros are alike, one of them is not."""
    left, right = (values.reshape(len(values), -1).astype(np.float64) for values in (found, wanted))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    same = (left == right).all(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.where(same, 1.0, (left * right).sum(axis=1) / lengths)
    return float(np.where(np.isnan(cosines), 0.0, cosines).min())
