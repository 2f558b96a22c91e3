"""The commands put together, and exit codes: 0 yes, 1 no, 2 wrong input, 3 could not tell, 70 our bug, 130 interrupted."""

from __future__ import annotations

import functools
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import typer

from brim import __version__
from brim.cli.output import put, put_error, say
from brim.errors import BrimError, InputError

app = typer.Typer(
    name="brim",
    help="Fill every Triton batch to the brim, spill nobody's request.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def _show_version(value: bool) -> None:
    if value:
        put(f"brim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Options before the command."""


def main() -> NoReturn:
    """Entry point: run one command and end with its exit code."""
    # SIGTERM unwinds like Ctrl-C, so that whatever was begun is cleaned up on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        _register_commands()
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    sys.exit(_run())


@functools.cache
def _register_commands() -> None:
    """Import the commands, which takes a moment, and add them to the application once a process."""
    from brim.cli import commands

    commands.register(app)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run() -> int:
    as_json = "--json" in sys.argv[1:]
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "brim")
    try:
        result = app(standalone_mode=False)
    except BrimError as error:
        put_error(command, error, as_json=as_json)
        return error.exit_code
    except typer.TyperException as error:
        hint = f"`brim {command} --help` shows what it takes" if command != "brim" else "`brim --help`"
        words = error.format_message() if hasattr(error, "format_message") else str(error)
        put_error(command, InputError(words, hint=hint), as_json=as_json)
        return InputError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - the outermost edge: whatever gets here is a bug of ours, and is reported as one
        return _bug(command, error, as_json)
    return result if isinstance(result, int) else 0


def _bug(command: str, error: Exception, as_json: bool) -> int:
    traceback.print_exc(file=sys.stderr)
    bug = BrimError(
        f"a bug in brim: {type(error).__name__}: {error}", hint="please report it with the lines above and your command"
    )
    bug.code = "bug"
    put_error(command, bug, as_json=as_json)
    return 70
