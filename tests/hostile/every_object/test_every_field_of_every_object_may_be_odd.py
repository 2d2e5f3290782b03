"""Every field of every object of the service in turn odd: as webhook in both authenticities, as listed event, in a
list, as the answer to a single read; on both databases. The odd one ends in a named state; its order is requested, and
access is what the service's state says, by another path where the odd one cannot be used; and no neighbour is late,
however many odd ones came before. `CONSUMER_TEST_HISTORIES=2000` plays so many of each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.events import Authenticity
from consumer.ledger import Database
from tests.hostile.every_object.household import Household, household
from tests.hostile.every_object.objects import FIELDS, Told, happened
from tests.sync.conftest import DELIVERIES, EVENTS

NUMBER = int(os.environ.get("CONSUMER_TEST_HISTORIES", "60"))
AT_ONCE = 50
WITHIN_S = 60
"""Driven seconds after which a plain one is done that came with fifty others, most of them odd; the same for the last
as for the first. A session that lapsed is looked at after 30."""
HEALED_S = 300
"""So long all odd ones together may take once another path is open, beside the walk that heals them."""


@dataclass(frozen=True)
class Way:
    """How the odd ones come: what the service shows oddly, which lists it has, whether it sends webhooks. `decides`:
    the fields without which another path is needed; whatever stands in any other, it is done as if it were plain."""

    oddly: str
    lists: tuple[str, ...]
    kinds: tuple[str, ...]
    webhooks: Authenticity | None
    decides: frozenset[str]


_OF_EVENTS = ("order", "session", "subscription", "event")
_NAMES_IT = frozenset(
    {"order order_id", "session id", "subscription id", "event id", "event type", "event data", "event object"}
)
_IS_STATE = frozenset({"order status", "order order_id", "session order", "subscription status"})
WAYS = {
    "signed": Way("events", (), _OF_EVENTS, Authenticity.SIGNATURE, _NAMES_IT),
    "hint": Way("events", ("events",), _OF_EVENTS, Authenticity.API, _NAMES_IT),
    "listed": Way("events", ("events",), _OF_EVENTS, None, _NAMES_IT),
    "answer": Way(
        "lists",
        ("orders", "subscriptions", "payments"),
        ("order", "subscription", "payment"),
        None,
        _IS_STATE | {"subscription id", "subscription customer_reference"},
    ),
    "read": Way(
        "reads",
        (),
        ("order", "session", "subscription"),
        Authenticity.SIGNATURE,
        _IS_STATE | {"session id", "subscription id"},
    ),
}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    found = EmbeddedBroker(tmp_path / "log.db")
    await found.start()
    await found.ensure_topics(
        TopicConfig(name=name, partitions=4, retention_s=None, max_record_bytes=2**21) for name in (EVENTS, DELIVERIES)
    )
    yield found
    await found.stop()


def test_every_documented_field_comes_in_every_sort() -> None:
    told = happened(4 * sum(map(len, FIELDS.values())), tuple(FIELDS))
    found = {(one.odd, one.field, one.sort) for one in told if one.odd}
    assert found == {
        (kind, field, sort)
        for kind, fields in FIELDS.items()
        for field in fields
        for sort in ("odd", "null", "missing", "twice")
    }


@pytest.mark.timeout(60 + 2 * NUMBER)
@pytest.mark.parametrize("name", WAYS)
async def test_it_ends_in_a_named_state_and_its_neighbours_are_in_time(
    log: EmbeddedBroker, database: Database, name: str
) -> None:
    # case: U1, I10, I15, F1, F18, B1, B18, B22, G7
    way = WAYS[name]
    told = happened(NUMBER, way.kinds)
    async with household(log, database, [way.oddly], way.lists) as house:
        waiting, took = iter(told), list[float]()
        while some := list(islice(waiting, AT_ONCE)):
            took.append(await in_time(house, some, way))
        assert await house.kept.nameless(told if way.oddly == "events" else ()) == []
        assert await house.kept.unsaid(told if way.oddly == "reads" else ()) == []
        odd = len(await house.kept.lacking(told))
        house.service.oddly.clear()
        house.service.shown = {"events", "orders", "subscriptions", "payments"}
        await healed(house, told)
        assert await house.kept.wrong() == []
    print(f"\n{NUMBER} odd ones as {name}: those that need none within {max(took):.0f} s; {odd} needed another path")


async def in_time(house: Household, some: list[Told], way: Way) -> float:
    """They happen; driven seconds until the plain ones are done, and those whose odd field decides nothing."""
    began = house.world.clock.monotonic()
    for one in some:
        house.service.tell(one, house.world.clock.now())
    for one in some:
        if way.webhooks is not None:
            answer = await house.webhook(one, way.webhooks)
            assert answer == 200 or (one.odd and answer == 400), one
    plain = [one for one in some if one.odd is None or f"{one.odd} {one.field}" not in way.decides]
    if way.oddly == "lists":
        assert await house.walk() == await house.kept.unplaced()
        assert await house.kept.lacking(plain) == [], "one walk, however many odd ones it meets"
        return house.world.clock.monotonic() - began
    while await house.kept.lacking(plain):
        await house.round()
        assert house.world.clock.monotonic() - began < WITHIN_S, await house.kept.lacking(plain)
    return house.world.clock.monotonic() - began


async def healed(house: Household, told: list[Told]) -> None:
    """Another path is open: what is odd in one place is plain in another."""
    began = house.world.clock.monotonic()
    await house.walk()
    while await house.kept.lacking(told) or await house.kept.wrong():
        await house.round()
        late = house.world.clock.monotonic() - began > HEALED_S
        assert not late, (await house.kept.lacking(told), await house.kept.wrong())
