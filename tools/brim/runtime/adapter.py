"""Any ONNX model in Triton's python backend: requests in, responses out.

A model's ``model.py`` hands over what it got from Triton, and ``triton_python_backend_utils`` itself, which exists only
inside the server (``brim.runtime.template``). The settings are those of ``brim.runtime.settings``. A graph that wants
token ids where the configuration has one TYPE_STRING input is given a tokenizer (``brim.runtime.text``).
"""

from __future__ import annotations

import importlib
import json
import secrets
import traceback
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, Protocol, cast

from brim.errors import BrimError, InputError
from brim.runtime.batch import BatchRuntime, Planner, RuntimeStats
from brim.runtime.binding import graph_names, guard_rules, read_contract
from brim.runtime.contract import Array, Request
from brim.runtime.front import NativeModel
from brim.runtime.guard import Guard
from brim.runtime.outcome import Answer, Failure, Outage, Outcome, Refusal
from brim.runtime.padding import CPU_COST, GPU_COST, PaddingCost
from brim.runtime.preparation import Preparation, Surroundings
from brim.runtime.record import RECORD_FILE, read_graph, read_record
from brim.runtime.session import CPU_PROVIDER, Device, OnnxSession, cores
from brim.runtime.settings import Settings, read_settings
from brim.runtime.text import FIELDS, Tokenisation
from brim.runtime.token_counters import TokenCounters

CANCEL_CHECK_PAYS_US = 500
"""Model time of a row from which callers are asked for. ``is_cancelled()`` is a round trip to the server process, 42 us a
request on 24.10; Triton itself drops a cancelled request only until it has been put into a batch."""


class PythonBackend(Protocol):
    """The part of ``triton_python_backend_utils`` that is used here."""

    Tensor: Any
    InferenceResponse: Any
    InferenceRequest: Any
    PreferredMemory: Any
    TRITONSERVER_MEMORY_CPU: Any
    TritonError: Any
    Logger: Any
    MetricFamily: Any


class OnnxModel:
    """One instance of one model."""

    def __init__(self, args: Mapping[str, str], backend: PythonBackend) -> None:
        """Load the model that ``initialize(args)`` is about.

        Raises:
            RuntimeError: whatever stands in the way, as one text with its remedy: Triton shows no more than that.
        """
        self._backend = backend
        try:
            self._load(args)
        except BrimError as error:
            raise RuntimeError(f"{error.message}. hint: {error.hint}" if error.hint else error.message) from error

    def _load(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._name = str(config["name"])
        folder = Path(args["model_repository"]) / args["model_version"]
        remedy = f"run `brim export {self._name}`, which writes it"
        settings = read_settings(config)
        contract = read_contract(config)
        instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", [])) or 1
        device = Device(
            gpu=int(args.get("model_instance_device_id", "0")) if args.get("model_instance_kind") == "GPU" else None,
            threads=settings.threads or max(1, cores() // instances),
        )
        session: OnnxSession | NativeModel
        if settings.native is None:
            path = folder / settings.model_file
            session = OnnxSession(path, device, remedy=remedy, warn=self._warn)
        else:
            path = folder / RECORD_FILE
            session = NativeModel(settings.native, read_graph(folder, remedy), self._backend, remedy=remedy)
        record = read_record(folder, remedy)
        preparation = _preparation(
            settings, Surroundings(folder, contract, tuple(session.inputs), settings.longest_tokens, record, remedy)
        )
        to_graph = {} if preparation else graph_names("input", contract.inputs, session.inputs, settings.inputs, path)
        from_graph = graph_names("output", contract.outputs, session.outputs, settings.outputs, path)
        pads = dict(preparation.pads) if preparation else settings.pads
        strange = sorted(set(pads) - set(session.inputs))
        if strange:
            raise InputError(
                f"pads names {strange}, the inputs of {path} are {sorted(session.inputs)}",
                hint="use the graph's own input names in the parameter `brim` of config.pbtxt",
            )
        valid = settings.native.valid if settings.native else None
        if valid in from_graph:
            raise InputError(
                f"native.valid is {valid}, which is an output of the configuration, too",
                hint="`brim config --write` chooses a name that is free",
            )
        # Under its own name, the mask is one more output of every run.
        kept = from_graph if valid is None else {**from_graph, valid: valid}
        wanted = list(dict.fromkeys(kept.values()))

        def run_rows(inputs: dict[str, Array]) -> dict[str, Array]:
            results = session.run(wanted, {to_graph.get(name, name): array for name, array in inputs.items()})
            return {name: results[graph_name] for name, graph_name in kept.items()}

        padded_inputs = {name: pads[graph] for name, graph in to_graph.items() if graph in pads}
        trim = {spec.name for spec in contract.outputs if pads and spec.shape[:1] == (-1,)}
        if preparation and trim:
            raise InputError(
                f"model {self._name}: outputs {sorted(trim)} have a variable size, which differs between the rows of one request",
                hint="send one row a request, or give the output a fixed size (pool it in the graph)",
            )
        self._runtime = BatchRuntime(
            contract,
            Guard(contract, guard_rules(contract, settings, to_graph, record), aligned=sorted(padded_inputs)),
            run_rows,
            Planner(
                contract.max_rows,
                cost=_cost(settings, session.provider) if pads else None,
                pads=pads if preparation else padded_inputs,
                trim=frozenset(trim),
            ),
            prepare=preparation,
            prepared_names=tuple(session.inputs),
            valid=valid,
            log=self._error,
        )
        self._check_cancelled = settings.check_cancelled
        self._counters = self._token_counters(args["model_version"]) if pads else None
        where = f"{path.name} on {session.provider}, {device.threads} threads"
        self._info(f"{where if settings.native is None else session.provider}, at most {contract.max_rows} rows a run")

    @property
    def stats(self) -> RuntimeStats:
        """What was done since the start."""
        return self._runtime.stats

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One ``InferenceResponse`` for each request, in order. Raises nothing: that would fail every request."""
        try:
            if self._asks_for_cancelled():
                cancelled = [request.is_cancelled() for request in requests]
                if any(cancelled):
                    return self._execute_some(requests, cancelled)
            return self._pack(self._run(requests))
        except Exception:  # noqa: BLE001 - the last line of defence: a fault of ours must not put a traceback into answers
            return [self._response(self._unexpected()) for _ in requests]

    def _run(self, requests: Sequence[Any]) -> list[Outcome]:
        outcomes = self._runtime.execute(self._read(requests))
        if self._counters is not None:
            try:
                self._counters.update(self.stats.padding)
            except Exception:  # noqa: BLE001 - answers do not depend on metrics
                self._counters = None
                self._warn(f"no more counts of tokens: {traceback.format_exc()}")
        return outcomes

    def _token_counters(self, version: str) -> TokenCounters | None:
        try:
            return TokenCounters(self._backend, self._name, version)
        except Exception:  # noqa: BLE001 - a server without metrics serves all the same
            self._warn(f"tokens are not counted on the metrics page: {traceback.format_exc()}")
            return None

    def _read(self, requests: Sequence[Any]) -> list[Request]:
        return [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]

    def _pack(self, outcomes: Sequence[Outcome]) -> list[Any]:
        respond, tensor = self._backend.InferenceResponse, self._backend.Tensor
        try:
            return [
                respond(list(starmap(tensor, outcome.outputs.items())))
                if isinstance(outcome, Answer)
                else self._response(outcome)
                for outcome in outcomes
            ]
        except Exception:  # noqa: BLE001 - one answer that cannot be packed is not the neighbours' fault
            return [self._response(outcome) for outcome in outcomes]

    def _execute_some(self, requests: Sequence[Any], cancelled: Sequence[bool]) -> list[Any]:
        waiting = [request for request, gone in zip(requests, cancelled, strict=True) if not gone]
        responses = iter(self._pack(self._run(waiting)))
        return [self._cancelled() if gone else next(responses) for gone in cancelled]

    def _asks_for_cancelled(self) -> bool:
        if self._check_cancelled is not None:
            return self._check_cancelled
        return self.stats.rows > 0 and self.stats.model_us >= CANCEL_CHECK_PAYS_US * self.stats.rows

    def close(self) -> None:
        """Log what was done, and take the counters off the metrics page."""
        self._counters = None
        stats = self.stats
        self._info(
            f"{stats.requests} requests ({stats.refused} refused, {stats.failed} failed), {stats.rows} rows in "
            f"{stats.runs} runs, {stats.extra_runs} of them to find failing rows, padding {stats.padding.waste:.0%} of tokens"
        )

    def _response(self, outcome: Outcome) -> Any:
        backend = self._backend
        if isinstance(outcome, Answer):
            try:
                return backend.InferenceResponse(
                    [backend.Tensor(name, array) for name, array in outcome.outputs.items()]
                )
            except Exception:  # noqa: BLE001 - one answer that cannot be packed is not the neighbours' fault
                outcome = self._unexpected()
        error = backend.TritonError
        down = error.UNAVAILABLE if isinstance(outcome, Outage) else error.INTERNAL
        code = error.INVALID_ARG if isinstance(outcome, Refusal) else down
        return backend.InferenceResponse(error=error(str(outcome), code))

    def _cancelled(self) -> Any:
        error = self._backend.TritonError
        return self._backend.InferenceResponse(error=error("the caller cancelled the request", error.CANCELLED))

    def _unexpected(self) -> Failure:
        incident = secrets.token_hex(6)
        self._error(f"incident {incident}: {traceback.format_exc()}")
        return Failure(incident)

    def _info(self, text: str) -> None:
        self._backend.Logger.log_info(f"model {self._name}: {text}")

    def _warn(self, text: str) -> None:
        self._backend.Logger.log_warn(f"model {self._name}: {text}")

    def _error(self, text: str) -> None:
        self._backend.Logger.log_error(f"model {self._name}: {text}")


def _preparation(settings: Settings, around: Surroundings) -> Preparation | None:
    if settings.adapter is not None:
        module, _, name = settings.adapter.partition(":")
        try:
            make = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"the adapter {settings.adapter} cannot be imported: {error}",
                hint="write package.module:Class, and install the package where the server's Python finds it",
            ) from error
        return cast(Preparation, make(around))
    wants_tokens = bool(around.graph_inputs) and set(around.graph_inputs) <= FIELDS
    gives_text = any(spec.dtype.kind == "O" for spec in around.contract.inputs)
    return Tokenisation(around) if wants_tokens and gives_text else None


def _cost(settings: Settings, provider: str) -> PaddingCost:
    if settings.padding is not None:
        return PaddingCost(**settings.padding.model_dump())
    return CPU_COST if provider == CPU_PROVIDER else GPU_COST
