"""An order is fulfilled when the handlers that fulfil have succeeded; statistics neither make it so nor prevent it."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.console.alarms.unfulfilled import unfulfilled
from consumer.console.explain import explain_order
from consumer.console.views import order_view
from consumer.errors import HandlerInvalid
from consumer.events import Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events, handlers, outbox
from consumer.ledger.handling import runs as runs_
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Emission, Event, Handler, declared, derived_id, handles
from consumer.wire import own_event
from tests.support.handling.projections import START, Projections, said

MODULE = "handlers.fulfilment.handler"


def made(*types: str, **options: Any) -> Handler:
    @handles(*types, **options)
    async def function(event: Event, ctx: Context) -> None: ...

    found = declared(function)
    assert found is not None
    return found


STATISTICS = made("fulfilment.requested", transactional=True, name="shop:statistics")
MAIL = made("fulfilment.requested", fulfils=False, name="shop:mail")
SHIP = made("fulfilment.requested", name="shop:ship")
BOOK = made("fulfilment.requested", transactional=True, fulfils=True, name="shop:book")
EVERYTHING = made("*", name="shop:everything")


async def stands(database: Database, **runs: str) -> tuple[str, set[str], list[str]]:
    """For an order with these runs: the query API's word, the reasons of `status`, the codes of `explain`'s next."""
    await Projections(database, MODULE, options={"matching": "off"}).feed(
        said("order.paid", "evt_1", trust=Trust.READ, order_id="A1")
    )
    await Projections(database, MODULE, options={"matching": "off"}).relay()
    event_id = derived_id("default", "fulfilment.requested", "order:A1", "order")
    async with database.transaction() as session:
        await handlers.register(session, [STATISTICS, MAIL, SHIP, BOOK, EVERYTHING], START)
        await runs_.add(
            session,
            [
                Run(application="default", event_id=event_id, handler=f"shop:{name}", seq=number, key="order:A1",
                    status=RunStatus(status), blocking=False)
                for number, (name, status) in enumerate(runs.items())
            ],
            START,
        )  # fmt: skip
    async with database.reading() as session:
        view = await order_view(session, "default", "A1")
        told = await explain_order(session, "default", "A1")
        return view["fulfilment"], {one.reason for one in await unfulfilled(session)}, [x["code"] for x in told["next"]]


# case: O5
@pytest.mark.parametrize("name", ["statistics", "mail", "everything"])
async def test_what_ships_nothing_fulfils_nothing(database: Database, name: str) -> None:
    assert await stands(database, **{name: "succeeded"}) == ("requested", {"no_handler"}, ["no_handler"])


# case: O5
@pytest.mark.parametrize("status", ["dead", "retrying", "parked"])
async def test_a_bug_in_the_statistics_is_not_the_customers(database: Database, status: str) -> None:
    word, waiting, _ = await stands(database, statistics=status, mail=status, ship="succeeded")
    assert (word, waiting) == ("fulfilled", set())


# case: O5
@pytest.mark.parametrize(("ship", "word"), [("dead", "failed"), ("retrying", "requested")])
async def test_a_bug_of_who_fulfils_is(database: Database, ship: str, word: str) -> None:
    told, waiting, _ = await stands(database, statistics="succeeded", ship=ship)
    assert (told, waiting) == (word, {ship})


async def test_a_projection_may_fulfil_when_it_says_so(database: Database) -> None:
    assert (await stands(database, book="succeeded"))[:2] == ("fulfilled", set())


def test_who_never_hears_of_a_paid_order_cannot_fulfil_it() -> None:
    with pytest.raises(HandlerInvalid, match=r"fulfils=True is for handlers of fulfilment\.requested"):
        made("order.paid", fulfils=True)
    assert made("*", fulfils=True).fulfils
    assert not made("order.paid").fulfils


async def test_what_an_older_version_registered_counts_by_its_kind(database: Database) -> None:
    await stands(database, statistics="dead", ship="succeeded")
    async with database.transaction() as session:
        for row in await handlers.everyone(session):
            row.fulfils = None
    async with database.reading() as session:
        assert (await order_view(session, "default", "A1"))["fulfilment"] == "fulfilled"


async def test_only_who_fulfils_is_told_as_who_shipped(database: Database) -> None:
    """`explain` said "shipped by shop:statistics" of an order that nobody had shipped."""
    await stands(
        database, statistics="succeeded", mail="succeeded", everything="succeeded", book="succeeded", ship="dead"
    )
    async with database.reading() as session:
        told = (await explain_order(session, "default", "A1"))["timeline"]
    assert [entry["by"] for entry in told if entry["code"] == "shipped"] == ["shop:book"]


RELAYED: dict[str, Any] = {"application": "default", "source": Source.RELAY, "at": START}
PARCEL = made("shop.parcel_due", name="shop:parcel")
TEAM = made("shop.parcel_due", fulfils=False, name="shop:team")


async def handed_on(database: Database, *handlers_: Handler, **runs: str) -> dict[str, Any]:
    """What `explain order` says where BOOK has handed the order on by an event under the customer's key, which these
    handlers take, with these runs."""
    await stands(database, book="succeeded")
    requested = derived_id("default", "fulfilment.requested", "order:A1", "order")
    async with database.transaction() as session:
        await handlers.register(session, handlers_, START)
        emission = Emission(id="drv_parcel", type="shop.parcel_due", key="customer:c", data={})
        cause = own_event(id=requested, type="fulfilment.requested", key="order:A1", data={}, **RELAYED)
        if runs:
            parcel = own_event(id="drv_parcel", type="shop.parcel_due", key="customer:c", data={}, **RELAYED)
            await events.record(session, [parcel], START)
        await outbox.put(session, [outbox.Emitted(emission=emission, cause=cause, handler="shop:book")], START)
        await runs_.add(
            session,
            [
                Run(application="default", event_id="drv_parcel", handler=f"shop:{name}", seq=number, key="customer:c",
                    status=RunStatus(status), blocking=False, code="rejected" if status == "dead" else None)
                for number, (name, status) in enumerate(runs.items())
            ],
            START,
        )  # fmt: skip
    async with database.reading() as session:
        waiting = [one.reason for one in await unfulfilled(session)]
        return await explain_order(session, "default", "A1") | {"waiting": waiting}


# case: O5
@pytest.mark.parametrize(
    ("status", "word", "next_"),
    [("succeeded", "fulfilled", []), ("dead", "failed", ["run.dead"]), ("retrying", "requested", ["run.retrying"])],
)
async def test_what_was_handed_on_is_fulfilled_when_it_is_out(
    database: Database, status: str, word: str, next_: list[str]
) -> None:
    """It read `fulfilled`, and "nothing is due", of a parcel that nobody had sent."""
    told = await handed_on(database, PARCEL, TEAM, parcel=status, team="dead")
    assert (told["state"]["fulfilment"], [one["code"] for one in told["next"]]) == (word, next_)
    assert ("handed_on", "shop:book") in [(one["code"], one.get("by")) for one in told["timeline"]]
    assert told["waiting"] == [one.removeprefix("run.") for one in next_]
    by_parcel = [one["code"] for one in told["timeline"] if one.get("by") == "shop:parcel"]
    assert by_parcel == {"succeeded": ["shipped"], "dead": ["run.dead"], "retrying": []}[status]


# case: O5
async def test_what_was_handed_on_and_nobody_has_taken_yet_waits(database: Database) -> None:
    told = await handed_on(database, PARCEL)
    assert (told["state"]["fulfilment"], [one["code"] for one in told["next"]]) == ("requested", ["shop.parcel_due"])


# case: O5
async def test_what_was_handed_on_to_nobody_says_so(database: Database) -> None:
    told = await handed_on(database)
    assert (told["state"]["fulfilment"], [one["code"] for one in told["next"]]) == ("requested", ["no_handler"])


async def test_what_only_others_want_hands_nothing_on(database: Database) -> None:
    told = await handed_on(database, TEAM, team="dead")
    assert (told["state"]["fulfilment"], told["state"]["steps"]) == ("fulfilled", [])


def test_an_effect_of_a_plugins_own_type_fulfils_what_is_handed_on_to_it() -> None:
    assert PARCEL.fulfils
    assert made("shop.parcel_due", transactional=True, fulfils=True).fulfils
    assert not made("shop.parcel_due", transactional=True).fulfils
    assert not made("shop.parcel_due", "order.paid").fulfils
