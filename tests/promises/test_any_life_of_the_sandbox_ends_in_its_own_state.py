"""Any loss, duplication and order of the sandbox's webhooks, on two workers, then one reconcile: its own state, each
effect once. In every shape of event and under every assumption the document leaves open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from consumer.events import Event
from tests.promises.lives import Life
from tests.simulation.busy_life import lived
from tests.simulation.own_state import arriving, check, check_access_was_kept, effects
from tests.support.handling.projections import Projections
from tests.support.ledger.shared import SharedLedger

MODULES = ("handlers.fulfilment.handler", "handlers.access.handler")
ANY: dict[str, Any] = {
    "seed": st.integers(0, 2**32 - 1),  # drawn move by move by Hypothesis, nine lives in ten had no paid order
    "moves": st.integers(8, 20),
    "heard": st.sampled_from((0.3, 0.8, 1.0)),
    "waits": st.booleans(),
}
HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "200"))  # `make chaos` asks for thousands


async def experience(
    shared_ledger: SharedLedger, life: Life, application: str, events: list[Event], *, waits: bool
) -> Projections:
    """Two workers share what arrives; then one reconcile, and time for what settles."""
    two = [Projections(shared_ledger.database, *MODULES, now=life.now, application=application) for _ in range(2)]
    await asyncio.gather(two[0].feed(*events[::2]), two[1].feed(*events[1::2]))
    await (two[0].pass_time(seconds=5) if waits else two[0].relay())  # some orders go out unread, some are held
    await two[1].feed(*life.reconcile(application))
    await two[0].relay()
    before = await effects(two[0], application)
    await check_access_was_kept(life, before)
    await two[0].pass_time(minutes=15)
    return two[0]


def examine(shared_ledger: SharedLedger, *, seed: int, moves: int, heard: float, waits: bool) -> None:
    life, application = lived(seed, moves), next(shared_ledger.names)
    events = arriving(Random(seed), life, application, heard=heard)
    note("\n".join(f"{event.type} {event.key} {event.id}" for event in events))

    async def run() -> None:
        shop = await experience(shared_ledger, life, application, events, waits=waits)
        await check(shop, life, application)

    shared_ledger.runner.run(run())


@settings(max_examples=30, deadline=None)
@given(**ANY)
def test_on_sqlite(shared_ledger: SharedLedger, **any_: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11, B18, B19, B20
    examine(shared_ledger, **any_)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=HISTORIES, deadline=None)
@given(**ANY)
def test_on_sqlite_for_long(shared_ledger: SharedLedger, **any_: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11
    examine(shared_ledger, **any_)


@pytest.fixture(scope="module")
def postgres_ledger(postgres_base: str) -> Iterator[SharedLedger]:
    from tests.support.postgres import create_database

    with closing(SharedLedger(create_database(postgres_base))) as made:
        yield made


@pytest.mark.slow
@pytest.mark.postgres
@settings(max_examples=30, deadline=None)
@given(**ANY)
def test_on_postgresql(postgres_ledger: SharedLedger, **any_: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11
    examine(postgres_ledger, **any_)
