"""How long a step takes: a sum of what it does, fitted from steps that were logged.

    time = base + sequence x decoding sequences + context x tokens that these attend to
         + prefill x prompt tokens + pair x (prompt token, earlier token) pairs
         + crowd x decoding sequences beyond the eighth

The first term is what reading the weights costs, the third is attention over the KV cache, the fifth is attention within
prompts, which makes chunks late in a long prompt dearer than early ones. The last is there because a few sequences cost next
to nothing beside the weights, and many do not: with openvino-genai 2026.4 on two processors, one to four took 24 ms a step,
8 took 28, 16 took 34 and 32 took 55. With it, half of 284 steps were within 4 % and nine in ten within 11 %, and all steps of a
run that only decoded within 4 % together; without it 6, 14 and 9 %.

File format (``StepTime.as_json``, ``read_step_time``): the coefficients, or the steps to fit them from::

    {"base_us": 9000, "sequence_us": 300, "context_us": 0.9, "prefill_us": 310, "pair_us": 0.02, "crowd_us": 0}
    {"steps": [{"decoding": 8, "prefill_tokens": 0, "context_tokens": 900, "prefill_pairs": 0, "took_us": 21000}, ...]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass
from itertools import combinations
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.errors import InputError
from brim.findings import Finding, Severity
from brim.units import US_PER_S

LONGEST_STEP_US = 3600 * US_PER_S
LARGEST_FILE_BYTES = 50_000_000
MOST_FINDINGS = 30
CROWD = 8
"""Decoding sequences from which on each takes ``StepTime.crowd_us`` more."""
NO_STEP_TIME, BAD_VALUE = "STEP001", "STEP002"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What decides how long a step takes.

    Attributes:
        decoding: sequences that get their next token without any prompt of theirs in this step.
        prefill_tokens: prompt tokens run; cached ones are not.
        context_tokens: tokens that the decoding sequences attend to, all together.
        prefill_pairs: tokens that the prompt tokens attend to, all together: n tokens after c others are n * (c + n / 2).
    """

    decoding: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    prefill_pairs: int = 0

    @property
    def features(self) -> tuple[int, int, int, int, int, int]:
        """What the coefficients of ``StepTime`` are multiplied with, in their order."""
        crowd = max(0, self.decoding - CROWD)
        return 1, self.decoding, self.context_tokens, self.prefill_tokens, self.prefill_pairs, crowd


def prefill_pairs(tokens: int, after: int) -> int:
    """Pairs of so many prompt tokens that come after so many others."""
    return tokens * after + tokens * tokens // 2


@dataclass(frozen=True, slots=True)
class StepTime:
    """The coefficients, all in microseconds and 0 or more. See the module's text."""

    base_us: float
    sequence_us: float
    context_us: float
    prefill_us: float
    pair_us: float
    crowd_us: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no time.

        Raises:
            InputError: a coefficient is negative, not finite or too large, or all are 0.
        """
        faults = [
            f"{name} is {value}; 0 to {LONGEST_STEP_US} us is expected"
            for name, value in asdict(self).items()
            if not 0 <= value <= LONGEST_STEP_US
        ]
        if not faults and not any(self.coefficients):
            faults = ["every coefficient is 0: a step takes some time"]
        if faults:
            raise InputError("; ".join(faults), hint="all of them are microseconds; see brim.engine.step_time")

    @property
    def coefficients(self) -> tuple[float, float, float, float, float, float]:
        """In the order of ``StepShape.features``."""
        return self.base_us, self.sequence_us, self.context_us, self.prefill_us, self.pair_us, self.crowd_us

    def time_us(self, shape: StepShape) -> int:
        """Time of a step, rounded to the nearest microsecond, 1 at least."""
        total: float = sum(map(mul, self.coefficients, shape.features))
        return max(1, round(total))

    def as_json(self) -> dict[str, float]:
        """As a file holds it."""
        return asdict(self)


def fit(steps: Iterable[tuple[StepShape, float]]) -> StepTime:
    """Least squares of the relative error, no coefficient below 0.

    Relative, because a short step that is off by a millisecond matters as much to those in it as a long one that is off by
    ten. Of every choice of coefficients that are not held at 0, the best one that comes out without a negative is the
    optimum under that bound (Lawson and Hanson, Solving Least Squares Problems, chapter 23), and there are only 63.

    Args:
        steps: shape and measured time in microseconds of each.

    Raises:
        InputError: there are no steps, or a time is not above 0.
    """
    measured = list(steps)
    if not measured or any(not 0 < took_us <= LONGEST_STEP_US for _, took_us in measured):
        raise InputError(
            f"{len(measured)} steps to fit from; at least one, each with a time of 1 to {LONGEST_STEP_US} us, is expected",
            hint="run some traffic first: prompts of several lengths, alone and together",
        )
    features = np.array([shape.features for shape, _ in measured], float)
    relative: NDArray[np.float64] = features / np.array([[took_us] for _, took_us in measured], float)
    scale = np.maximum(np.abs(relative).max(axis=0), np.finfo(float).tiny)
    scaled, ones = relative / scale, np.ones(len(measured))
    best, best_error = np.zeros(scaled.shape[1]), math.inf
    for size in range(1, scaled.shape[1] + 1):
        for chosen in combinations(range(scaled.shape[1]), size):
            columns = scaled[:, chosen]
            solution = np.linalg.lstsq(columns, ones, rcond=None)[0]
            error = float(np.square(columns @ solution - ones).sum())
            if (solution >= 0).all() and error < best_error - 1e-12:
                best, best_error = np.zeros(scaled.shape[1]), error
                best[list(chosen)] = solution
    return StepTime(*(best / scale).tolist())


def read_step_time(path: Path) -> StepTime:
    """Read coefficients, or fit them from the steps of a file.

    Raises:
        InputError: it is no such file; every fault of it at once.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    found, findings = parse_step_time(data, str(path))
    if found is None:
        raise InputError(
            "\n".join(finding.render() for finding in findings),
            hint="the file holds the coefficients or the steps; see brim.engine.step_time",
        )
    return found


def parse_step_time(data: bytes, file: str) -> tuple[StepTime | None, list[Finding]]:
    """What a file's content says, or everything that is wrong with it; ``MOST_FINDINGS`` findings at most."""

    def finding(code: str, message: str) -> Finding:
        return Finding(code, Severity.ERROR, file, 0, 0, message)

    if len(data) > LARGEST_FILE_BYTES:
        return None, [finding(NO_STEP_TIME, f"the file is larger than {LARGEST_FILE_BYTES} bytes")]
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return None, [finding(NO_STEP_TIME, f"the file is no JSON: {error}")]
    if not isinstance(document, dict):
        return None, [finding(NO_STEP_TIME, "the file holds no JSON object")]
    if "steps" not in document:
        coefficients = [
            name for name, of in StepTime.__dataclass_fields__.items() if name in document or of.default is MISSING
        ]
        faults = _number_faults(document, coefficients, "")
        if faults:
            return None, [finding(BAD_VALUE, fault) for fault in faults]
        try:
            return StepTime(**{name: float(document[name]) for name in coefficients}), []
        except InputError as error:
            return None, [finding(BAD_VALUE, error.message)]
    entries = document["steps"]
    if not isinstance(entries, list) or not entries:
        return None, [finding(NO_STEP_TIME, '"steps" is no list, or an empty one; logged steps are expected')]
    names = [*StepShape.__dataclass_fields__, "took_us"]
    faults = []
    for place, entry in enumerate(entries):
        where = f"steps[{place}]"
        if not isinstance(entry, dict):
            faults.append(f"{where} is no object")
        else:
            faults += _number_faults(entry, names, f"{where}.")
            if entry.get("took_us") == 0:
                faults.append(f"{where}.took_us is 0; a step takes some time")
    if faults:
        return None, [finding(BAD_VALUE, fault) for fault in faults[:MOST_FINDINGS]]
    return fit(
        (StepShape(*(int(entry[name]) for name in names[:-1])), float(entry["took_us"])) for entry in entries
    ), []


def _number_faults(entry: dict[str, Any], names: Sequence[str], where: str) -> list[str]:
    faults: list[str] = []
    for name in names:
        value = entry.get(name)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0 <= number <= LONGEST_STEP_US:
            shown = json.dumps(value)
            shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
            what = "missing" if name not in entry else shown
            faults.append(f"{where}{name} is {what}; a number from 0 to {LONGEST_STEP_US} is expected")
    return faults


def relative_errors(model: StepTime, steps: Iterable[tuple[StepShape, float]]) -> NDArray[np.float64]:
    """Predicted / measured - 1 of each step."""
    return np.array([model.time_us(shape) / took_us - 1 for shape, took_us in steps])
