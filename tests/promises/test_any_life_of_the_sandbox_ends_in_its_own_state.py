"""Any loss, duplication and order of the sandbox's webhooks, on two workers, then one reconcile: its own state, each
effect once. In every shape of event and under every assumption the document leaves open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.promises.lives import Life, lives
from tests.simulation.own_state import arriving, check, check_access_was_kept, effects
from tests.support.handling.projections import Projections

MODULES = ("handlers.fulfilment.handler", "handlers.access.handler")
HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "200"))  # `make chaos` asks for thousands


class World:
    """One ledger for many lives: each is an application of its own, on two workers."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.database = Database(url)
        self.runner.run(schema.upgrade(self.database))
        self.names = (f"app{number}" for number in count())

    def close(self) -> None:
        self.runner.run(self.database.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('lives')}/ledger.db")
    yield made
    made.close()


async def experience(world: World, life: Life, application: str, events: list[Event], *, waits: bool) -> Projections:
    """Two workers share what arrives; then one reconcile, and time for what settles."""
    two = [Projections(world.database, *MODULES, now=life.now, application=application) for _ in range(2)]
    await asyncio.gather(two[0].feed(*events[::2]), two[1].feed(*events[1::2]))
    await (two[0].pass_time(seconds=5) if waits else two[0].relay())  # some orders go out unread, some are held
    await two[1].feed(*life.reconcile(application))
    await two[0].relay()
    before = await effects(two[0], application)
    await check_access_was_kept(life, before)
    await two[0].pass_time(minutes=15)
    return two[0]


def examine(world: World, life: Life, data: Any) -> None:
    application = next(world.names)
    events = arriving(data, life, application)
    waits = data.draw(st.booleans(), label="waits")

    async def run() -> None:
        shop = await experience(world, life, application, events, waits=waits)
        await check(shop, life, application)

    world.runner.run(run())


@settings(max_examples=40, deadline=None)
@given(life=lives(), data=st.data())
def test_on_sqlite(world: World, life: Life, data: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11, B18, B19, B20
    examine(world, life, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=HISTORIES, deadline=None)
@given(life=lives(), data=st.data())
def test_on_sqlite_for_long(world: World, life: Life, data: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11
    examine(world, life, data)


@pytest.fixture(scope="module")
def postgres_world(postgres_base: str) -> Iterator[World]:
    from tests.support.postgres import create_database

    made = World(create_database(postgres_base))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.postgres
@settings(max_examples=40, deadline=None)
@given(life=lives(), data=st.data())
def test_on_postgresql(postgres_world: World, life: Life, data: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11
    examine(postgres_world, life, data)
