"""One dynamic batch: guard, prepare, plan, run, bisect, scatter. Every request gets exactly one outcome.

The outcome of a request depends on that request alone: a bad one is refused before it can share a run, a run that
fails is halved until the rows at fault are known, and answers are dealt out by the row numbers that went into a run.
"""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from brim.runtime.columns import Columns, RowIds, stack_requests
from brim.runtime.contract import Array, Contract, Request
from brim.runtime.guard import Guard
from brim.runtime.isolate import RunFailed, Unavailable, bisect
from brim.runtime.outcome import Answer, Failure, Outage, Outcome, Reason, Refusal
from brim.runtime.outputs import Scatter, Tensors, check_output
from brim.runtime.padding import PaddingCost, PaddingStats, cut
from brim.runtime.row_mask import refusals_for, valid_rows

ModelFunction: TypeAlias = Callable[[dict[str, Array]], Tensors]
"""Runs rows: inputs ``{name: [rows, ...]}`` to outputs ``{name: [rows, ...]}``. Must not write into its inputs, and must
return arrays that a later run leaves alone. What it raises is taken for the fault of some of the rows, but ``Unavailable``."""
PreparedRow: TypeAlias = Mapping[str, Array]
"""Model inputs of one row, without the batch axis."""
Prepare: TypeAlias = Callable[[Sequence[Request]], Sequence[Sequence[PreparedRow] | Refusal]]
"""Makes model inputs of guarded requests (tokenisation): for each its rows, or its refusal."""

_LOG_LIMIT = 4_000


@dataclass(frozen=True, slots=True)
class Planner:
    """Which rows share a run.

    Args:
        max_rows: most rows of one run.
        cost: what a padded run costs; without it rows stay in order of arrival.
        pads: model inputs whose first row axis is padded, with the padding value of each.
        trim: outputs whose first row axis is that padded axis, cut back to the length of each row.
    """

    max_rows: int
    cost: PaddingCost | None = None
    pads: Mapping[str, float] = field(default_factory=dict)
    trim: frozenset[str] = frozenset()

    def plan(self, columns: Columns) -> list[RowIds]:
        """Row numbers of each run; every row is in exactly one."""
        lengths = columns.lengths
        runs: list[RowIds] = []
        for group in columns.groups():
            if len(group) <= self.max_rows and (lengths is None or self.cost is None):
                runs.append(group)
            elif lengths is None or self.cost is None:
                runs += [group[start : start + self.max_rows] for start in range(0, len(group), self.max_rows)]
            else:
                runs += [group[run] for run in cut(lengths[group], self.cost, self.max_rows)]
        return runs


@dataclass(slots=True)
class RuntimeStats:
    """Counts since the start. ``extra_runs`` are those that bisection added, ``model_us`` is time in the model function."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    rows: int = 0
    runs: int = 0
    extra_runs: int = 0
    model_us: float = 0.0
    padding: PaddingStats = field(default_factory=PaddingStats)


class BatchRuntime:
    """Runs batches of requests through one model function. Not safe for use by several threads at once."""

    def __init__(
        self,
        contract: Contract,
        guard: Guard,
        run_rows: ModelFunction,
        planner: Planner | None = None,
        *,
        prepare: Prepare | None = None,
        prepared_names: Sequence[str] = (),
        valid: str | None = None,
        log: Callable[[str], None] = lambda text: None,
        new_incident: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        """Put the parts together.

        Args:
            contract: inputs that requests carry and outputs that ``run_rows`` must return.
            guard: the checks of one request.
            run_rows: the model.
            planner: which rows share a run; by default rows in order of arrival.
            prepare: makes the model's inputs of a request; by default the request's own tensors are the model's.
            prepared_names: the model's inputs that ``prepare`` makes.
            valid: a further output of ``run_rows`` that tells which rows the model could take; the others are refused.
            log: where the details of a failure go (the server's log).
            new_incident: makes the id that ties a caller's message to the log.
        """
        planner = planner or Planner(contract.max_rows)
        if prepare and planner.trim:
            raise ValueError(
                f"outputs {sorted(planner.trim)} have one element a token, which prepared rows cannot share"
            )
        self.stats = RuntimeStats()
        self._contract = contract
        self._outputs = tuple(spec.name for spec in contract.outputs)
        self._guard = guard
        self._run_rows = run_rows
        self._planner = planner
        self._prepare = prepare
        self._prepared_names = tuple(prepared_names)
        self._valid = valid
        self._log = log
        self._new_incident = new_incident

    def execute(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcome of each request, in the order of ``requests``. What the model function raises stays inside."""
        self.stats.requests += len(requests)
        outcomes = self._execute_together(requests)
        if outcomes is None:
            outcomes = self._execute_accepted(requests)
        return outcomes

    def _execute_together(self, requests: Sequence[Request]) -> list[Outcome] | None:
        """The outcomes when nothing is wrong with any request, which one look at all of them shows; else None."""
        stacked = self._guard.stack(requests) if self._prepare is None else None
        if stacked is None or not all(self._guard.values_ok(*column) for column in stacked.columns.items()):
            return None
        return self._run(stacked.sizes, Columns(sum(stacked.sizes), stacked.columns, self._planner.pads))

    def _execute_accepted(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcomes when some requests may have to be refused, or their inputs are made first."""
        outcomes: list[Outcome | None] = [self._guard.check_form(request) for request in requests]
        accepted = [number for number, refusal in enumerate(outcomes) if refusal is None]
        if accepted:
            stacked = self._stack(requests, accepted)
            refused = self._refused_values(requests, accepted, stacked)
            if refused:
                for number, refusal in refused.items():
                    outcomes[number] = refusal
                accepted = [number for number in accepted if number not in refused]
                stacked = self._stack(requests, accepted) if accepted else {}
        self.stats.refused += len(requests) - len(accepted)
        if accepted:
            sizes = [len(requests[number][self._contract.inputs[0].name]) for number in accepted]
            if self._prepare is None:
                columns = Columns(sum(sizes), stacked, self._planner.pads)
                answers = self._run(sizes, columns)
            else:
                answers = self._prepare_and_run([requests[number] for number in accepted], sizes, self._prepare)
            for number, answer in zip(accepted, answers, strict=True):
                outcomes[number] = answer
        return cast(list[Outcome], outcomes)

    def _stack(self, requests: Sequence[Request], accepted: Sequence[int]) -> dict[str, Array | list[Array]]:
        names = [spec.name for spec in self._contract.inputs if self._prepare is None or spec.dtype.kind != "O"]
        return {name: stack_requests([requests[number][name] for number in accepted]) for name in names}

    def _refused_values(
        self, requests: Sequence[Request], accepted: Sequence[int], stacked: Mapping[str, Array | list[Array]]
    ) -> dict[int, Refusal]:
        suspects: set[int] = set()
        for name, column in stacked.items():
            if not isinstance(column, np.ndarray):
                suspects.update(n for n in accepted if not self._guard.values_ok(name, requests[n][name]))
            elif not self._guard.values_ok(name, column):
                owners = np.repeat(accepted, [len(requests[number][name]) for number in accepted])
                suspects.update(owners[self._guard.suspect_rows(name, column)].tolist())
        refusals = {number: self._guard.check_values(requests[number]) for number in suspects}
        return {number: refusal for number, refusal in refusals.items() if refusal}

    def _prepare_and_run(self, requests: Sequence[Request], sizes: Sequence[int], prepare: Prepare) -> list[Outcome]:
        prepared = self._prepared(requests, prepare)
        outcomes: list[Outcome | None] = [None] * len(requests)
        ready: list[int] = []
        rows: list[PreparedRow] = []
        for number, (item, size) in enumerate(zip(prepared, sizes, strict=True)):
            if isinstance(item, Refusal):
                outcomes[number] = item
            elif len(item) != size or not all(map(self._is_row, item)):
                outcomes[number] = self._failure(
                    RunFailed(f"of {size} rows the preparation made {[_described(row) for row in item]}")
                )
                self.stats.failed += 1
            else:
                ready.append(number)
                rows += item
        self.stats.refused += sum(isinstance(item, Refusal) for item in prepared)
        if ready:
            cells = {name: [row[name] for row in rows] for name in self._prepared_names}
            answers = self._run([sizes[number] for number in ready], Columns(len(rows), cells, self._planner.pads))
            for number, answer in zip(ready, answers, strict=True):
                outcomes[number] = answer
        return cast(list[Outcome], outcomes)

    def _is_row(self, row: PreparedRow) -> bool:
        return all(
            isinstance(row.get(name), np.ndarray) and (name not in self._planner.pads or row[name].ndim > 0)
            for name in self._prepared_names
        )

    def _prepared(self, requests: Sequence[Request], prepare: Prepare) -> Sequence[Sequence[PreparedRow] | Refusal]:
        try:
            return prepare(requests)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a panic inside a Rust extension (tokenizers) is no Exception
            if len(requests) == 1:
                incident = self._new_incident()
                detail = traceback.format_exc()[-_LOG_LIMIT:]
                self._log(f"incident {incident}: preparing the input of a request failed\n{detail}")
                text = f"the input could not be prepared for the model (incident {incident})"
                return [Refusal(Reason.UNPREPARED, text)]
        return [alone for request in requests for alone in self._prepared([request], prepare)]

    def _run(self, sizes: Sequence[int], columns: Columns) -> list[Outcome]:
        """The outcome of each request; request k owns the ``sizes[k]`` rows after those of the requests before it."""
        lengths = columns.lengths
        placed: list[tuple[RowIds, Tensors]] = []
        failures: dict[int, Failure | Refusal] = {}
        owners = _Owners(sizes)

        def keep(rows: RowIds) -> RowIds:
            return rows[~np.isin(owners.of(rows), list(failures))] if failures else rows

        for planned in self._planner.plan(columns):
            runs_before = self.stats.runs
            for rows, result in bisect(planned, lambda part: self._run_once(columns, lengths, part), keep):
                if isinstance(result, RunFailed):
                    failure = self._failure(result)
                    if isinstance(failure, Outage):
                        # No run would fare better: whoever has no answer yet gets this one, and nothing more is run.
                        rows = np.setdiff1d(columns.everyone, [row for ids, _ in placed for row in ids])
                    failures = {**dict.fromkeys(owners.of(rows).tolist(), failure), **failures}
                else:
                    placed.append((rows, result))
                    if self._valid is not None:
                        failures |= refusals_for(rows[~valid_rows(self._valid, result, len(rows))], sizes)
            self.stats.extra_runs += max(0, self.stats.runs - runs_before - 1)
        self.stats.rows += columns.rows
        return self._deal(
            sizes, Scatter(self._outputs, columns.everyone, placed, self._planner.trim, lengths), failures
        )

    def _deal(self, sizes: Sequence[int], scatter: Scatter, failures: Mapping[int, Failure | Refusal]) -> list[Outcome]:
        refused = sum(isinstance(failure, Refusal) for failure in failures.values())
        self.stats.refused += refused
        self.stats.failed += len(failures) - refused
        if not failures:
            try:
                return [Answer(outputs) for outputs in scatter.all(sizes)]
            except RunFailed:
                # Of a request whose rows have no common shape; which one shows when each is looked at.
                pass
        outcomes: list[Outcome] = []
        first = 0
        for position, size in enumerate(sizes):
            if position in failures:
                outcomes.append(failures[position])
            else:
                try:
                    outcomes.append(Answer(scatter.outputs(first, size)))
                except RunFailed as failed:
                    outcomes.append(self._failure(failed))
                    self.stats.failed += 1
            first += size
        return outcomes

    def _run_once(self, columns: Columns, lengths: npt.NDArray[np.int64] | None, rows: RowIds) -> Tensors:
        self.stats.runs += 1
        longest = None
        if lengths is not None:
            longest = int(lengths[rows].max())
            self.stats.padding.real_tokens += int(lengths[rows].sum())
            self.stats.padding.padded_tokens += len(rows) * longest
        started = time.perf_counter_ns()
        try:
            outputs = self._run_rows(columns.take(rows))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # SystemExit and panics of extensions too: on their way out of the backend they would fail every neighbour.
            raise RunFailed("the model function raised", hopeless=isinstance(error, Unavailable)) from error
        finally:
            self.stats.model_us += (time.perf_counter_ns() - started) / 1_000
        for spec in self._contract.outputs:
            check_output(spec, outputs, len(rows), longest if spec.name in self._planner.trim else None)
        if self._valid is not None:
            valid_rows(self._valid, outputs, len(rows))
        return outputs

    def _failure(self, failed: RunFailed) -> Failure:
        incident = self._new_incident()
        detail = "".join(traceback.format_exception(failed.__cause__)) if failed.__cause__ else ""
        self._log(f"incident {incident}: {failed}\n{detail[-_LOG_LIMIT:]}".rstrip())
        cause = failed.__cause__
        return Outage(incident, str(cause)) if isinstance(cause, Unavailable) else Failure(incident)


def _described(row: PreparedRow) -> dict[str, object]:
    return {name: getattr(array, "shape", type(array)) for name, array in row.items()}


class _Owners:
    """Which request a row belongs to. Worked out when the first run fails, which is rare."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._owners: RowIds | None = None

    def of(self, rows: RowIds) -> RowIds:
        if self._owners is None:
            self._owners = np.repeat(np.arange(len(self._sizes)), self._sizes)
        return self._owners[rows]
