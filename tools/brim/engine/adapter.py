"""Triton's python backend around a host: requests in, pieces out. The decoupled model's ``model.py`` calls nothing else.

``triton_python_backend_utils`` exists only inside a stub, so it is handed in.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from brim.engine.end_file import when_told_to_end
from brim.engine.engine import Engine
from brim.engine.engine_process import EngineArguments, EngineProcess
from brim.engine.host import Host, Piece
from brim.engine.lifecycle import End, Reason
from brim.engine.metrics_page import MetricsPage
from brim.engine.request import RequestReader, Wanted
from brim.engine.scheduler import Scheduler
from brim.engine.settings import Settings, read_settings
from brim.engine.step_file import VARIABLE, StepFile, step_file
from brim.engine.step_log import StepLog
from brim.engine.tokenise import Tokenizer
from brim.errors import InputError, ModelFileError
from brim.parent import end_with_parent

MODEL_NAMES = ("model.gguf", "model")
"""What the export puts into the version folder: a GGUF file or an OpenVINO folder."""
LONGEST_ID = 64
"""Characters of a caller's request id that are kept."""
TRITONS_OWN = "triton_"
"""Parameters that begin so are Triton's own, and no sampling options."""


def clock_us() -> int:
    """Microseconds on a clock that never goes back."""
    return time.monotonic_ns() // 1_000


class OwnedEngine(Engine, Protocol):
    """An engine that can be lost, and that its owner can replace and end; see ``EngineProcess``."""

    def restart(self) -> None:
        """Replace it by one that holds nothing."""

    def end(self) -> None:
        """End it for good, from any thread."""

    def close(self) -> None:
        """End it, and forget it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can be served.

    Attributes:
        engine: runs it.
        tokens_of: text and the most tokens that are wanted of it -> tokens.
        table: bytes of every token, by number.
    """

    engine: OwnedEngine
    tokens_of: Callable[[str, int], list[int]]
    table: Sequence[bytes]


def load_openvino(folder: Path, settings: Settings) -> Loaded:
    """The model of a version folder, in openvino-genai's engine in a process of its own.

    Raises:
        ModelFileError: there is no model that can be loaded.
    """
    model = _model_path(folder)
    engine = EngineProcess(
        EngineArguments(
            str(model),
            context_tokens=settings.context_tokens,
            kv_blocks=settings.kv_blocks,
            chunk_tokens=settings.chunk_tokens,
            precision=settings.precision,
            threads=settings.threads,
            prefix_cache=settings.prefix_cache,
        )
    )
    tokenizer = Tokenizer.load(model)
    return Loaded(engine, lambda text, most: tokenizer.tokens_of(text, most=most), tokenizer.table)


class TextModel:
    """One instance of a language model."""

    def __init__(
        self,
        args: Mapping[str, str],
        backend: Any,
        load: Callable[[Path, Settings], Loaded] = load_openvino,
    ) -> None:
        """Load the model that lies in the version folder, and start serving.

        Args:
            args: what Triton hands to ``initialize``.
            backend: the module ``triton_python_backend_utils``.
            load: version folder and settings -> the model.

        Raises:
            InputError, ModelFileError: the settings are wrong, or there is no model that can be loaded.
        """
        self._backend, self._name = backend, args["model_name"]
        config = json.loads(args["model_config"])
        settings = read_settings(config)
        loaded = load(Path(args["model_repository"]) / args["model_version"], settings)
        self._engine = engine = loaded.engine
        self._reader = RequestReader(settings, engine.limits, loaded.tokens_of, max(map(len, loaded.table)))
        scheduler = Scheduler(engine, settings.policy, clock_us, step_log=self._step_log())
        page = self._page(scheduler, args["model_version"])
        self._host = Host(
            engine,
            scheduler,
            loaded.table,
            restart=engine.restart,
            end_engine=engine.end,
            on_step=page.publish if page else lambda: None,
            on_error=self._error,
        )
        self._numbers = itertools.count()
        end_with_parent(engine.end)
        when_told_to_end(lambda: self._host.close("the server is being stopped"))

    def execute(self, requests: Sequence[Any]) -> None:
        """Take every request, or refuse it at once. Answers come later, from another thread."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                read, wanted = self._read(request)
                if wanted.begin:
                    sender.send(self._backend.InferenceResponse([]))
                line = _TritonLine(self._backend, sender, wanted, len(read.tokens))
                self._host.submit(read, line, stream=wanted.stream, canary=wanted.canary)
            except InputError as error:
                self._refuse(sender, f"{error.message}. Hint: {error.hint}", self._backend.TritonError.INVALID_ARG)
            except Exception:  # noqa: BLE001 - the last line of defence: no traceback in an answer, no caller without one
                incident = secrets.token_hex(6)
                self._error(f"incident {incident}: {traceback.format_exc()}")
                self._refuse(
                    sender,
                    f"{End.FAILED.value}: internal error, incident {incident}",
                    self._backend.TritonError.INTERNAL,
                )

    def is_ready(self) -> bool:
        """Whether there is an engine to run requests."""
        return self._host.takes

    def close(self) -> None:
        """End what runs, and the engine."""
        self._host.close()
        self._engine.close()

    def _read(self, request: Any) -> Any:
        tensors = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        parameters = {
            key: value
            for key, value in json.loads(request.parameters() or "{}").items()
            if not key.startswith(TRITONS_OWN)
        }
        return self._reader.read(
            tensors,
            parameters,
            # Numbered, for callers' ids may repeat; theirs is behind it, so that they find themselves in the step log.
            request_id=f"{next(self._numbers)} {request.request_id()[:LONGEST_ID]}".rstrip(),
            now_us=clock_us(),
            timeout_us=request.timeout(),
        )

    def _refuse(self, sender: Any, text: str, code: Any) -> None:
        backend = self._backend
        sender.send(
            backend.InferenceResponse(error=backend.TritonError(text, code)),
            flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
        )

    def _step_log(self) -> StepLog:
        folder = os.environ.get(VARIABLE)
        if not folder:
            return StepLog()
        return StepLog(also=StepFile(step_file(Path(folder), self._name), self._error).add)

    def _page(self, scheduler: Scheduler, version: str) -> MetricsPage | None:
        try:
            return MetricsPage(self._backend, scheduler.metrics, self._name, version)
        except Exception:  # noqa: BLE001 - a server without metrics serves all the same
            self._error(f"nothing is counted on the metrics page: {traceback.format_exc()}")
            return None

    def _error(self, text: str) -> None:
        self._backend.Logger.log_error(f"model {self._name}: {text}")


class _TritonLine:
    """A caller behind Triton's response sender."""

    def __init__(self, backend: Any, sender: Any, wanted: Wanted, input_tokens: int) -> None:
        self._backend, self._sender, self._wanted, self._input_tokens = backend, sender, wanted, input_tokens

    def send(self, piece: Piece) -> None:
        """One response; the last one is final, and carries the error if there is one.

        Triton takes it whether the caller reads or not, and keeps what is not read: on 24.10 neither a gRPC stream whose
        window is full nor an HTTP connection that nobody reads held up anybody, and the server grew by about what it kept.
        So a request can make it keep its own text at most, ``max_tokens`` pieces.

        A request whose last response is missing keeps its caller waiting and the model from being unloaded, so a final one
        goes out whatever happens.
        """
        if piece.end is None:
            self._sender.send(self._response(piece))
            return
        final = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            self._sender.send(self._response(piece), flags=final)
        except Exception:
            self._sender.send(flags=final)
            raise

    def gone(self) -> bool:
        """Whether the caller has left, as far as Triton knows."""
        return bool(self._sender.is_cancelled())

    def _response(self, piece: Piece) -> Any:
        backend = self._backend
        if piece.end in (None, End.STOP, End.LENGTH):
            return backend.InferenceResponse(self._tensors(piece))
        return backend.InferenceResponse(error=backend.TritonError(_told(piece), _code(backend.TritonError, piece)))

    def _tensors(self, piece: Piece) -> list[Any]:
        tensor, wanted = self._backend.Tensor, self._wanted
        text = piece.text if wanted.stream else wanted.prefix + piece.text
        tensors = [tensor("text_output", np.array([text.encode()], np.object_))]
        if wanted.finish_reason:
            reason = "None" if piece.end is None else piece.end.value
            tensors.append(tensor("finish_reason", np.array([reason.encode()], np.object_)))
        if wanted.input_tokens:
            tensors.append(tensor("num_input_tokens", np.array([self._input_tokens], np.uint32)))
        if wanted.output_tokens:
            tensors.append(tensor("num_output_tokens", np.array([piece.tokens], np.uint32)))
        return tensors


def _told(piece: Piece) -> str:
    """The word that says why comes first, for whoever goes by it."""
    if piece.end is End.CANCELLED:
        return "the caller cancelled the request"
    return f"{piece.reason or piece.end}: {piece.message}"


def _code(error: Any, piece: Piece) -> Any:
    if piece.reason in (Reason.TOO_LONG_FOR_CONTEXT, Reason.TOO_LONG_FOR_CACHE):
        return error.INVALID_ARG
    if piece.end is End.CANCELLED:
        return error.CANCELLED
    if piece.reason is Reason.ENGINE_DOWN or (piece.end is End.FAILED and piece.reason is None):
        return error.INTERNAL
    return error.UNAVAILABLE


def _model_path(folder: Path) -> Path:
    for name in MODEL_NAMES:
        if (folder / name).exists():
            return folder / name
    raise ModelFileError(
        f"{folder} holds no {' and no '.join(MODEL_NAMES)}", hint=f"`brim export {folder.parent.name}` makes it"
    )
