"""What the operating system refuses, in words: a full disk, a missing right, a folder that is gone."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

from brim.cli.output import say
from brim.errors import BrimError, InputError, NoSpace

P = ParamSpec("P")
R = TypeVar("R")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REMEDIES = {
    errno.EACCES: "give this user the right to it, or work in a folder of your own",
    errno.EPERM: "give this user the right to it, or work in a folder of your own",
    errno.EROFS: "make the file system writable, or work in a checkout on another one",
    errno.ENOENT: "make it, or name another one",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away, or name another path",
    errno.EISDIR: "a folder stands where a file is needed: move it away, or name another path",
    errno.EEXIST: "move what is there away, or name another path",
    errno.ENOTEMPTY: "move what is there away, or name another path",
    errno.ENAMETOOLONG: "use a shorter name or path",
    errno.ELOOP: "a symbolic link leads to itself: mend or remove it",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "end what keeps so many files open on this machine",
    errno.ENOMEM: "free memory, or use a larger machine",
    errno.EAGAIN: "allow more processes (ulimit -u), or end some",
    errno.EIO: "the disk does not read or write this any more: look at the system's log",
}
"""By error number. What is not here is not the user's to mend, and stays a bug."""


def explained(error: OSError) -> BrimError | None:
    """The error in words; None when nobody but Brim's authors can do anything about it."""
    # A move names both ends, and the second is the one that a person knows.
    where = f"{error.filename2 or error.filename}: " if error.filename else ""
    if error.errno in FULL:
        return NoSpace(f"{where}{error.strerror}", hint="free some space; nothing was left half-written")
    if error.errno == errno.ENOENT and not error.filename:
        return InputError("the working directory is gone", hint="change to a folder that exists (cd)")
    remedy = REMEDIES.get(error.errno or 0)
    return InputError(f"{where}{error.strerror}", hint=remedy) if remedy else None


def explaining(command: Callable[P, R]) -> Callable[P, R]:
    """The command, with what the operating system refuses as an error that says what to do."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # torch and tritonserver end the process themselves when there is no working directory.
            Path.cwd()
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            # typer turns it into an exit code without a word.
            say("interrupted")
            raise
        except BrokenPipeError as error:
            # The reader has seen enough; what is still buffered must not fail once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except OSError as error:
            words = explained(error)
            if words is None:
                raise
            raise words from error
        except RuntimeError as error:
            # What Path.resolve() raises up to Python 3.12.
            if not str(error).startswith("Symlink loop"):
                raise
            raise InputError(str(error), hint=REMEDIES[errno.ELOOP]) from error

    return run
