"""Keep what libraries print, log and warn about out of the user's terminal, but at hand for when something fails."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from typing import TextIO

_STDOUT, _STDERR = 1, 2
_NOISY = ("torch", "onnxscript", "onnx_ir", "onnx", "onnxruntime", "transformers")


@contextlib.contextmanager
def captured(log: io.StringIO) -> Iterator[None]:
    """Send stdout, stderr, warnings and the log records of the export libraries to ``log`` instead.

    What writes to the process's own stdout past Python goes to its stderr: stdout carries the answer only.
    """

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log.write(warnings.formatwarning(message, category, filename, lineno, line))

    handler = logging.StreamHandler(log)
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in _NOISY
    ]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
        with (
            _stdout_to_stderr(),
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            warnings.showwarning = show
            yield
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    try:
        kept = os.dup(_STDOUT)
    except OSError:
        # It is closed already.
        yield
        return
    try:
        with contextlib.suppress(OSError):
            os.dup2(_STDERR, _STDOUT)
        yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
