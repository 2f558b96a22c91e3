"""The commands put together, and exit codes: 0 yes, 1 no, 2 wrong input, 3 could not tell, 70 our bug, 130 interrupted."""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import typer

from brim import __version__
from brim.cli.output import put, put_error, say
from brim.errors import BrimError, InputError

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def _show_version(value: bool) -> None:
    if value:
        put(f"brim {__version__}")
        raise typer.Exit


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
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "brim")
    try:
        app = _application(command)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    sys.exit(_run(app, command))


def _application(command: str) -> typer.Typer:
    """The application with the command that is asked for. With all of them, which takes seconds to import, where the
    answer is about all: a list of them, or that there is no such command."""
    from brim.cli import commands

    app = typer.Typer(
        name="brim",
        help="Fill every Triton batch to the brim, spill nobody's request.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    if command in commands.NAMES:
        names: tuple[str, ...] = (command,)
    else:
        names = () if sys.argv[1:] == ["--version"] else commands.NAMES
    for name in names:
        app.command()(commands.find_command(name))
    return app


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(app: typer.Typer, command: str) -> int:
    as_json = "--json" in sys.argv[1:]
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
