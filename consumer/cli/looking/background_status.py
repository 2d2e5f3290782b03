"""Background status: what `consumer status` says, for the operator's pages of a role that goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from consumer.cli.bootstrap import run
from consumer.console.pages.desk import Status
from consumer.settings import Settings


def background_status(settings: Settings) -> Status:
    """Asks as the command does, with connections of its own, in a thread that keeps no role from ending. What it takes
    (every plugin, a client of the log) is imported by the first who asks."""

    def look() -> Mapping[str, Any]:
        from consumer.cli.looking import status

        return status.document(run(status.look(settings, [])))

    async def ask() -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Mapping[str, Any]] = loop.create_future()

        def tell() -> None:
            try:
                found, error = look(), None
            except Exception as failure:  # noqa: BLE001 - it is raised where it was asked for
                found, error = {}, failure
            with suppress(RuntimeError):  # the role has ended, and nobody waits any more
                loop.call_soon_threadsafe(_end, told, found, error)

        threading.Thread(target=tell, name="status", daemon=True).start()
        return await told

    return ask


def _end(told: asyncio.Future[Mapping[str, Any]], found: Mapping[str, Any], error: Exception | None) -> None:
    if told.done():
        return
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(found)
