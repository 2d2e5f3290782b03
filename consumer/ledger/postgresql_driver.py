"""PostgreSQL's driver, and what differs where a pooler (PgBouncer and its like) lends its connections.

There each transaction may be another server process's: what is said for a session is said to others, too, and what was
prepared by name is missing, or is another's. So nothing of ours outlives a transaction there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

REFUSED: Final = "startup parameter"
OF_THE_WAY: Final = ("application_name", "tcp_")
"""Settings that are for who is at the other end of the connection."""
Place = tuple[str, int]
"""A host and its port."""
_POOLED: Final = "is_pooled"
ALONE_S: Final = 1.0
"""So long each of several hosts has before the next is asked beside it."""


class Driver:
    """Makes the connections of one engine. A server is told `settings` as each begins; through a pooler it is told them
    with each transaction, for that alone."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        told = (f"set_config('{n}', '{v}', true)" for n, v in settings.items() if not n.startswith(OF_THE_WAY))
        self._with_each = f"SELECT {', '.join(told)}"
        self._is_pooled = False

    async def connect(self, *where: Any, **options: Any) -> Any:
        """A connection of asyncpg's, as its own `connect`. Raises as that."""
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
