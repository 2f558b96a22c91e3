"""Code that somebody else wrote (a factory, a module's forward, a hook): whatever it does becomes one explained error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from brim.errors import BrimError

LONGEST_TOLD = 300
"""Characters of an exception's text that a message repeats."""


@contextmanager
def foreign(explain: Callable[[BaseException], Exception]) -> Iterator[None]:
    """Run foreign code in the block; what it raises, ``sys.exit()`` and ``BaseException`` too, becomes ``explain``'s error.

    Brim's own errors pass, and so does the wish to stop (``KeyboardInterrupt`` and what derives from it).
    """
    try:
        yield
    except (BrimError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise explain(error) from error


def told(error: BaseException) -> str:
    """Type and first line of an exception, also of one whose text cannot be had."""
    name = type(error).__name__
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # noqa: BLE001 - a foreign __str__
        return name
    if isinstance(error, SystemExit):
        return f"{name}: it called sys.exit({'' if error.code is None else repr(error.code)[:LONGEST_TOLD]})"
    return f"{name}: {lines[0][:LONGEST_TOLD]}" if lines else name
