"""The batch time tau(b): how long an execution of b rows takes, fitted to measured times, with error bars.

``tau0 + alpha * b`` by weighted least squares where the measurements allow it. Where they do not (a GPU computes in
tiles, so its times go up in steps) a monotone curve through the measured points, linear between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from brim.batcher.batch_time import pool_adjacent_violators
from brim.errors import CouldNotTell, InputError
from brim.limits import BATCH_LIMIT

LEAST_SIZES = 3
"""Two points lie on a line whatever they are."""
LEAST_RUNS = 3
"""Fewer runs of a size have no median that one of them could not move anywhere."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""
MAD_EFFICIENCY = 0.37
"""So much of what a standard deviation knows of normal noise is known by the median absolute deviation."""
MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)
"""Standard error of a median / that of a mean, for normal noise."""
LEAST_STDERR_US = 0.1
UNFIT_Z = 3.09
"""The line is refused where chance would give its residuals once in a thousand."""
UNFIT_RATIO = 0.02
"""And only where it is off by more than this part of a point's time: below, it is as good as a curve."""
CERTAIN = 3.0
"""A rise of so many standard errors is no noise."""
TOO_NOISY = 0.25
"""Runs of one size that differ by more than this part of their median say nothing about the size."""


class Form(StrEnum):
    """Which curve describes the measurements."""

    AFFINE = "affine"
    PIECEWISE = "piecewise"


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size.

    Attributes:
        rows: the size.
        time_us: time of an execution, made monotone over the sizes.
        stderr_us: its standard error.
        runs: runs behind it.
        measured_us: median of the runs.
    """

    rows: int
    time_us: float
    stderr_us: float
    runs: int
    measured_us: float


@dataclass(frozen=True, slots=True)
class BatchTime:
    """tau(b) of one model.

    Attributes:
        form: whether the line describes the measurements.
        tau0_us, alpha_us: the line, also where only the curve does: then it is the best line.
        stderr_tau0_us, stderr_alpha_us: standard errors of both.
        points: the curve, by size.
        misfit: sum of squared residuals of the line, each over its standard error, a degree of freedom; 1 for a perfect
            form with honest error bars.
        largest_residual: how far the line is off at most, over the time of that point.
    """

    form: Form
    tau0_us: float
    alpha_us: float
    stderr_tau0_us: float
    stderr_alpha_us: float
    points: tuple[Point, ...]
    misfit: float
    largest_residual: float

    def time_us(self, rows: int) -> float:
        """Time of an execution of so many rows.

        Raises:
            InputError: outside the measured sizes, of which a curve says nothing.
        """
        least, most = self.points[0].rows, self.points[-1].rows
        if not 1 <= rows <= BATCH_LIMIT or (self.form is Form.PIECEWISE and not least <= rows <= most):
            raise InputError(
                f"{rows} rows: the batch time is known for {least} to {most}", hint="measure sizes around it, too"
            )
        if self.form is Form.AFFINE:
            return self.tau0_us + self.alpha_us * rows
        sizes = [point.rows for point in self.points]
        return float(np.interp(rows, sizes, [point.time_us for point in self.points]))

    def as_json(self) -> dict[str, Any]:
        """The fit as it stands in files."""
        return {
            "form": self.form.value,
            "tau0_us": self.tau0_us,
            "alpha_us": self.alpha_us,
            "stderr": {"tau0_us": self.stderr_tau0_us, "alpha_us": self.stderr_alpha_us},
            "points": [asdict(point) for point in self.points],
            "misfit": self.misfit,
            "largest_residual": self.largest_residual,
        }


@dataclass(frozen=True, slots=True)
class MeasuredBatchTime:
    """tau(b) of a served model, and what a request costs beside it.

    Attributes:
        model: name of the model.
        fit: tau(b).
        overhead_us: time of a request in the server that is neither queue nor execution; None when unknown.
        outside_us: time of a request at its caller that is not in the server: client library, network, protocol.
        provenance: server, date, how it was measured.
    """

    model: str
    fit: BatchTime
    overhead_us: float | None
    outside_us: float | None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """One flat object: the fit, and the rest beside it."""
        return {
            "model": self.model,
            **self.fit.as_json(),
            "overhead_us": self.overhead_us,
            "outside_us": self.outside_us,
            "provenance": dict(self.provenance),
        }

    def write(self, path: Path) -> None:
        """The object as a JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")


def design_sizes(limit: int = BATCH_LIMIT) -> list[int]:
    """Batch sizes that tell most about a curve from 1 to ``limit``, about eleven for 100.

    Chebyshev points, dense at both ends where a line gets its error bars from, and a geometric series, since small
    batches differ most from one another. 1 and ``limit`` are always in it.
    """
    if not 1 <= limit <= BATCH_LIMIT:
        raise InputError(f"limit {limit}: must be 1 to {BATCH_LIMIT}", hint="give the model's max_batch_size")
    chebyshev = [1 + (limit - 1) * (1 - math.cos(math.pi * i / 6)) / 2 for i in range(7)]
    geometric = [limit ** (i / 5) for i in range(6)]
    return sorted({round(size) for size in (*chebyshev, *geometric)})


def fit(runs_us: Mapping[int, Sequence[float]]) -> BatchTime:
    """Fit tau(b).

    Each size counts by the median of its runs, so that a run that was held up moves little; its standard error comes from
    the median absolute deviation, and is never below what all sizes together show.

    Args:
        runs_us: batch size -> time of an execution in each run (the mean over the run's executions).

    Raises:
        CouldNotTell: there are fewer than ``LEAST_SIZES`` sizes with ``LEAST_RUNS`` runs each, or the runs differ too much.
        InputError: a size or a time is out of range.
    """
    wrong = [f"{rows} rows" for rows in runs_us if not 1 <= rows <= BATCH_LIMIT]
    wrong += [
        f"{time:g} us at {rows} rows" for rows, runs in runs_us.items() for time in runs if not 0 <= time < math.inf
    ]
    if wrong:
        raise InputError(
            f"no batch time: {', '.join(wrong[:10])}", hint=f"sizes are 1 to {BATCH_LIMIT}, times 0 or more"
        )
    enough = {rows: np.asarray(runs, float) for rows, runs in sorted(runs_us.items()) if len(runs) >= LEAST_RUNS}
    if len(enough) < LEAST_SIZES:
        raise CouldNotTell(
            f"{len(enough)} batch sizes with {LEAST_RUNS} runs or more, at least {LEAST_SIZES} are needed for a batch time",
            hint="measure more sizes, or more runs of each",
        )
    sizes = np.array(list(enough), float)
    runs = np.array([len(times) for times in enough.values()])
    measured = np.array([np.median(times) for times in enough.values()])
    stderr = _standard_errors(list(enough.values()), measured, runs)
    line, covariance = _line(sizes, measured, stderr)
    residuals = measured - (line[0] + line[1] * sizes)
    freedom = len(sizes) - 2
    chi2 = float(np.sum((residuals / stderr) ** 2))
    off = np.abs(residuals) / np.maximum(measured, LEAST_STDERR_US)
    known = MAD_EFFICIENCY * float(np.sum(runs - 1))
    unfit = chi2 > _unfit_limit(freedom, known) and float(off.max()) > UNFIT_RATIO
    # Where the residuals are larger than the error bars say, it is the error bars that are too small.
    covariance = covariance * max(1.0, chi2 / freedom)
    monotone = pool_adjacent_violators(measured.tolist(), (1 / stderr**2).tolist())
    return BatchTime(
        form=Form.PIECEWISE if unfit else Form.AFFINE,
        tau0_us=float(line[0]),
        alpha_us=float(line[1]),
        stderr_tau0_us=math.sqrt(covariance[0, 0]),
        stderr_alpha_us=math.sqrt(covariance[1, 1]),
        points=tuple(
            Point(int(rows), float(time), float(error), int(count), float(median))
            for rows, time, error, count, median in zip(sizes, monotone, stderr, runs, measured, strict=True)
        ),
        misfit=chi2 / freedom,
        largest_residual=float(off.max()),
    )


def finer_sizes(found: BatchTime, *, most: int = 4) -> list[int]:
    """Further sizes that would tell most about a curve: in the middle of where it may hide a step. None for a line.

    Between two sizes a curve that never falls lies somewhere in the rectangle that they span. The largest rectangles are
    halved first; a rise that may be noise (three standard errors) and neighbouring sizes are left alone.
    """
    if found.form is Form.AFFINE:
        return []
    rectangles = [
        ((right.time_us - left.time_us) * (right.rows - left.rows), (left.rows + right.rows) // 2)
        for left, right in pairwise(found.points)
        if right.rows - left.rows > 1
        and right.time_us - left.time_us > CERTAIN * math.hypot(left.stderr_us, right.stderr_us)
    ]
    return sorted(size for _, size in sorted(rectangles, reverse=True)[:most])


def _standard_errors(
    runs: Sequence[npt.NDArray[np.float64]], medians: npt.NDArray[np.float64], counts: npt.NDArray[np.int_]
) -> npt.NDArray[np.float64]:
    """Standard error of each median.

    Raises:
        CouldNotTell: the runs of the typical size differ by more than ``TOO_NOISY``.
    """
    deviations = np.array([np.median(np.abs(times - middle)) for times, middle in zip(runs, medians, strict=True)])
    # Of few values the median deviation is too small; the factor is Croux and Rousseeuw's (1992), n / (n - 0.8).
    own = MAD_TO_SIGMA * deviations * counts / (counts - 0.8)
    usual = float(np.median(own / np.maximum(medians, LEAST_STDERR_US)))
    if usual > TOO_NOISY:
        raise CouldNotTell(
            f"runs of one batch size differ by {usual:.0%} of their time, at most {TOO_NOISY:.0%} can be worked with",
            hint="measure on a quiet machine, or with more executions a run",
        )
    sigma = np.maximum(own, usual * medians)
    stderr: npt.NDArray[np.float64] = np.maximum(MEDIAN_TO_MEAN * sigma / np.sqrt(counts), LEAST_STDERR_US)
    return stderr


def _line(
    sizes: npt.NDArray[np.float64], times: npt.NDArray[np.float64], stderr: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(tau0, alpha) and their covariance. Neither is negative: one that would be is 0, and the other fitted alone."""
    design = np.stack([np.ones_like(sizes), sizes], axis=1) / stderr[:, None]
    covariance = np.linalg.inv(design.T @ design)
    target = times / stderr
    line = covariance @ design.T @ target
    for zero, other in ((1, 0), (0, 1)):
        if line[zero] < 0:
            alone = design[:, other]
            line[zero], line[other] = 0.0, float(alone @ target) / float(alone @ alone)
    return line, covariance


def _unfit_limit(freedom: int, behind_errors: float) -> float:
    """What a sum of squared residuals over their standard errors exceeds once in a thousand; infinite where none is known.

    The standard errors are estimates, so it is an F and no chi-square quantile (Paulson's approximation, 1942, The
    Annals of Mathematical Statistics 13(2)).

    Args:
        freedom: degrees of freedom of the residuals.
        behind_errors: degrees of freedom behind the standard errors.
    """
    above, below = 2 / (9 * freedom), 2 / (9 * behind_errors)
    leading = (1 - below) ** 2 - UNFIT_Z**2 * below
    if leading <= 0:
        return math.inf
    half = (1 - above) * (1 - below)
    root = (half + math.sqrt(half**2 - leading * ((1 - above) ** 2 - UNFIT_Z**2 * above))) / leading
    return freedom * root**3
