"""A fleet that is looked after while something else is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from brim.errors import BrimError
from brim.fleet.fleet import Fleet


@contextmanager
def attended(fleet: Fleet, every_s: float = 0.1) -> Iterator[None]:
    """``tick`` from a thread of its own for as long as the block lasts, for who has something else to do meanwhile.

    Raises:
        ServerFailed: at the end of the block, when every replica was given up.
    """
    over, failed = threading.Event(), list[BrimError]()

    def look() -> None:
        while not failed and not over.wait(every_s):
            try:
                fleet.tick()
            except BrimError as error:
                failed.append(error)

    thread = threading.Thread(target=look, name="brim-fleet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for error in failed:
        raise error
