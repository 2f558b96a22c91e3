"""The child behind ``brim.engine.engine_process``: ``python -m brim.engine.engine_worker PARENT FD ARGUMENTS``.

Reads one message, does what it says, answers; until the line ends.
"""

from __future__ import annotations

import json
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from brim.engine.engine_process import EngineArguments, Refused
from brim.parent import die_with_parent


def serve(line: Connection, arguments: EngineArguments) -> None:
    """Load the engine, send its limits, and do what comes until the other side goes."""
    # Late, so that an error of this import is an answer, too.
    from brim.engine.openvino_engine import OpenVinoEngine

    engine = OpenVinoEngine(
        Path(arguments.model),
        context_tokens=arguments.context_tokens,
        kv_blocks=arguments.kv_blocks,
        chunk_tokens=arguments.chunk_tokens,
        precision=arguments.precision,
        threads=arguments.threads,
        prefix_cache=arguments.prefix_cache,
    )
    line.send(engine.limits)
    actions: dict[str, Any] = {"add": engine.add, "cancel": engine.cancel, "step": engine.step}
    while True:
        name, *given = line.recv()
        answer = None
        try:
            answer = actions[name](*given)
        except Exception as error:
            if name == "step":
                raise
            answer = Refused.because(error)
        line.send(answer)


def main() -> None:
    """End when the line or the parent does. Ctrl-C goes to the whole group, and is the server's to act on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # At the end of the line it goes by itself; this is for one that hangs and reads nothing.
    die_with_parent(int(sys.argv[1]), signal.SIGKILL)()
    line = Connection(int(sys.argv[2]))
    try:
        serve(line, EngineArguments(**json.loads(sys.argv[3])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        line.send(Refused.because(error))
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
