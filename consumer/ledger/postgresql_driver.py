"""PostgreSQL's engine and driver, and what differs where a pooler (PgBouncer and its like) lends its connections.

There each transaction may be another server process's: what is said for a session is said to others, too, and what was
prepared by name is missing, or is another's. So nothing of ours outlives a transaction there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from consumer.errors import SettingsError
from consumer.ledger.engine.discretion import hide_values

REFUSED: Final = "startup parameter"
APPLICATION_NAME: Final = "payments-consumer"
OF_THE_WAY: Final = ("application_name", "tcp_")
"""Settings that are for who is at the other end of the connection."""
Place = tuple[str, int]
"""A host and its port."""
_POOLED: Final = "is_pooled"
ALONE_S: Final = 1.0
"""So long each of several hosts has before the next is asked beside it."""
COMMAND_TIMEOUT_S = 60.0
RESTED_S = 1.0
"""A PostgreSQL connection that lay unused for so long is pinged before it is used again. One that broke sooner is found
by what is sent on it: LedgerUnavailable, and all connections are made anew."""
SILENT_S, ASKED_EVERY_S, ASKED_TIMES = 5, 3, 2
SILENCE_S = SILENT_S + ASKED_EVERY_S * ASKED_TIMES
"""A PostgreSQL connection on which nobody acknowledges anything for so long is broken, at both ends: a network lost it
without a word, or a machine went off. Well within a claim's lease; else `work` stands still for a minute, and what it
had begun keeps its locks on the server for two."""
# A connection keeps to the defaults and the server that it began with. One that is refused for them is made anew, else
# it would be for ever: they were set back since, or the name leads to the new primary. Where one is read-only, all are.
_READ_ONLY, _CUT_OFF = "25006", "57014"


def engine(
    url: str, pool_size: int, *, lock_s: float, command_timeout_s: float | None = COMMAND_TIMEOUT_S
) -> AsyncEngine:
    """An engine of this driver. `lock_s`: how long a statement waits for a table that somebody has locked;
    `command_timeout_s`: how long it may take, None for as long as it takes."""
    driver = Driver(
        {
            **({"statement_timeout": "0"} if command_timeout_s is None else {}),
            "application_name": APPLICATION_NAME,
            "idle_in_transaction_session_timeout": "120000",
            "lock_timeout": str(int(lock_s * 1000)),
            "tcp_keepalives_idle": str(SILENT_S),
            "tcp_keepalives_interval": str(ASKED_EVERY_S),
            "tcp_keepalives_count": str(ASKED_TIMES),
            "tcp_user_timeout": str(SILENCE_S * 1000),
            # A plan is made for the tables as they are now. One that is kept for a prepared statement may have been
            # made when they were empty, and reads them whole from then on (decision 10).
            "plan_cache_mode": "force_custom_plan",
            # Whatever it believes of them: none of our statements is answered best by reading a whole table.
            "enable_seqscan": "off",
            # Nor by gathering all rows that fit and sorting them: what is sought lies in the order of its index.
            "enable_bitmapscan": "off",
            "jit": "off",  # compiling takes longer than any of our statements
        }
    )
    made = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=5,
        pool_timeout=10,
        hide_parameters=True,
        # Whatever the database's default is: who waited for a lock must see what its holder wrote.
        isolation_level="READ COMMITTED",
        connect_args={"timeout": 10, "command_timeout": command_timeout_s, "async_creator_fn": driver.connect},
    )

    driver.serve(made)
    _ping_the_rested(made)

    @event.listens_for(made.sync_engine, "connect")
    def notice_silence(connection: Any, _: Any) -> None:
        _break_when_silent(connection.driver_connection._transport.get_extra_info("socket"))

    @event.listens_for(made.sync_engine, "handle_error")
    def keep_discreet(context: ExceptionContext) -> None:
        hide_values(context.sqlalchemy_exception, context.original_exception)
        state = getattr(context.original_exception, "sqlstate", None)
        if state == _READ_ONLY:
            context.is_disconnect = True
        elif state == _CUT_OFF and context.connection is not None:
            context.connection.connection.invalidate(soft=True)

    return made


class Driver:
    """Makes the connections of one engine. A server is told `settings` as each begins; through a pooler it is told them
    with each transaction, for that alone."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        told = (f"set_config('{n}', '{v}', true)" for n, v in settings.items() if not n.startswith(OF_THE_WAY))
        self._with_each = f"SELECT {', '.join(told)}"
        self._is_pooled = False

    async def connect(self, *where: Any, **options: Any) -> Any:
        """A connection of asyncpg's, as its own `connect`. Raises as that; SettingsError for what it cannot use."""
        try:
            return await self._connect_to_any(*where, **options)
        except OSError:
            raise  # one of a certificate is a ValueError, too
        except ValueError as error:
            if isinstance(error.__context__, OSError):
                raise  # nor has it a file of one that cannot be read
            raise SettingsError(["CONSUMER_DATABASE_URL: asyncpg cannot use it, or a PG… variable"]) from error

    async def _connect_to_any(self, *where: Any, **options: Any) -> Any:
        hosts, ports = options.get("host"), options.get("port")
        if not isinstance(hosts, list) or not isinstance(ports, list):
            return await self._connect(*where, **options)

        async def to(place: Place) -> Any:
            host, port = place
            return await self._connect(*where, **{**options, "host": host, "port": port})

        return await _first_of(list(zip(hosts, ports, strict=True)), to)

    async def _connect(self, *where: Any, **options: Any) -> Any:
        import asyncpg

        if not self._is_pooled:
            try:
                found = await asyncpg.connect(*where, server_settings=self._settings, **options)
            except asyncpg.ProtocolViolationError as error:
                if REFUSED not in str(error):
                    raise
            else:
                if not await _is_lent(found):
                    return found
                await found.close()
            self._is_pooled = True
        return await asyncpg.connect(*where, **options, statement_cache_size=0)  # it prepares without a name

    def serve(self, engine: AsyncEngine) -> None:
        """See to each connection before anybody else does, and to each transaction."""

        @event.listens_for(engine.sync_engine, "connect", insert=True)
        def note(connection: Any, record: ConnectionPoolEntry) -> None:
            if self._is_pooled:
                record.info[_POOLED] = True
                connection._prepared_statement_cache = None

        @event.listens_for(engine.sync_engine, "begin")
        def tell(connection: Connection) -> None:
            if connection.info.get(_POOLED):
                connection.exec_driver_sql(self._with_each)


async def _first_of(places: Sequence[Place], to: Callable[[Place], Awaitable[Any]]) -> Any:
    """Of several hosts the first that will do, in their order; one that does not answer at once holds up none behind
    it. asyncpg itself has one time for all: a machine that went off takes it whole, and nobody asks the one that was
    promoted."""
    import asyncpg

    passed_over = (
        OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError,
        asyncpg.TargetServerAttributeNotMatched,
    )  # fmt: skip
    left, asked, failures = list(places), list[asyncio.Task[Any]](), list[BaseException]()
    try:
        while left or asked:
            if left:
                asked.append(asyncio.ensure_future(to(left.pop(0))))
            await asyncio.wait(asked, timeout=ALONE_S if left else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [one for one in asked if one.done()]:
                asked.remove(task)
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, passed_over):
                    raise error
                failures.append(error)
    finally:
        await _let_go(asked)
    raise next((one for one in failures if not isinstance(one, OSError)), failures[-1])


async def _let_go(asked: Collection[asyncio.Task[Any]]) -> None:
    """Those that are not needed any more, also who answers just now."""
    for task in asked:
        task.cancel()
    for found in await asyncio.gather(*asked, return_exceptions=True):
        if not isinstance(found, BaseException):
            found.terminate()


async def _is_lent(connection: Any) -> bool:
    """Whether who answers goes by another number than the server's process: a pooler makes one up."""
    try:
        async with connection.transaction():
            asked = await connection.prepare("SELECT pg_backend_pid()", name="")
            return bool(await asked.fetchval() != connection.get_server_pid())
    except BaseException:
        connection.terminate()
        raise


def _break_when_silent(ours: socket.socket) -> None:
    """As the server is told to do with its end. A system other than Linux knows some of it."""
    if ours.family == socket.AF_UNIX:
        return
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    told = {"TCP_KEEPIDLE": SILENT_S, "TCP_KEEPINTVL": ASKED_EVERY_S, "TCP_KEEPCNT": ASKED_TIMES,
            "TCP_USER_TIMEOUT": SILENCE_S * 1000}  # fmt: skip
    for name, value in told.items():
        if (option := getattr(socket, name, None)) is not None:
            ours.setsockopt(socket.IPPROTO_TCP, option, value)


def _ping_the_rested(engine: AsyncEngine) -> None:
    """As `pool_pre_ping`, but one that was used a moment ago is taken as it is: a ping is three round trips."""
    dialect = engine.dialect

    @event.listens_for(engine.sync_engine, "checkin")
    def note(_: Any, record: ConnectionPoolEntry) -> None:
        record.info["used_at"] = monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def ping(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
        used_at = record.info.get("used_at")
        if used_at is not None and monotonic() - used_at > RESTED_S and not dialect._do_ping_w_event(connection):
            raise InvalidatePoolError
