"""`cdc`: runs a verb; an error becomes one line on standard error and the exit code of its class."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO, cast

import typer

from cdc.diskspace import FULL, MAKE_ROOM, described
from cdc.errors import ConfigError, HeadwaterError
from cdc.terminal import visible

INTERRUPTED: Final = 130
UMASK_VARIABLE: Final = "HEADWATER_UMASK"
USAGE: Final = 2
_MISPLACED: Final = frozenset((errno.ENOTDIR, errno.EISDIR, errno.EROFS))
"""The error numbers of a place in which nothing of ours can be: a file where a folder should be, a disk that takes no writes."""
_USAGE_ERROR: Final = cast(type[Exception], typer.BadParameter.__mro__[1])
"""Typer carries its own copy of click and does not export this class by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 done, 1 a check failed, 2 usage or configuration, 3 timeout, 4 a stop state,
    130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    before = os.umask(0o077)
    _open_closed()
    try:
        _say_all()
        os.umask(_umask())
        _refuse_no_text(given)
        from cdc.commands.app import app

        code = app(args=hoisted(given), prog_name="cdc", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        return INTERRUPTED
    except HeadwaterError as error:
        if debug:
            # Without its chain: a driver's own message may quote rows or secrets, ours never does.
            traceback.print_tb(error.__traceback__)
            sys.stderr.write(f"{type(error).__name__}: {visible(str(error))}\n")
        for problem in getattr(error, "problems", (error,)):
            _complain(problem.line())
        return error.exit_code
    except _USAGE_ERROR as error:
        _complain(f"{_first_line(error)} → {_command_path(error)} --help")
        return USAGE
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError) and _reader_left():
            return 0  # typer's own answer is 1; nobody reads what we would print
        raise
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left; there is nobody to tell
        return 0
    except Exception as error:
        if debug:
            traceback.print_tb(error.__traceback__)
        if isinstance(error, PermissionError) and error.filename is not None:
            _complain(f"{error.filename}: permission denied → run this as the account of cdc run, whose files are private")
            return 1
        if isinstance(error, OSError) and error.errno in FULL:
            _complain(f"{described(error)} → {MAKE_ROOM}")
            return 1
        if isinstance(error, OSError) and error.errno in _MISPLACED and isinstance(error.filename, str):
            _complain(
                f"{error.filename}: {os.strerror(error.errno).lower()} → see what is there; cdc doctor looks at the folders of cdc.toml"
            )
            return 1
        frame = traceback.extract_tb(error.__traceback__)[-1]
        _complain(
            f"unexpected {type(error).__name__} at {frame.name} in {Path(frame.filename).name}:{frame.lineno} → --debug shows the way there"
        )
        return 1
    finally:
        os.umask(before)
        _leave_unwritten()


def _open_closed() -> None:
    """A standard stream that whoever starts us has closed leads nowhere from now on; else the next file to be opened would be in its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()


def _reader_left() -> bool:
    """Whether nobody reads our standard output any longer."""
    found = select.poll()
    found.register(1, select.POLLOUT)
    return any(state & select.POLLERR for _, state in found.poll(0))


def _leave_unwritten() -> None:
    """What standard error has not taken, it will not take at the interpreter's end either, which would then have an exit code of its own."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _say_all() -> None:
    """A letter that the terminal's encoding does not have is written as its number: no line is lost for an arrow or for a table's name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse_no_text(arguments: Sequence[str]) -> None:
    """Bytes that are no letters in the terminal's encoding are in no value, no name and no statement, and some libraries raise on them.

    Raises ConfigError, which shows no argument: it may be a row's value.
    """
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"argument {number} has bytes that are not UTF-8", hint="give it in that encoding") from None


def _umask() -> int:
    """The umask for all that we write, and for what we start: rows are in it, so nobody else may read it unless HEADWATER_UMASK says so.

    The log and run_dir stay closed all the same (``cdc.folders``); it is for a warehouse that another account reads.
    """
    given = os.environ.get(UMASK_VARIABLE, "077")
    if re.fullmatch("0?[0-7]{3}", given) is None or int(given, 8) & 0o022 != 0o022:
        raise ConfigError(
            f"{UMASK_VARIABLE}={given} is not a umask that keeps others from writing",
            hint=f"{UMASK_VARIABLE}=027 lets a group read",
        )
    return int(given, 8)


def hoisted(arguments: Sequence[str]) -> list[str]:
    """The arguments with --config and --debug in front of the verb, wherever they stood."""
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument == "--config":
            front += [argument, *[value for value in (next(remaining, None),) if value is not None]]
        elif argument == "--debug" or argument.startswith("--config="):
            front.append(argument)
        else:
            rest.append(argument)
    return front + rest


def _complain(line: str) -> None:
    with suppress(OSError):  # the exit code says it, too
        sys.stderr.write(f"error: {visible(line)}\n")


def _first_line(error: BaseException) -> str:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(text.split()).replace("Value error, ", "").rstrip(".")


def _command_path(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "cdc"


if __name__ == "__main__":
    sys.exit(main())
