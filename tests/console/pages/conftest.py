"""Fixtures: the operator's pages on a real ledger, with both projections beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from consumer.clock import DrivenClock
from consumer.console.pages.desk import Desk
from consumer.console.pages.routes import page_routes
from consumer.console.pages.users import Users
from consumer.ledger import Database
from consumer.ledger.handling import events, runs
from consumer.ledger.tables import RunStatus
from handlers.access.policy import Policy
from tests.console.conftest import Client, listening
from tests.contract.ledger import facts

Pages = Client
Open = Callable[..., Awaitable[Pages]]
KINDS = ("a" * 16, "a" * 16, "b" * 16)


async def healthy() -> Mapping[str, Any]:
    """As `consumer status --json` says of a ledger that nothing waits in."""
    return {
        "status": "degraded",
        "findings": [{"grade": "degraded", "code": "dead_runs", "text": "3 dead: see `consumer dead list`"}],
        "processes": [], "groups": [], "unfulfilled": [], "held": [], "reading": [], "unread": [], "dead": 3,
    }  # fmt: skip


@pytest.fixture
async def open_pages(sqlite_ledger: Database, clock: DrivenClock) -> AsyncIterator[Open]:
    """Opens the pages; closed at the end."""
    clients: list[Pages] = []

    async def open_(users: Users | None = None, **given: Any) -> Pages:
        app = web.Application()
        known: dict[str, Any] = {"status": healthy, "applications": {"default": True, "other": False}}
        desk = Desk(clock=clock, policy=Policy(), **(known | {"database": sqlite_ledger} | given))
        page_routes(app, desk, users)
        clients.append(client := await listening(app))
        return client

    yield open_
    for client in clients:
        await client.close()


@pytest.fixture
async def pages(open_pages: Open) -> Pages:
    """Without users: whoever is on this machine is operator."""
    return await open_pages()


@pytest.fixture
async def three_dead(sqlite_ledger: Database) -> None:
    """Two of one kind of failure, one of another."""
    await die(sqlite_ledger, *enumerate(KINDS, start=1))


async def die(database: Database, *died: tuple[int, str]) -> None:
    """Events by number, each with a run that is dead of this kind of failure."""
    made = [
        replace(facts.run(number, status=RunStatus.DEAD, blocking=False), fingerprint=kind) for number, kind in died
    ]
    async with database.transaction() as session:
        await events.record(session, [facts.event(number) for number, _ in died], facts.NOW)
        await runs.add(session, made, facts.NOW)


async def text(pages: Pages, path: str, status: int = 200) -> str:
    """What a page says."""
    async with pages.get(path) as response:
        assert (response.status, response.content_type) == (status, "text/html")
        return await response.text()


async def press(pages: Pages, act: str, **fields: str) -> tuple[int, str]:
    """A button pressed: the status, and where it leads, or what the page says that refuses."""
    async with pages.post(f"/console/act/{act}", data=fields, allow_redirects=False) as response:
        way = response.headers.get("Location")
        return response.status, str(response.url.join(URL(way)).relative()) if way else await response.text()
