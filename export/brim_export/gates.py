"""What a model must show before strangers may share its batches. Each gate answers for one property, with numbers.

- ``inference_mode``: nothing behaves as in training.
- ``batch_axis``: axis 0 of every input and output is symbolic, and any number of rows up to the limit really runs.
- ``rows_preserved``: as many rows out as in, for every output, at every number of rows.
- ``parity``: the exported model answers as the torch module does.
- ``row_independence``: a row's answer is the same alone, shuffled, and beside hostile neighbours.
- ``deterministic``: the same input gives the same bits.

A message names the tensor, the axis, what was wanted, what was found, and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from brim_export import graph
from brim_export.compare import deviation, is_float, magnitude
from brim_export.graph import BATCH_AXIS, TensorSpec
from brim_export.rows import HOSTILITIES, AxisSizes, stack, take
from brim_export.session import Array, Feed, RunFailed
from brim_export.subject import Subject

INFERENCE_MODE = "inference_mode"
BATCH_AXIS_GATE = "batch_axis"
ROWS_PRESERVED = "rows_preserved"
PARITY = "parity"
ROW_INDEPENDENCE = "row_independence"
DETERMINISTIC = "deterministic"
GATES = (INFERENCE_MODE, BATCH_AXIS_GATE, ROWS_PRESERVED, PARITY, ROW_INDEPENDENCE, DETERMINISTIC)
"""Every gate, in the order of their results."""

TORCH = "torch"
FULL_PRECISION = "the graph in fp32"
"""What parity is held against: the module, or for a graph of lower precision that came as a file, the file."""

PARITY_TOLERANCE = 1e-4
"""Allowed difference from torch: this much absolutely plus this much of torch's value."""

ROW_TOLERANCE = 1e-5
"""Allowed change of a row's answer by its neighbours, as a share of the output's largest magnitude over rows run alone.

Matrix kernels sum in another order for another number of rows, so FP32 answers differ by a few units of
2**-24 times the square root of the summed length: some 1e-6 of the magnitude in practice. Leaks are told apart by size:
the hostile neighbours hold values up to 1e37, so what leaks arrives large or as NaN.
"""

_ULPS = 8
_MINE = 4
_CROWD_OF_HOSTILES = 5

Reference = Callable[[Mapping[str, Array]], Feed]
"""The model in torch: inputs by name to outputs by name."""


class ReferenceFailed(Exception):
    """The torch module, or whatever stands for it, did not run what the exported model is to be held against."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer of one gate. ``seen`` holds the largest deviation by output where the gate measures one. ``skipped`` marks a
    gate that lets a model pass which it had nothing to try on; the message says why."""

    gate: str
    ok: bool
    message: str
    seen: Mapping[str, float] = field(default_factory=dict)
    skipped: bool = False

    def as_json(self) -> dict[str, object]:
        """``{gate, ok, message, skipped}``."""
        return {key: value for key, value in asdict(self).items() if key != "seen"}


def refused(gate: str, faults: Sequence[str], remedy: str, seen: Mapping[str, float] | None = None) -> GateResult:
    """A refusal that lists every fault, and the way out."""
    return GateResult(gate, False, f"{'; '.join(faults)}. Remedy: {remedy}", seen or {})


def not_run(gate: str, reason: str) -> GateResult:
    """A gate that could not be tried, which is no pass."""
    return GateResult(gate, False, f"not run: {reason}")


def inference_mode(subject: Subject, module_faults: Sequence[str] = ()) -> GateResult:
    """Refuse operators in training mode, and what the torch module said of itself (``module_faults``)."""
    faults = [*module_faults]
    faults += [
        f"operator {title} is in training mode, wanted inference" for title in graph.training_operators(subject.model)
    ]
    return mode_result(faults)


def mode_result(faults: Sequence[str]) -> GateResult:
    """The result of ``inference_mode`` for faults that are known already."""
    if faults:
        return refused(
            INFERENCE_MODE,
            faults,
            "call module.eval() in the factory; give normalisation layers running statistics (track_running_stats=True)",
        )
    return GateResult(INFERENCE_MODE, True, "no layer is in training mode")


def batch_axis(subject: Subject) -> GateResult:
    """Refuse a fixed or missing axis 0 of any input or output, and a symbolic one that does not run at every size."""
    faults = [*_declared_faults("input", subject.inputs), *_declared_faults("output", subject.outputs)]
    fixed_input = bool(_declared_faults("input", subject.inputs))
    counts = subject.row_counts()
    if subject.size_fault:
        faults.append(f"no size tried for the symbolic axes {subject.source.symbols()} runs: {subject.size_fault}")
    elif not fixed_input:
        names = ", ".join(spec.name for spec in subject.inputs)
        for rows in counts:
            answer = subject.at(rows)
            if isinstance(answer, RunFailed):
                faults.append(f"input {names} axis 0 is declared symbolic, but {rows} rows do not run: {answer}")
        faults += _limit_faults(subject)
    if faults:
        first = subject.inputs[0].name
        return refused(
            BATCH_AXIS_GATE,
            faults,
            f"export again with axis 0 symbolic on every input (torch: an example of two rows and "
            f"dynamic_shapes={{'{first}': {{0: Dim('batch')}}}}) and no row count written into the model",
        )
    return GateResult(BATCH_AXIS_GATE, True, f"axis 0 is symbolic on every tensor; ran at {_listed(counts)} rows")


def rows_preserved(subject: Subject) -> GateResult:
    """Refuse any output that has another number of rows than the inputs."""
    counts, wrong, failed = subject.row_counts(), dict[str, list[str]](), list[int]()
    for rows in counts:
        answer = subject.at(rows)
        if isinstance(answer, RunFailed):
            failed.append(rows)
            continue
        for name, values in answer.items():
            if values.ndim == 0:
                wrong.setdefault(name, []).append(f"no axis at all for {rows} rows in")
            elif len(values) != rows:
                wrong.setdefault(name, []).append(f"{len(values)} for {rows} rows in")
    faults = [
        f"output {name} axis 0: wanted as many rows as went in, found {', '.join(found)}"
        for name, found in wrong.items()
    ]
    if failed and not faults:
        return not_run(ROWS_PRESERVED, f"the model does not run at {_listed(failed)} rows (see {BATCH_AXIS_GATE})")
    if faults:
        return refused(
            ROWS_PRESERVED,
            faults,
            "keep axis 0 of every output one entry a row: no squeeze() without an axis, no reshape that merges rows, "
            "no filtering or broadcasting along axis 0",
        )
    return GateResult(ROWS_PRESERVED, True, f"rows out equal rows in at {_listed(counts)} rows")


def parity(subject: Subject, reference: Reference, tolerance: float = PARITY_TOLERANCE, of: str = TORCH) -> GateResult:
    """Refuse answers that differ from the reference, which ``of`` names: floats by more than
    ``tolerance * (1 + |reference|)``, the rest at all."""
    rng, seen, worst = subject.rng(PARITY), dict[str, float](), dict[str, tuple[float, str]]()
    faults: list[str] = []
    for rows in subject.parity_counts():
        for sizes in subject.sizes_for(rows):
            feed = subject.source.rows(rng, rows, sizes)
            try:
                wanted = reference(feed)
                found = subject.session.run(feed)
            except ReferenceFailed as error:
                faults.append(f"{rows} rows{_at(sizes)} do not run in {of} itself: {error}")
                continue
            except RunFailed as error:
                faults.append(f"{rows} rows{_at(sizes)} run in {of} but not in the exported model: {error}")
                continue
            for name, values in wanted.items():
                apart, over, place = _parity_gap(found[name], values, tolerance, of)
                seen[name] = max(seen.get(name, 0.0), apart)
                if over > worst.get(name, (0.0, ""))[0]:
                    worst[name] = (over, f"by {apart:.3g} at {rows} rows{_at(sizes)}{place}")
    faults += [f"output {name} differs from {of} {text}" for name, (_, text) in worst.items()]
    if faults:
        return refused(
            PARITY,
            list(dict.fromkeys(faults)),
            f"look for code that runs differently while exporting; the tolerance asked is {tolerance:g} * (1 + |{of}|)",
            seen,
        )
    return GateResult(
        PARITY,
        True,
        f"equals {of} within {tolerance:g} * (1 + |{of}|) at {_listed(subject.parity_counts())} rows; {_largest(seen)}",
        seen,
    )


def row_independence(subject: Subject, tolerance: float = ROW_TOLERANCE) -> GateResult:
    """Refuse a model in which the answer for a row changes with the rows beside it, or with how far it is padded.

    Rows are run alone, shuffled together, among a full batch of others, beside neighbours of every hostility at the
    first, middle and last place, and (with a ``pad_rows`` hook) padded among longer rows.
    """
    if subject.batch_limit == 1:
        return GateResult(ROW_INDEPENDENCE, True, "the batch limit is 1: no row has neighbours")
    unbatched = _declared_faults("input", subject.inputs)
    if unbatched:
        return not_run(ROW_INDEPENDENCE, f"{unbatched[0]} (see {BATCH_AXIS_GATE})")
    trial = _Independence(subject, tolerance)
    try:
        for sizes in subject.axis_sizes:
            trial.at(sizes)
    except RunFailed as error:
        return not_run(ROW_INDEPENDENCE, f"one row alone does not run: {error}")
    if trial.faults:
        return refused(
            ROW_INDEPENDENCE,
            list(trial.faults.values()),
            "no operator may combine values along axis 0 (statistics over the batch, cumulative sums, sorting, "
            "softmax with the wrong axis), and masked or padded positions must carry no weight",
            trial.seen,
        )
    note = (
        f"; extreme values were not tried for {trial.not_extreme}, whose valid range the graph does not tell"
        if trial.not_extreme
        else ""
    )
    return GateResult(
        ROW_INDEPENDENCE,
        True,
        f"a row's answer is the same alone and beside {', '.join(trial.kinds)}, at any place; {_largest(trial.seen)}{note}",
        trial.seen,
    )


def deterministic(subject: Subject) -> GateResult:
    """Refuse random operators, and answers whose bits change from one execution to the next."""
    faults = [f"operator {title} draws random numbers" for title in graph.random_operators(subject.model)]
    rng = subject.rng(DETERMINISTIC)
    tried = 0
    for rows in (1, subject.batch_limit):
        for sizes in subject.sizes_for(rows):
            feed = subject.source.rows(rng, rows, sizes)
            try:
                first, second = subject.session.run(feed), subject.session.run(feed)
            except RunFailed:
                continue
            tried += 1
            faults += [
                f"output {name} changes between two executions of the same {rows} rows{_at(sizes)} by "
                f"{deviation(second[name], first[name]).max():.3g}"
                for name in first
                if not _same_bits(first[name], second[name])
            ]
    if faults:
        return refused(
            DETERMINISTIC, faults, "take random operators out of the inference path (noise, sampling, dropout)"
        )
    if not tried:
        return not_run(DETERMINISTIC, f"the model does not run (see {BATCH_AXIS_GATE})")
    return GateResult(DETERMINISTIC, True, "the same input gives the same bits; no random operator")


class _Independence:
    """The trials of ``row_independence``: one fault an output at most, the first found, and the largest change seen."""

    def __init__(self, subject: Subject, tolerance: float) -> None:
        self.subject = subject
        self.tolerance = tolerance
        self.faults: dict[str, str] = {}
        self.seen: dict[str, float] = {}
        self.kinds = [
            "other rows",
            *(kind for kind in HOSTILITIES if kind in ("zeros", "huge values") or subject.source.has_floats()),
        ]
        self.not_extreme: list[str] = []
        self._rng = subject.rng(ROW_INDEPENDENCE)

    def at(self, sizes: AxisSizes) -> None:
        source, rng = self.subject.source, self._rng
        mine = source.rows(rng, min(_MINE, self.subject.batch_limit), sizes)
        count = len(next(iter(mine.values())))
        answers = [self.subject.session.run(take(mine, [index])) for index in range(count)]
        if any(values.ndim == 0 or len(values) != 1 for answer in answers for values in answer.values()):
            self.faults["rows"] = (
                f"one row in does not give one row out, so rows cannot be told apart (see {ROWS_PRESERVED})"
            )
            return
        alone = stack(answers)
        order = rng.permutation(count).tolist()
        self._compare(
            take(mine, order), list(range(count)), alone, order, f"shuffled with {count - 1} others{_at(sizes)}"
        )
        self._among_others(mine, alone, sizes)
        for kind in self.kinds[1:]:
            self._beside(kind, mine, alone, sizes)
        if source.pad_rows:
            self._padded(mine, alone, sizes)

    def _among_others(self, mine: Feed, alone: Feed, sizes: AxisSizes) -> None:
        count, rng = len(next(iter(mine.values()))), self._rng
        rows = self._crowd(sizes, count)
        places = sorted(rng.permutation(rows)[:count].tolist())
        batch = self.subject.source.rows(rng, rows, sizes)
        for name, values in batch.items():
            values[places] = mine[name]
        self._compare(batch, places, alone, list(range(count)), f"among {rows - count} other rows{_at(sizes)}")

    def _beside(self, kind: str, mine: Feed, alone: Feed, sizes: AxisSizes) -> None:
        count = len(next(iter(mine.values())))
        small = min(_CROWD_OF_HOSTILES, self.subject.batch_limit)
        trials = [(small, place) for place in (0, small // 2, small - 1)]
        trials.append((self._crowd(sizes, small), small // 2))
        for number, (rows, place) in enumerate(trials):
            index = number % count
            batch = self._hostile(kind, rows, sizes)
            for name, values in batch.items():
                values[place] = mine[name][index]
            self._compare(
                batch,
                [place],
                alone,
                [index],
                f"at place {place + 1} of {rows} rows, the others holding {kind}{_at(sizes)}",
            )

    def _hostile(self, kind: str, rows: int, sizes: AxisSizes) -> Feed:
        source = self.subject.source
        unranged = source.unranged()
        if not unranged or unranged == self.not_extreme:
            return source.hostile(self._rng, kind, rows, sizes, unranged=False)
        batch = source.hostile(self._rng, kind, rows, sizes, unranged=True)
        try:
            self.subject.session.run(batch)
        except RunFailed:
            self.not_extreme = unranged
            return source.hostile(self._rng, kind, rows, sizes, unranged=False)
        return batch

    def _padded(self, mine: Feed, alone: Feed, sizes: AxisSizes) -> None:
        count = len(next(iter(mine.values())))
        for longer in self.subject.axis_sizes:
            if longer == sizes or any(longer[symbol] < size for symbol, size in sizes.items()):
                continue
            padded = self.subject.source.padded(mine, longer)
            rows = self._crowd(longer, count + 1)
            batch = stack([padded, self.subject.source.rows(self._rng, rows - count, longer)])
            self._compare(
                batch,
                list(range(count)),
                alone,
                list(range(count)),
                f"padded from {_named(sizes)} among {rows - count} rows{_at(longer)}",
            )

    def _crowd(self, sizes: AxisSizes, least: int) -> int:
        """A full batch, or what the trial limits allow at these axis sizes."""
        limit = self.subject.batch_limit
        fitting = [
            rows for rows in (limit, limit // 2, limit // 4, limit // 8) if sizes in self.subject.sizes_for(rows)
        ]
        return min(limit, max(least, fitting[0] if fitting else least))

    def _compare(self, batch: Feed, places: list[int], alone: Feed, indices: list[int], where: str) -> None:
        """Run ``batch`` and hold its rows at ``places`` against the rows ``indices`` of the answers alone."""
        try:
            together = self.subject.session.run(batch)
        except RunFailed as error:
            self.faults.setdefault("run", f"a row that runs alone fails {where}: {error}")
            return
        for name, values in together.items():
            wanted = alone[name][indices]
            found = values[places] if values.ndim and len(values) > max(places) else None
            if found is None or found.shape != wanted.shape:
                shape = list(values.shape)
                self.faults.setdefault(
                    name, f"output {name} axis 0: a row has no answer of its own {where}: shape {shape}"
                )
                continue
            apart = float(deviation(found, wanted).max(initial=0.0))
            self.seen[name] = max(self.seen.get(name, 0.0), apart)
            allowed = self._allowed(alone[name])
            if apart > allowed:
                change = (
                    f"differs by {apart:.3g}"
                    if math.isfinite(apart)
                    else "becomes (or stops being) NaN or Inf, differing"
                )
                self.faults.setdefault(
                    name,
                    f"output {name} axis 0: output of a row depends on other rows: {where} it {change} "
                    f"from the same row alone (allowed {allowed:.3g})",
                )

    def _allowed(self, alone: Array) -> float:
        if not is_float(alone):
            return 0.0
        return max(self.tolerance, _ULPS * float(np.finfo(alone.dtype).eps)) * magnitude(alone)


def _limit_faults(subject: Subject) -> list[str]:
    """One row at the largest axis sizes must run."""
    if set(subject.axis_limits) != set(subject.source.symbols()) or not subject.axis_limits:
        return []
    feed = subject.source.rows(subject.rng(BATCH_AXIS_GATE), 1, subject.axis_limits)
    try:
        subject.session.run(feed)
    except RunFailed as error:
        return [f"one row{_at(subject.axis_limits)} does not run, though torch derived that limit: {error}"]
    return []


def _declared_faults(role: str, specs: Sequence[TensorSpec]) -> list[str]:
    faults = []
    for spec in specs:
        if spec.shape is None:
            if role == "input":
                faults.append(f"input {spec.name} declares no shape, wanted axis 0 symbolic")
        elif not spec.shape:
            faults.append(f"{role} {spec.name} has no axes (a scalar), wanted axis 0 symbolic")
        elif isinstance(spec.shape[BATCH_AXIS], int):
            faults.append(f"{role} {spec.name} axis 0 is {spec.shape[BATCH_AXIS]}, wanted symbolic")
    return faults


def _parity_gap(found: Array, wanted: Array, tolerance: float, of: str) -> tuple[float, float, str]:
    """(largest deviation, largest excess over the tolerance as a share of it, where); an excess of 0 is a pass."""
    if found.shape != wanted.shape or is_float(found) != is_float(wanted):
        return (
            math.inf,
            math.inf,
            f" (shape {list(found.shape)} {found.dtype}, {of} {list(wanted.shape)} {wanted.dtype})",
        )
    apart = deviation(found, wanted)
    if not apart.size:
        return 0.0, 0.0, ""
    if is_float(wanted):
        reference = np.abs(wanted.astype(np.float64))
        allowed = tolerance * (1 + np.where(np.isfinite(reference), reference, 0.0))
    else:
        allowed = np.full(apart.shape, np.finfo(np.float64).tiny)
    share = apart / allowed
    place = np.unravel_index(int(share.argmax()), share.shape)
    text = f", first of the worst at {list(map(int, place))}: {found[place]} for {wanted[place]} of {of}"
    return float(apart.max()), float(share.max()) if share.max() > 1 else 0.0, text


def _same_bits(first: Array, second: Array) -> bool:
    if first.dtype == np.object_ or first.shape != second.shape:
        return bool(np.array_equal(first, second))
    return first.tobytes() == second.tobytes()


def _at(sizes: AxisSizes) -> str:
    return f" at {_named(sizes)}" if sizes else ""


def _named(sizes: AxisSizes) -> str:
    return ", ".join(f"{symbol} {size}" for symbol, size in sizes.items())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _largest(seen: Mapping[str, float]) -> str:
    return "largest deviation " + ", ".join(f"{name} {value:.3g}" for name, value in seen.items())
