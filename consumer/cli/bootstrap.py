"""Bootstrap: how a command becomes a process: settings, logging, the event loop, signals."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import typer
import uvloop

from consumer import __version__
from consumer.cli.output import Output
from consumer.document import printable
from consumer.errors import ConsumerError, OutputUnwritable, Terminated, code_of
from consumer.ledger import Database
from consumer.ledger.engine.applied import lacks_nothing
from consumer.ledger.engine.database import LOCK_S
from consumer.ledger.engine.database_time import shared_time
from consumer.settings import Role, Settings, load_settings, settings_to_look
from consumer.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from consumer.app import App

T = TypeVar("T")

COLLECT_EVERY = 20_000

_log = structlog.get_logger(__name__)


def settings_for(role: Role) -> Settings:
    """The checked settings from the environment, with logging set up by them. Raises SettingsError."""
    settings = load_settings(os.environ, role)
    who: dict[str, str | int] = {"role": role.value, "pid": os.getpid(), "version": __version__}
    configure_logging(
        settings.log_level,
        settings.log_format,
        one_shot=role is Role.OPERATE,
        who=None if role is Role.OPERATE else who,
    )
    return settings


def looking() -> tuple[Settings, list[str]]:
    """The settings of a command that only looks, as far as they are usable, with what is wrong with the rest. Raises
    SettingsError when it is not known where the ledger is."""
    settings, problems = settings_to_look(os.environ)
    configure_logging(settings.log_level, settings.log_format, one_shot=True)
    return settings, problems


def settings_looking() -> Settings:
    """The same; what is wrong with the rest is said on stderr, a line each."""
    settings, problems = looking()
    for problem in problems:
        typer.echo(printable(f"warning[settings_invalid]: {problem}"), err=True)
    return settings


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to its end on uvloop. SIGTERM and SIGHUP cancel it as SIGINT does, so that it tidies up: a lease is given
    back at once (case B26). Raises Terminated then. A role asks for `stop_on_signals` instead."""
    heeding = _cancelled_by_signals(coroutine)
    whole = _leaving_threads(heeding)
    try:
        return uvloop.run(whole)
    finally:
        for one in (whole, heeding, coroutine):  # without a loop none has begun, and each would say so
            one.close()


async def _leaving_threads(coroutine: Coroutine[Any, Any, T]) -> T:
    """A loop waits at its end for the threads it was given, for a handler's that hangs for ever: it gets none to wait
    for. What they do is nobody's any more."""
    try:
        return await coroutine
    finally:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


async def _cancelled_by_signals(coroutine: Coroutine[Any, Any, T]) -> T:
    task, terminated = asyncio.current_task(), False
    if task is None or threading.current_thread() is not threading.main_thread():
        return await coroutine  # signals are the main thread's

    def terminate() -> None:
        nonlocal terminated
        if not terminated:  # a second one would cut what tidies up
            terminated = True
            task.cancel()

    for number in _ends():
        asyncio.get_running_loop().add_signal_handler(number, terminate)
    try:
        return await coroutine
    except asyncio.CancelledError as error:
        if terminated:
            raise Terminated from error
        raise


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM, SIGINT and SIGHUP set, if they are for this process, and not for one that it forked."""
    from consumer.runtime.forks import leave_forks_alone

    leave_forks_alone()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, *_ends()):
        loop.add_signal_handler(number, stop.set)
    return stop


def _ends() -> list[signal.Signals]:
    """What ends a process in good order, beside Ctrl-C: SIGHUP, too, which is a terminal that was closed, or a
    connection to it that broke. Under `nohup`, which ignores that, a process goes on."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, *hung_up]


async def end_by_input(process: asyncio.subprocess.Process, within_s: float) -> bool:
    """Close the input of a process that ends with it, and wait; False when it was killed at the limit."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return True


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()

    def ended() -> None:
        if not os.read(source, 4096):
            loop.remove_reader(source)
            stop.set()

    loop.add_reader(source, ended)


@asynccontextmanager
async def ledger(settings: Settings, *, whole: bool = False, lock_s: float = LOCK_S) -> AsyncIterator[Database]:
    """The ledger for a command that looks or repairs. Tables of a merchant's plugin that are not made yet keep nobody
    from looking: it is said on stderr; with `whole` they must be there. `lock_s`: see Database. Raises DatabaseMissing,
    LedgerUnavailable, SchemaOutdated."""
    database = Database(settings.database_url.get_secret_value(), pool_size=2, create=False, lock_s=lock_s)
    try:
        if not await lacks_nothing(database):
            await _look_closer(database, whole=whole)
        yield database
    finally:
        await database.stop()


def time_there() -> datetime:
    """The ledger's time, which all processes go by. Raises SettingsError, LedgerError."""
    settings, _ = looking()

    async def ask() -> datetime:
        database = Database(settings.database_url.get_secret_value(), pool_size=1, create=False)
        try:
            async with database.reading() as session:
                return await shared_time(session)
        finally:
            await database.stop()

    return run(ask())


async def _look_closer(database: Database, *, whole: bool) -> None:
    """By Alembic, which nobody needs who looks at a database that is as it should be."""
    from consumer.app.options import BUILT_IN
    from consumer.ledger.engine import schema

    if whole:
        await schema.require_current(database)
    for one in await schema.require_usable(database, BUILT_IN):
        typer.echo(f"warning[schema_outdated]: {one} was not run yet: run `consumer db upgrade`", err=True)


async def run_role(
    settings: Settings,
    output: Output,
    build: Callable[[App], Coroutine[Any, Any, None]],
    *,
    ends_with_input: bool = False,
) -> None:
    """Build a role's parts, say where it listens, run until a signal, stop cleanly. `ends_with_input`: also when
    whoever started it is gone."""
    from consumer.app import App

    stop = stop_on_signals()
    if ends_with_input:
        _stop_at_end_of_input(stop)
    async with App(settings) as app:
        await build(app)
        calm_collector()
        announce(app, output)
        await run_until(stop, app, settings)
    say_stopped()


async def run_until(stop: asyncio.Event, app: App, settings: Settings) -> None:
    """Run what was built, and say when it begins, and when it is about to end or died. Raises what a part raised."""
    _log.info("role_started", settings=digest(settings), internal_url=app.internal_url, public_url=app.public_url)
    try:
        await app.run(stop)
    except Exception as error:
        _log.error("role_died", code=code_of(error), reason=error.message if isinstance(error, ConsumerError) else None)
        raise
    _log.info("role_stops", signalled=stop.is_set())


def say_stopped() -> None:
    """Everything is closed: the last line."""
    _log.info("role_stopped")


def digest(settings: Settings) -> str:
    """A short word that differs when settings do; no secret is in it, since a dump masks them."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:12]


def calm_collector() -> None:
    """Let the garbage collector look less often, and never again at what is there since the start.

    A request allocates and frees by reference counts; cycles are rare. Measured: 5 % of a busy `serve`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 20, 50)


def announce(app: App, output: Output, more: Mapping[str, str | None] | None = None) -> None:
    """Say where the process listens."""
    addresses = {"role": app.settings.role.value, "public_url": app.public_url, "internal_url": app.internal_url}
    addresses |= {"console_url": app.console_url, **(more or {})}
    found = {name: value for name, value in addresses.items() if value is not None}
    tell(output, found, [f"{name}: {value}" for name, value in found.items()])


def tell(output: Output, document: Any, lines: Sequence[str]) -> None:
    """What a role says as it begins. It goes on when nobody can be told: a full disk keeps no order waiting."""
    try:
        output.document(document)
        for line in lines:
            output.line(line)
    except OutputUnwritable as error:
        _log.warning("addresses_not_told", code=error.code)


def at_sandbox(settings: Settings, base_url: str) -> Settings:
    """The same settings, with the default application at a sandbox."""
    applications = tuple(
        replace(one, base_url=base_url) if one.name == "default" else one for one in settings.applications
    )
    return settings.model_copy(update={"applications": applications})
