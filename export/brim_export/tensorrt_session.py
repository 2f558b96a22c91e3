"""A TensorRT engine as the gates ask it: Polygraphy's runner behind the interface of any loaded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from brim_export.foreign import told
from brim_export.session import Array, Feed, LoadFailed, RunFailed


class Runner(Protocol):
    """What is used of ``polygraphy.backend.trt.TrtRunner``, activated."""

    def infer(self, feed_dict: Mapping[str, Array]) -> Mapping[str, Array]:
        """Every output by name, in memory that the next call writes over. Raises what it likes."""
        ...


class TensorRtSession:
    """An engine that is on its GPU."""

    def __init__(self, runner: Runner) -> None:
        """Around an activated runner."""
        self._runner = runner

    def run(self, feed: Mapping[str, Array]) -> Feed:
        """Every output by name.

        Raises:
            RunFailed: the engine refused the shapes, or failed.
        """
        given = {name: np.ascontiguousarray(values) for name, values in feed.items()}
        try:
            return {name: np.array(values) for name, values in self._runner.infer(given).items()}
        except Exception as error:
            raise RunFailed(told(error)) from error


@contextmanager
def opened(plan: Path) -> Iterator[TensorRtSession]:
    """The engine in ``plan``, on the GPU until the block ends.

    Raises:
        LoadFailed: TensorRT does not load it: it was built for another GPU or version, or is no engine.
    """
    from polygraphy.backend.common import BytesFromPath
    from polygraphy.backend.trt import EngineFromBytes, TrtRunner

    runner = TrtRunner(EngineFromBytes(BytesFromPath(str(plan))))
    try:
        runner.activate()
    except Exception as error:
        raise LoadFailed(told(error)) from error
    try:
        yield TensorRtSession(runner)
    finally:
        runner.deactivate()
