"""One ONNX Runtime session on the CPU, and runs that end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime

RUN_LIMIT_S = 120.0
"""A run of at most ``batch_limit`` rows that takes longer than this is ended and counts as failed."""

ENDING_LIMIT_S = 30.0
"""ONNX Runtime looks between two operators whether it is to end; one operator takes no longer than this."""

_SILENT = 4

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
"""One array an input, all with the same number of rows."""


class RunFailed(Exception):
    """ONNX Runtime refused or failed an execution; ``str()`` is its reason on one line."""


class RunTooLong(RunFailed):
    """An execution was ended because it took longer than the limit."""


class LoadFailed(Exception):
    """ONNX Runtime cannot load the model; ``str()`` is its reason on one line."""


class Runs(Protocol):
    """What the gates ask of a loaded model, whatever runs it."""

    def run(self, feed: Mapping[str, Array]) -> Feed:
        """Every output by name.

        Raises:
            RunFailed: it failed.
        """
        ...


class Session:
    """A model loaded in ONNX Runtime. Executions are ended after ``limit_s`` seconds."""

    def __init__(self, path: Path, *, limit_s: float = RUN_LIMIT_S) -> None:
        """Load the model at ``path``, with the graph optimisations that serving uses.

        Raises:
            LoadFailed: ONNX Runtime does not accept the file.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._limit_s = limit_s
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise LoadFailed(_one_line(error, path)) from error
        self._path = path
        self.output_names: Sequence[str] = [output.name for output in self._session.get_outputs()]

    def run(self, feed: Mapping[str, Array]) -> Feed:
        """Every output by name.

        The execution has a thread of its own, so that Ctrl-C ends it at once instead of after it.

        Raises:
            RunTooLong: it took longer than the limit.
            RunFailed: it failed.
        """
        run_options = onnxruntime.RunOptions()
        run_options.log_severity_level = _SILENT
        answers: list[Array] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                answers.extend(self._session.run(None, dict(feed), run_options))
            except Exception as error:  # noqa: BLE001 - carried over to the waiting thread
                failed.append(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            worker.join(self._limit_s)
        finally:
            late = worker.is_alive()
            run_options.terminate = True
            worker.join(ENDING_LIMIT_S)
        if late:
            raise RunTooLong(f"no answer within {self._limit_s:g} s")
        if failed:
            raise RunFailed(_one_line(failed[0], self._path)) from failed[0]
        return {name: np.asarray(answer) for name, answer in zip(self.output_names, answers, strict=True)}


def _one_line(error: Exception, path: Path) -> str:
    text = " ".join(str(error).split())
    return text.replace(str(path.parent) + "/", "").removeprefix("[ONNXRuntimeError] : ")[:600]
