"""An engine in a process of its own.

A step of openvino-genai holds Python's interpreter lock for its whole length, some hundred milliseconds while it prefills.
In the host's own process nobody could be refused, cancelled or sent a token meanwhile. So the engine steps in a child, and
the host's threads wait for it without the lock. It costs a message each way a step, some 0.1 ms.

The child lives as long as this end of the socket does: when the host is closed or killed, it reads the end of the stream
and goes; and as the kernel is told to kill it with its parent, it goes though it reads nothing any more.

An engine that is lost (its process has ended, or does not answer) is not mended: ``restart`` starts another one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from brim.engine.engine import EngineLimits, Sampling, Step
from brim.engine.openvino_precision import Precision
from brim.engine.patience import Patience
from brim.errors import BrimError, ModelFileError, ServerFailed

LOAD_LIMIT_S = 600.0
"""Longest wait for a model to be loaded."""
ANSWER_LIMIT_S = 30
"""Longest wait for a sequence to be taken or dropped, for which nothing is computed; and for a message to be read."""


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """What ``OpenVinoEngine`` is made from; see there."""

    model: str
    context_tokens: int
    kv_blocks: int
    chunk_tokens: int
    precision: Precision = "f32"
    threads: int = 0
    prefix_cache: bool = False


class EngineProcess:
    """``Engine``, elsewhere. One thread owns it, but for ``used_blocks`` and ``end``."""

    def __init__(self, arguments: EngineArguments, patience: Patience | None = None) -> None:
        """Start the child and wait until it has loaded the model. The calling thread has to live as long as the engine.

        Args:
            arguments: what the engine is made from.
            patience: how long a step may take.

        Raises:
            ModelFileError: it cannot load the model.
            ServerFailed: the child did not start, or took longer than ``LOAD_LIMIT_S``.
        """
        self._arguments = arguments
        self._patience = patience or Patience()
        self._ending = threading.Lock()
        self._ended = False
        self._used_blocks = 0
        self._limits = self._start()

    def _start(self) -> EngineLimits:
        ours, theirs = socket.socketpair()
        with ours, theirs, self._ending:
            if self._ended:
                raise ServerFailed("the engine has been ended", hint="load the model again")
            command = [interpreter(), "-m", "brim.engine.engine_worker", str(os.getpid()), str(theirs.fileno())]
            self._child = subprocess.Popen(
                [*command, json.dumps(asdict(self._arguments))],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            # A child that reads nothing any more must not hold up who writes.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", ANSWER_LIMIT_S, 0))
            self._line = Connection(ours.detach())
        try:
            limits: EngineLimits = self._answer(LOAD_LIMIT_S)
        except BaseException:
            self._put_away()
            raise
        return limits

    def restart(self) -> None:
        """End the child and start another one, which holds no sequence. The calling thread has to live as long as it.

        Raises:
            ModelFileError, ServerFailed: as when it was made; it may be tried again.
        """
        self._put_away()
        self._used_blocks = 0
        self._limits = self._start()

    @property
    def limits(self) -> EngineLimits:
        """What it can hold."""
        return self._limits

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._child.pid

    def add(self, sequence_id: int, tokens: Sequence[int], sampling: Sampling) -> None:
        """Queue a sequence; the next step begins its prefill.

        Raises:
            RuntimeError: the engine will not take it.
            ServerFailed: the child has gone.
        """
        self._ask("add", sequence_id, tuple(tokens), sampling)

    def cancel(self, sequence_id: int) -> None:
        """Drop a sequence. One that has finished or was never added is left alone.

        Raises:
            ServerFailed: the child has gone.
        """
        self._ask("cancel", sequence_id)

    def step(self) -> Step:
        """Run the model once over everything that was added.

        Raises:
            ServerFailed: the child has gone, or does not answer within what ``Patience`` grants.
        """
        step: Step = self._ask("step", limit_s=self._patience.limit_s(self._limits.step_tokens))
        self._patience.saw(step.took_us)
        self._used_blocks = step.used_blocks
        return step

    def used_blocks(self) -> int:
        """KV blocks that sequences held after the last step. Any thread may ask."""
        return self._used_blocks

    def end(self) -> None:
        """Kill the child for good; a step under way ends as lost. Any thread may, and the owner then calls ``close``."""
        with self._ending:
            self._ended = True
            self._child.kill()

    def close(self) -> None:
        """End the child and forget it. It is killed: it keeps nothing, and an engine takes seconds to put itself away."""
        self.end()
        self._put_away()

    def _put_away(self) -> None:
        self._line.close()
        self._child.kill()
        self._child.wait()

    def _ask(self, *message: Any, limit_s: float = ANSWER_LIMIT_S) -> Any:
        try:
            self._line.send(message)
        except OSError as error:
            raise self._lost(str(error)) from error
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Any:
        try:
            if not self._line.poll(limit_s):
                raise self._lost(f"no answer within {limit_s:g} s")
            answer = self._line.recv()
        except (EOFError, OSError) as error:
            raise self._lost("the line has ended") from error
        if isinstance(answer, Refused):
            raise answer.as_error()
        return answer

    def _lost(self, what: str) -> ServerFailed:
        code = self._child.poll()
        ended = "" if code is None else f"; it ended with {code}"
        return ServerFailed(
            f"the engine's process {self._child.pid} is lost: {what}{ended}", hint="the server's log tells why"
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """What the child answers instead, when it cannot do what was asked. ``hint`` is of a model that cannot be loaded."""

    message: str
    hint: str | None = None

    def as_error(self) -> Exception:
        """To be raised on this side."""
        return RuntimeError(self.message) if self.hint is None else ModelFileError(self.message, hint=self.hint)

    @classmethod
    def because(cls, error: Exception) -> Refused:
        """Of an error on the other side."""
        return cls(error.message, error.hint) if isinstance(error, BrimError) else cls(str(error))


def interpreter() -> str:
    """The Python that runs this, also where it is embedded (as in Triton's stub, whose ``sys.executable`` may be empty).

    Raises:
        ServerFailed: none is to be found.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if Path(sys.executable or "/").name.startswith("python"):
        return sys.executable
    here = Path(sys.prefix) / "bin" / name
    found = str(here) if here.is_file() else shutil.which(name) or shutil.which("python3")
    if found is None:
        raise ServerFailed(f"no {name} to run the engine with", hint=f"put {name} on the server's PATH")
    return found
