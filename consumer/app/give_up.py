"""Last words of a worker that a handler blocks for good: the handler is paused in the ledger, then the process ends.

The worker cannot write that down itself: its loop is blocked, and on SQLite its open transaction shuts out every other
writer. So the process becomes this program (`exec`): its connections close, which rolls the transaction back; the
process id stays, so a container's supervisor sees nothing but an exit, after which it starts the worker anew.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import NoReturn

import structlog

from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.settings import Role, load_settings
from consumer.telemetry.logs import configure_logging, logs_settled
from consumer.work.pausing.pauser import pause_in

EX_SOFTWARE = 70
LIMIT_S = 20.0

_log = structlog.get_logger(__name__)


def leave(handler: str, reason: str) -> NoReturn:
    """From any thread: end this process, with the handler paused. Never returns."""
    try:
        logs_settled()
        signal.setitimer(signal.ITIMER_REAL, 0)  # it would outlive exec, its signal handler does not
        os.execv(sys.executable, [sys.executable, "-m", __name__, handler, reason])  # noqa: S606 - no shell is wanted
    finally:
        os._exit(EX_SOFTWARE)


async def pause(url: str, handler: str, reason: str) -> None:
    """Write it down. Raises LedgerError, TimeoutError."""
    database = Database(url, pool_size=1)
    try:
        async with asyncio.timeout(LIMIT_S):
            async with database.reading() as session:
                now = await shared_time(session)
            await pause_in(database, handler, reason, actor=f"worker-{os.getpid()}", now=now)
    finally:
        await database.stop()


def main(handler: str, reason: str) -> int:
    """The program; its exit code says that the worker ended by a fault."""
    settings = load_settings(os.environ, Role.OPERATE)
    configure_logging(settings.log_level, settings.log_format)
    try:
        asyncio.run(pause(settings.database_url.get_secret_value(), handler, reason))
    except Exception as error:  # noqa: BLE001 - the process ends all the same; what is lost is said
        _log.critical("handler_not_paused", handler=handler, reason=reason, error=type(error).__name__)
    else:
        _log.critical("worker_gave_up", handler=handler, reason=reason, paused=True)
    return EX_SOFTWARE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
