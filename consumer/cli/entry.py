"""Entry: the tree of commands, and what every error looks like: one line on stderr with a code, never a traceback."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO, get_args

import typer

from consumer.cli import INTERRUPTED
from consumer.cli.lean import structlog
from consumer.cli.outline import outline
from consumer.cli.tree import tree, trunk
from consumer.document import printable
from consumer.errors import ConsumerError, DatabaseMissing, OutputUnwritable, SettingsError, Terminated, UsageError
from consumer.telemetry.logs import configure_logging, logs_settled

FAILED = 1
BAD_SETTINGS = 2
UNKNOWN = 3
"""Of `status`, which says by 1 and 2 that things are degraded or stuck (contract, Commands)."""
TERMINATED = 143
LEAVE_S = 5.0


def main() -> None:
    """Run the command that was called, and exit with its code (contract, Commands)."""
    _open_streams()
    _heed_sigterm()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        _emptied(stream)
    logs_settled()
    _leave_soon(code)
    sys.exit(code)


def _leave_soon(code: int) -> None:
    """Everything is done and closed. Python waits for every thread before it ends: for one that a handler left hanging
    for ever, and nobody would start the role anew."""

    def leave() -> None:
        time.sleep(LEAVE_S)
        os._exit(code)

    threading.Thread(target=leave, daemon=True, name="leave").start()


def _heed_sigterm() -> None:
    """For process 1, as which a container starts a role, the kernel throws a signal away that it has no handler for:
    who stopped a role before its event loop listened waited in vain, for the whole grace. Nothing is begun yet."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))


def _open_streams() -> None:
    """Who is started without one of the three streams has it to nowhere: else the first file that is opened would take
    its place, and the event loop ends the process when it closes that."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def run(arguments: list[str]) -> int:
    """The exit code of a call: 0 done, 1 failed, 2 bad settings or usage, or a database that was never made; 130, 143
    ended by SIGINT, SIGTERM. A `status` that could not look has found nothing: 3."""
    configure_logging(_early_level(), one_shot=True)
    try:
        _require_usable(arguments)
        result = _tree(arguments)(arguments, standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a traceback is for the log, a user gets one line
        code = _told(error)
        return UNKNOWN if code in (FAILED, BAD_SETTINGS) and arguments[:1] == ["status"] else code
    return result if isinstance(result, int) else 0


def _require_usable(arguments: list[str]) -> None:
    """Raises UsageError for words that are no text, and where no relative path leads anywhere: that of the ledger may
    be one."""
    if any("\ud800" <= letter <= "\udfff" for argument in arguments for letter in argument):
        raise UsageError("an argument is not UTF-8")
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not loaded
    except OSError as error:
        raise UsageError("the current folder was removed; change to one that is there") from error


def _told(error: BaseException) -> int:
    """Say what a command ended with; its exit code."""
    match error:
        case typer.TyperException():
            return _misused(error)
        case SettingsError():
            for problem in error.problems:
                _say(f"error[{error.code}]: {problem}")
            return BAD_SETTINGS
        case UsageError() | DatabaseMissing() | Terminated():
            _say(error.line())
            return TERMINATED if isinstance(error, Terminated) else BAD_SETTINGS
        case ConsumerError():
            _say(_with_cure(error))
            return FAILED
    structlog.get_logger(__name__).debug("command_broke", exc_info=error)
    if isinstance(error, OSError) and _is_of_help(error):
        _say(OutputUnwritable(reason=error.strerror).line())
    elif (known := _known(error)) is not None:
        _say(_with_cure(known))
    else:
        _say(f"error[internal]: {_named(error)} (run with CONSUMER_LOG_LEVEL=debug to see where)")
    return FAILED


def _with_cure(error: ConsumerError) -> str:
    """The line of an error, and what mends it where the table of causes knows that."""
    from consumer.causes import cure_of

    cure = cure_of(error.code)
    return f"{error.line()}; {cure}" if cure else error.line()


def _known(error: BaseException) -> ConsumerError | None:
    """What a database or the system said that nobody foresaw, by its own code: that is no fault of ours."""
    from consumer.causes import of_database, of_system, refused

    return of_system(error) or of_database(error) or refused(error)


def _named(error: BaseException) -> str:
    """The kind of an error; of a group, the kinds in it."""
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return f"{name} of {', '.join(_named(one) for one in error.exceptions)}"
    return name


def _tree(arguments: list[str]) -> typer.Typer:
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a fifth of the start
    try:
        return outline(trunk()) if arguments in ([], ["--help"]) else tree(*arguments[:2])
    finally:
        gc.freeze()  # it stays for as long as the command runs: no later look goes through it
        gc.enable()


def _early_level() -> str:
    """The level of the log until the settings are read: a failure before that is no traceback for a user either."""
    wanted = os.environ.get("CONSUMER_LOG_LEVEL", "").lower()
    if not wanted:
        return "info"  # the usual case imports no settings for it
    from consumer.settings.fields import LogLevel

    return wanted if wanted in get_args(LogLevel) else "info"


def _misused(error: typer.TyperException) -> int:
    """Say what is wrong with the call; a command without its subcommand shows its help."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        with suppress(OSError):  # who called is told by the exit code
            typer.echo(message)
    else:
        _say(f"error[usage]: {' '.join(message.split())}{_behind_dashes(error)}")
    return BAD_SETTINGS


def _behind_dashes(error: typer.TyperException) -> str:
    """An id may begin with a dash."""
    is_id = type(error).__name__ == "NoSuchOption" and not getattr(error, "option_name", "--").startswith("--")
    return " An id that begins with a dash comes last, behind `--`: consumer find -- -ID" if is_id else ""


def _say(line: str) -> None:
    if not logs_settled():  # it would wait for ever for who reads it, and the end of the process with it
        return
    with suppress(OSError):  # who called is told by the exit code
        typer.echo(printable(line), err=True)


def _is_of_help(error: OSError) -> bool:
    """Whether a help text could not be written: what a command says is no such text, and tells it by itself."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_code is typer.echo.__code__


def _emptied(stream: TextIO) -> None:
    """What cannot be written even now is given up: Python would try once more, and change the exit code."""
    from consumer.cli.output import to_nowhere

    try:
        stream.flush()
    except OSError:
        to_nowhere(stream)
