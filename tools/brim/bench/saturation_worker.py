"""One process of ``saturation_offline``: loads the model that it is sent, then runs passes whenever it is asked."""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic_ns

from brim.bench.saturation_offline import Done, Loop
from brim.errors import BrimError
from brim.server.embedded import die_with_parent


def main() -> None:
    """Serve one connection, whose descriptor is the second argument, until the other end is closed."""
    die_with_parent(int(sys.argv[1]))()
    with Connection(int(sys.argv[2])) as connection, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        loop: Loop = connection.recv()
        try:
            one_pass = loop()
        except BrimError as error:
            connection.send(f"{error.message} (hint: {error.hint})")
            return
        connection.send(Done(0, 0, 0))
        while True:
            number, least_us = connection.recv()
            rows, began_ns = 0, monotonic_ns()
            while True:
                rows += one_pass(number)
                ended_ns = monotonic_ns()
                if ended_ns - began_ns >= least_us * 1_000:
                    break
            connection.send(Done(rows, began_ns, ended_ns))


if __name__ == "__main__":
    main()
