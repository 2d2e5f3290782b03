"""The customer on the phone holds some id: whichever it is leads to what it is about; a slip, to what is near."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from consumer.console.explain import explain_customer, explain_order
from consumer.console.find import find, find_shown, near
from consumer.console.mentions import says
from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.handling import events, outbox
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.tables import DeadLetterRow, QuarantineRow
from consumer.plugin.emission import idempotency_key
from consumer.reason import Reason
from consumer.receive.decide import new_delivery_id
from handlers.access.policy import Policy
from tests.support.handling.projections import START, Projections, observed, own, said
from tests.support.ledger.plans import collecting


@pytest.fixture
async def sold(sqlite_ledger: Database, projections: Projections) -> Database:
    """Jane's order A-100 is paid, and she has a subscription; a forged delivery lies in quarantine."""
    registered = {"session_id": "cs_1", "order_id": "A-100", "customer": "jane", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A-100", registered))
    await projections.feed(said("order.paid", "evt_1", order_id="A-100", amount="10"))
    await projections.feed(observed("order:A-100", 1, {"status": "PAID", "id": "ord_1", "order_id": "A-100"}))
    await projections.feed(observed("subscription:S1", 2, {"status": "ACTIVE", "customer_reference": "jane"}))
    body = b'{"order_id": "B-31"}'
    forged = Delivery(application="default", id="dlv_x", raw=body, received_at=START, headers={}, event_id="evt_9")
    waiting = replace(forged, id="dlv_y", event_id="evt_8")
    async with sqlite_ledger.transaction() as session:
        await quarantine.put(session, [(forged, Reason.NOT_CONFIRMED)], START)
        await hints.keep(session, [waiting], START)
    return sqlite_ledger


async def test_what_only_a_delivery_says_that_is_no_event_yet_is_found(sold: Database) -> None:
    """The credentials are refused: nobody reads, and the customer calls."""
    body = b'{"order_id": "wait-31", "customer_reference": "dora-1"}'
    refused = Delivery(application="default", id="dlv_q", raw=body.replace(b"31", b"32"), received_at=START, headers={})
    waits = Delivery(application="default", id="dlv_w", raw=body, received_at=START, headers={}, event_id="evt_31")
    async with sold.transaction() as session:
        await quarantine.put(session, [(refused, Reason.NO_EVENT_ID)], START)
        await hints.keep(session, [waits], START)
    async with sold.reading() as session:
        [found] = await find(session, "wait-31")
        assert found.kind == "said in evt_31, waits to be confirmed"
        [found] = await find(session, "wait-32")
        assert found.kind == "said in a delivery, in quarantine"
        assert len(await find(session, "dora-1")) == 2
        assert await find(session, "dora-1", application="elsewhere") == []


SPELLED = [
    ("77123", b'{"order_id": "77123"}'),
    ("7712345", b'{"data": {"order_id": 7712345}}'),
    ("8.50", b'{"ids": ["x", 8.50]}'),
    ("bestéll-1", '{"order_id": "bestéll-1"}'.encode()),
    ("bestéll-2", b'{"order_id": "best\\u00E9ll-2"}'),
    ("a/7", b'{"order_id": "a\\/7"}'),
    ("cut-off-1", b'{"order_id": "cut-off-1", "amou'),
    ("größe-1", '{"order_id": "größe-1", '.encode()),
]
"""Names, and what is sent of each; the last two are cut off."""


@pytest.mark.parametrize("place", ["hints", "quarantine", "events"])
async def test_a_name_is_found_however_it_is_spelled(database: Database, place: str) -> None:
    bodies = [body for _, body in SPELLED if place != "events" or body.endswith(b"}")]
    sent = [
        Delivery(application="default", id=f"dlv_{n}", raw=body, received_at=START, headers={}, event_id=f"evt_{n}")
        for n, body in enumerate(bodies)
    ]
    async with database.transaction() as session:
        match place:
            case "hints":
                await hints.keep(session, sent, START)
            case "quarantine":
                await quarantine.put(session, [(one, Reason.NOT_CONFIRMED) for one in sent], START)
            case _:
                told = said("order.paid", "evt_0")
                await events.record(session, [replace(told, id=str(one.event_id), raw=one.raw) for one in sent], START)
    async with database.reading() as session:
        for number, (name, _) in enumerate(SPELLED[: len(bodies)]):
            [found] = await find(session, name)
            assert (found.id, found.kind.startswith(("said in evt_", "said in order.paid"))) == (name, True), number
        for part in ("7712", "order", "best", "ell-1", "x\\"):
            assert await find(session, part) == [], part


@pytest.mark.parametrize("body", [b"[" * 16_000, b"\x00\xff", b'"\xed\xa0\x80 77123"', b"NaN", b"77123 77123"])
def test_what_is_no_json_names_nothing_short(body: bytes) -> None:
    assert not says(body, "77123")
    assert not says(body + b" 77123", "77123")


async def test_what_is_no_event_yet_says_what_becomes_of_it(sold: Database) -> None:
    async with sold.reading() as session:
        [waits] = await find(session, "evt_8")
        [refused] = await find(session, "evt_9")
        said = {(one.kind, one.detail) for one in await find(session, "B-31")}
        number = await session.scalar(select(QuarantineRow.__table__.c.id))
    at = f"{START:%Y-%m-%d %H:%M:%S}Z"
    assert waits.detail == f"asked 0 times, again at {at}; what is never confirmed goes to quarantine"
    assert str(refused.detail).endswith(f"; consumer quarantine retry {number} --reason …")
    assert said == {
        ("said in evt_8, waits to be confirmed", waits.detail),
        ("said in evt_9, in quarantine", refused.detail),
    }


@pytest.mark.parametrize(
    ("name", "kind", "subject"),
    [
        ("A-100", "order", ("order", "A-100")),
        ("cs_1", "checkout session", ("order", "A-100")),
        ("evt_1", "event", ("order", "A-100")),
        ("S1", "subscription", ("subscription", "S1")),
        ("jane", "customer", ("customer", "jane")),
        ("evt_9", "delivery in quarantine", None),
        ("dlv_x", "delivery in quarantine", None),
        ("evt_8", "delivery that waits to be confirmed", None),
        ("dlv_y", "delivery that waits to be confirmed", None),
    ],
)
async def test_every_kind_of_id(sold: Database, name: str, kind: str, subject: tuple[str, str] | None) -> None:
    async with sold.reading() as session:
        [found] = await find(session, name)
        assert (found.kind, found.subject, found.application) == (kind, subject, "default")
        assert await find(session, name, application="elsewhere") == []


@pytest.fixture
async def subscribed(sold: Database, projections: Projections) -> Database:
    """Joe's subscription: its session has an order id of the merchant's, and its payment no order. And money for an
    order that came a moment ago: no look has told it yet."""
    session: dict[str, Any] = {"id": "cs_2", "mode": "subscription", "order_id": "sub-of-joe", "subscription_id": "S2"}
    paid = {"version": 1, "record": {"id": "pay_2", "subscription_id": "S2", "transaction_signature": "DE9ReJRPW3"}}
    order = {"version": 2, "record": {"id": "ord_3", "order_id": "A-300", "payment_id": "pay_of_A300"}}
    await projections.feed(said("checkout.session.completed", "evt_20", **session))
    known = [
        said("checkout.session.completed", "evt_20", **session),
        own("payment.observed", "payment:pay_2", paid),
        own("order.observed", "order:A-300", order),
    ]
    async with sold.transaction() as ledger:
        await events.record(ledger, known, START)
    return sold


@pytest.mark.parametrize(
    ("name", "kind", "subject"),
    [
        ("sub-of-joe", "order", ("subscription", "S2")),
        ("pay_2", "payment", ("subscription", "S2")),
        ("cs_2", "checkout session", ("subscription", "S2")),
        ("DE9ReJRPW3", "said in payment.observed", ("subscription", "S2")),
        ("pay_of_A300", "payment, said in order.observed", ("order", "A-300")),
    ],
)
async def test_what_only_an_event_tells(subscribed: Database, name: str, kind: str, subject: tuple[str, str]) -> None:
    async with subscribed.reading() as session:
        [found] = await find(session, name)
        assert (found.kind, found.subject) == (kind, subject)
        assert await find(session, name, application="elsewhere") == []
        assert await find(session, name[:-1]) == []


async def test_a_session_is_found_by_what_lists_call_it(subscribed: Database) -> None:
    # case: U10
    async with subscribed.reading() as session:
        assert await find_shown(session, "session:cs_2", application=None) == await find(session, "cs_2") != []


async def test_a_slip_of_the_finger_finds_nothing_and_what_is_near(sold: Database) -> None:
    async with sold.reading() as session:
        assert await find(session, "A-1000") == []
        assert (await near(session, "A-1000"))[0] == "A-100"
        assert "A-100" not in await near(session, "A-100"), "that is no other name"
        assert await find(session, idempotency_key("default", "evt_1", "nobody")) == []


@pytest.mark.parametrize("application", [None, "default"])
async def test_no_look_for_an_id_reads_a_table_that_grows(sold: Database, application: str | None) -> None:
    """Whatever kind it is of, known or not, in each application or in one."""
    delivery = new_delivery_id(START.timestamp(), f"00-{'ab' * 16}-{'cd' * 8}-01")
    with collecting(sold) as statements:
        async with sold.reading() as session:
            for name in ("A-100", "ord_1", "cs_1", "S1", "jane", "evt_1", "evt_nope", "drv_nope", delivery, "nope-1"):
                await find(session, name, application=application)
    async with sold.engine.connect() as connection:
        await statements.explain(connection)
    assert not statements.whole, "\n".join(f"{line}: {text}" for (_, text), line in statements.whole.items())


# case: A50
async def test_a_timeline_is_in_true_order_with_what_brought_each_about(sold: Database) -> None:
    async with sold.transaction() as session:
        [row] = [one for one in await outbox.due(session, START, 10) if one.type == "fulfilment.requested"]
        requested = own(row.type, row.key, {}, id_=row.event_id, at=row.created_at)
        await events.record(session, [requested], row.created_at)
        found = await explain_order(session, "default", "A-100")
    codes = [entry["code"] for entry in found["timeline"] if "trust" in entry]
    assert codes[:2] == ["checkout.registered", "order.paid"], "as they came, though at one instant"
    assert [entry["at"] for entry in found["timeline"]] == sorted(entry["at"] for entry in found["timeline"])
    every = [entry["code"] for entry in found["timeline"]]
    assert every.index("order.changed") < every.index("fulfilment.requested"), "a change comes before what it set off"


# case: A50
async def test_a_death_stays_in_the_timeline_when_the_run_was_redriven(sold: Database) -> None:
    died = DeadLetterRow(
        application="default", event_id="evt_1", handler="shop:ship", died_at=START, blocking=True, attempts=8,
        code="handler_failed", reason="no label",
    )  # fmt: skip
    async with sold.transaction() as session:
        await events.record(session, [said("order.paid", "evt_1", order_id="A-100", amount="10")], START)
        session.add(died)
        await session.flush()
        found = await explain_order(session, "default", "A-100")
    [told] = [entry for entry in found["timeline"] if entry["code"] == "run.dead"]
    assert (told["at"], told["by"], told["attempts"], told["reason"]) == (START, "shop:ship", 8, "no label")


# case: A50
async def test_what_a_customer_bought_is_part_of_the_answer(sold: Database) -> None:
    async with sold.reading() as session:
        found = await explain_customer(session, "default", "jane", Policy(), START)
    assert [(one["order_id"], one["status"] is not None) for one in found["orders"]] == [("A-100", True)]
