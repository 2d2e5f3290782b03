"""Rebuild: projections derived again from what the ledger keeps are the same, and nothing new goes out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, delete, select

from consumer.app.commands.rebuilding import HONOURS, registered
from consumer.console.checkouts import ACTOR, REGISTERED, Checkout, write_checkout
from consumer.console.operators import subjects
from consumer.console.operators.words import say
from consumer.errors import RebuildDiffers, TermsDiffer
from consumer.events import Event, Trust
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.rebuilding import told
from consumer.ledger.tables import AuditRow, EventRow, OutboxRow, ReadRow
from consumer.plugin import Context, Handler, declared, derived_id, handles
from consumer.plugin.options import options_for
from consumer.replay.rebuild import Rebuild
from consumer.wire import SEED
from handlers.access import decisions
from handlers.access import tables as access
from handlers.access.subscription import Subscription
from handlers.fulfilment import tables as fulfilment
from tests.access.history import Service, denials, reconcile, services, webhooks
from tests.support.handling.live import Live
from tests.support.handling.projections import observed, own, said, unreadable

PLUGINS: dict[str, dict[str, Any]] = {"fulfilment": {}, "access": {}}
OURS = [table for module in (fulfilment, access) for table in vars(module).values() if isinstance(table, Table)]
LEFT_ALONE: list[Table] = [model.__table__ for model in (OutboxRow, ReadRow, AuditRow, EventRow)]
ORDERS = fulfilment.ORDERS
DECISIONS = [fulfilment.ORDERS, access.SUBSCRIPTIONS, access.ENTITLEMENTS]
READ_DUE = "fulfilment.read_due"
HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "12"))


async def contents(live: Live, tables: Sequence[Table]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    async with live.database.reading() as session:
        for table in tables:
            wanted = select(table).where(table.c.application == live.application)
            rows = (await session.execute(wanted.order_by(*table.primary_key.columns))).mappings()
            found[table.name] = [dict(row) for row in rows]
    return found


def rebuild(
    live: Live, options: Mapping[str, Mapping[str, Any]] | None = None, more: Sequence[Handler] = ()
) -> Rebuild:
    handlers = [*live.plain, *more]
    return Rebuild(
        live.database,
        handlers,
        {one.name: options_for(one.function, (options or live.options).get(one.plugin, {})) for one in handlers},
        OURS,
        honours=HONOURS,
        at_once={(REGISTERED, ACTOR): registered},
    )


@asynccontextmanager
async def live_in(
    database: Database,
    options: Mapping[str, Any] | None = None,
    stumbles: Mapping[tuple[str, str], int] | None = None,
    skew: timedelta = timedelta(0),
    more: Sequence[Handler | None] = (),
) -> AsyncIterator[Live]:
    """The workers of the application `default`; `options` are fulfilment's. `more`: handlers of the test's own."""
    plugins = {**PLUGINS, "fulfilment": options or {}}
    handlers = [one for one in more if one is not None]
    live = Live(database, plugins, application="default", stumbles=stumbles, skew=skew, more=handlers)
    try:
        yield live
    finally:
        await live.close()


async def same_after_rebuild(live: Live, tables: Sequence[Table] = OURS) -> None:
    before, ledger = await contents(live, tables), await contents(live, LEFT_ALONE)
    await rebuild(live).run(live.application)
    after = await contents(live, tables)
    for name, rows in before.items():
        assert after[name] == rows, name
    assert await contents(live, LEFT_ALONE) == ledger, "nothing goes out, and the ledger is as it was"


def asked(application: str) -> tuple[Event, Event, tuple[str, str], tuple[str, str]]:
    """A signed order nobody registered, the service's answer that it has none, and both runs that decide on it."""
    paid = said("order.paid", "evt_1", application=application, order_id="A1", amount="10")
    answer = unreadable("order:A1", 1, application=application)
    timer = derived_id(application, READ_DUE, "order:A1", "read")
    return paid, answer, (answer.id, "fulfilment:order_unreadable"), (timer, "fulfilment:read_due")


@pytest.mark.parametrize("late", ["answer", "timer"])
async def test_what_came_first_when_it_was_handled_comes_first_again(sqlite_ledger: Database, late: str) -> None:
    # case: G9
    paid, answer, answered, went_off = asked("default")
    stumbles = {answered: 1} if late == "answer" else {went_off: 1}
    async with live_in(sqlite_ledger, stumbles=stumbles) as live:
        await live.arrive(paid)
        live.clock.advance(3)
        if late == "answer":
            await live.arrive(answer)
            await live.relay()
        else:
            await live.relay()
            await live.arrive(answer)
        await live.pass_time(5)
        assert not await live.unfinished()
        (order,) = (await contents(live, [ORDERS]))["fulfilment_order"]
        assert (order["requested_at"] is not None, order["hold"]) == (
            (True, None) if late == "answer" else (False, "unmatched")
        )
        await same_after_rebuild(live)


PAYMENT = observed("payment:p1", 1, {"id": "p1", "status": "SUCCEEDED", "order_id": "A1"})
PAID = said("order.paid", "evt_1", id="so1", order_id="A1", amount="10", at=PAYMENT.received_at + timedelta(seconds=1))
EXPIRED = said("order.expired", "evt_2", id="so1", order_id="A1")


@pytest.mark.parametrize("apart", [False, True], ids=["in one batch", "one by one"])
@pytest.mark.parametrize("of_order", [PAID, EXPIRED], ids=["paid", "expired"])
async def test_what_came_with_a_payment_is_handled_again_as_it_was_then(
    database: Database, of_order: Event, apart: bool
) -> None:
    # case: G9, F38 (found by the property below): of one batch one handler after the other is called, so that the
    # order's event came before the payment that had arrived first
    async with live_in(database) as live:
        await (live.arrive(PAYMENT) if apart else live.arrive(PAYMENT, of_order))
        if apart:
            await live.arrive(of_order)
        await live.relay()
        rows = await contents(live, [ORDERS, fulfilment.FINDINGS])
        (order,), findings = rows["fulfilment_order"], [row["kind"] for row in rows["fulfilment_finding"]]
        assert order["expired_at"] == (EXPIRED.received_at if apart and of_order is EXPIRED else None)
        assert findings == ["orphan_payment"] * (apart or of_order is EXPIRED)
        await same_after_rebuild(live)


async def test_who_waited_for_another_worker_is_handled_again_behind_it(database: Database) -> None:
    # case: G9, F3: its transaction began first, and found what the other one had left
    holds, goes_on = asyncio.Event(), asyncio.Event()

    @handles("order.paid", transactional=True, name="test:holds")
    async def keeps_the_lock(_: Event, __: Context) -> None:
        holds.set()
        await goes_on.wait()

    async with live_in(database, more=[declared(keeps_the_lock)]) as one, live_in(database) as other:
        one.clock.advance(1)
        first = asyncio.create_task(one.arrive(PAID))
        await holds.wait()
        behind = asyncio.create_task(other.arrive(PAYMENT))
        await asyncio.sleep(0)  # it begins, at its time
        other.clock.advance(2)
        goes_on.set()
        await asyncio.gather(first, behind)
        assert (await contents(one, [fulfilment.FINDINGS]))["fulfilment_finding"] == []
        await same_after_rebuild(one)


@pytest.mark.parametrize("whose", ["cus_1", "cus_2"])
async def test_what_waited_for_a_first_read_ends_again_as_it_did(database: Database, whose: str) -> None:
    # case: G9, A25
    mine = {"customer_reference": "cus_1"}
    async with live_in(database) as live:
        await live.arrive(observed("subscription:S1", 1, {"status": "ACTIVE", **mine}))
        await live.arrive(said("subscription.created", "evt_1", id="S2"), said("subscription.ended", "evt_2", id="S1"))
        ended = {"status": "ENDED", "end_reason": "MERCHANT_CANCELED", **mine}
        await live.arrive(observed("subscription:S1", 2, ended, at=live.clock.now()))
        await live.pass_time(20)
        (waiting,) = (await contents(live, [access.ENTITLEMENTS]))["access_entitlement"]
        assert waiting["reasons"] == ["settling:successor", "settling:S1"]
        shown = {"status": "ACTIVE", "customer_reference": whose}
        await live.arrive(observed("subscription:S2", 3, shown, at=live.clock.now()))
        await live.pass_time(20)
        rows = (await contents(live, [access.ENTITLEMENTS]))["access_entitlement"]
        assert {row["customer"] for row in rows if row["allowed"]} == {whose}
        await same_after_rebuild(live)


async def test_whose_it_is_by_its_session_is_found_again(database: Database) -> None:
    # case: G9, A36, U10
    async with live_in(database) as live:
        shown = {"status": "ACTIVE", "checkout_session_id": "cs_1"}
        await live.arrive(observed("session:cs_1", 1, {"id": "cs_1", "customer_reference": "cus_1"}))
        await live.arrive(observed("subscription:S1", 2, shown, at=live.clock.now()))
        assert not (await contents(live, [access.ENTITLEMENTS]))["access_entitlement"], "it was read before"
        read = {"id": "cs_1", "customer_reference": "cus_1"}
        await live.arrive(observed("session:cs_1", 3, read, at=live.clock.now()))
        (entitlement,) = (await contents(live, [access.ENTITLEMENTS]))["access_entitlement"]
        assert (entitlement["customer"], entitlement["allowed"]) == ("cus_1", True)
        await same_after_rebuild(live)


async def test_what_ended_by_the_rules_of_before_ends_again_as_it_did(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: G9: then nothing waited for the first read of somebody else
    ended = {"status": "ENDED", "end_reason": "MERCHANT_CANCELED", "customer_reference": "cus_1"}
    async with live_in(database) as live:
        with monkeypatch.context() as before:
            before.setattr(decisions, "goes_on_until", lambda *_, **__: None)
            for id_ in ("S1", "S2"):
                active = {"status": "ACTIVE", "customer_reference": "cus_1"}
                await live.arrive(observed(f"subscription:{id_}", 1, active, at=live.clock.now()))
                await live.arrive(observed(f"subscription:{id_}", 2, ended, at=live.clock.now()))
                await live.pass_time(20)
        assert [row["allowed"] for row in (await contents(live, [access.ENTITLEMENTS]))["access_entitlement"]] == [
            False
        ]
        await same_after_rebuild(live)


async def test_a_grace_that_ended_by_the_rules_of_before_ends_again_as_it_did(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: G9, A41: then a charge that no read showed prolonged nothing
    mine = {"customer_reference": "cus_1"}
    async with live_in(database) as live:
        with monkeypatch.context() as before:
            before.setattr(Subscription, "grace_from", property(lambda sub: sub.past_due_since))
            await live.arrive(observed("subscription:S1", 1, {"status": "PAST_DUE", **mine}, at=live.clock.now()))
            await live.pass_time(13 * 86_400)
            renewed = said("subscription.renewed", "evt_1", at=live.clock.now(), id="S1", trust=Trust.READ)
            await live.arrive(renewed)
            await live.pass_time(2 * 86_400)
            await live.arrive(observed("subscription:S1", 2, {"status": "ACTIVE", **mine}, at=live.clock.now()))
        sent = [row["type"] for row in (await contents(live, [LEFT_ALONE[0]]))["outbox"]]
        changes = [type_ for type_ in sent if type_ in ("access.granted", "access.revoked")]
        assert changes == ["access.granted", "access.revoked", "access.granted"]
        await same_after_rebuild(live)


async def test_a_trail_that_ends_too_early_is_refused(sqlite_ledger: Database) -> None:
    """Also where a merchant's projection takes what was told: it is news all the same."""
    # case: G9, G12

    @handles("fulfilment.requested", transactional=True, name="shop:keeps")
    async def keeps(_: Event, __: Context) -> None: ...

    handler = declared(keeps)
    assert handler is not None
    shop = [replace(handler, plugin="shop")]
    async with live_in(sqlite_ledger, {"matching": "off"}, more=shop) as live:
        for name in ("A1", "A2"):
            await live.arrive(said("order.paid", f"evt_{name}", order_id=name, amount="9"))
            await live.pass_time(60)
        await rebuild(live, more=shop).run("default")
        async with live.database.transaction() as session:
            await session.execute(delete(AuditRow).where(AuditRow.__table__.c.subject == "order:A2"))
        before = await contents(live, OURS)
        with pytest.raises(RebuildDiffers, match="order_paid changed something on evt_A2, and the trail ends before"):
            await rebuild(live, more=shop).run("default")
        assert await contents(live, OURS) == before


@pytest.mark.parametrize("held", [0, 10_000], ids=["in a table", "in memory"])
async def test_a_worker_whose_clock_is_off_rebuilds_to_the_same_order(
    database: Database, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    # case: G9 (found by the property below): the answer came before the order that it is about was handled
    monkeypatch.setattr(told, "HELD_MAX", held)
    paid, answer, *_ = asked("default")
    late = {(paid.id, "fulfilment:order_paid"): 1}
    async with live_in(database, stumbles=late, skew=timedelta(seconds=-2)) as live:
        await live.arrive(paid)
        await live.pass_time(2, steps=2)
        await live.arrive(answer)
        await live.pass_time(2, steps=2)
        assert (await contents(live, [ORDERS]))["fulfilment_order"][0]["requested_at"] is not None
        await same_after_rebuild(live, DECISIONS)


async def test_a_checkout_counts_from_when_it_was_registered(sqlite_ledger: Database) -> None:
    # case: G9, F21
    async with live_in(sqlite_ledger, {"matching": "off"}) as live:
        await live.register("s1", order_id="A1", customer="c", expected_amount="10")
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="9"))
        await live.pass_time(5)
        (order,) = (await contents(live, [ORDERS]))["fulfilment_order"]
        assert (order["hold"], order["requested_at"]) == ("amount_mismatch", None)
        await same_after_rebuild(live)


PAID_LITTLE = {"order_id": "A1", "amount": "1"}
OF_ITS_SESSION = {"session_id": "s1", "amount": "10"}
SHOWN_PAID = observed("order:A1", 1, {"id": "so1", "order_id": "A1", "status": "PAID"})


@pytest.mark.parametrize(
    ("paid", "mode", "told"),
    [
        (PAID_LITTLE, "payment", [("amount_mismatch", True)]),
        (OF_ITS_SESSION, "payment", [("orphan_payment", False)]),
        (OF_ITS_SESSION, "subscription", [("orphan_payment", False)]),
        (None, "payment", []),
    ],
    ids=["an amount", "an order's payment", "a subscription's payment", "its first order"],
)
@pytest.mark.parametrize("ahead", ["who registers", "another worker"])
async def test_what_a_registration_led_to_is_done_again_behind_it(
    database: Database, paid: dict[str, Any] | None, mode: str, told: list[Any], ahead: str
) -> None:
    """Whoever's clock is ahead: its run notes nothing where what it found was written beside its word."""
    # case: G9, B33, F21
    async with live_in(database) as live, live_in(database) as other:
        if paid is not None:
            payment = observed("payment:p1", 2, {"id": "p1", "status": "SUCCEEDED", **paid})
            await live.arrive(*([SHOWN_PAID] if mode == "payment" else []), payment)
            await live.relay()
        live.clock.advance(60)
        other.clock.advance(61)
        if ahead == "another worker":
            await other.arrive(said("order.paid", "evt_9", order_id="A9", amount="5", at=other.clock.now()))
            await live.register("s9", order_id="A9")
        shop = other if ahead == "who registers" else live
        amount = "10" if mode == "payment" else None
        await shop.register("s1", order_id="A1", customer="c", expected_amount=amount, mode=mode)
        await live.relay()
        await live.pass_time(60)
        if paid is None:
            await live.arrive(replace(SHOWN_PAID, received_at=live.clock.now()))
        findings = (await contents(live, [fulfilment.FINDINGS]))["fulfilment_finding"]
        assert [(row["kind"], row["closed_at"] is None) for row in findings] == told
        await same_after_rebuild(live)


async def test_what_came_behind_a_registration_comes_behind_it_again(database: Database) -> None:
    """The clock of who registers is a second ahead, so that by time it came after all of it."""
    # case: G9, B33, U10
    async with live_in(database) as live, live_in(database) as shop:
        shop.clock.advance(1)
        await shop.register("s1", order_id="A1", customer="c")
        await live.relay()
        payment = {"id": "p1", "status": "SUCCEEDED", **OF_ITS_SESSION, "session_id": "s2"}
        await live.arrive(observed("payment:p1", 1, payment, at=live.clock.now()))
        shown = {"id": "s2", "mode": "payment", "order": {"order_id": "A1"}}
        await live.arrive(observed("session:s2", 2, shown, at=live.clock.now()))
        findings = (await contents(live, [fulfilment.FINDINGS]))["fulfilment_finding"]
        assert [row["subject"] for row in findings if row["closed_at"] is not None] == ["p1"]
        await same_after_rebuild(live)


@pytest.mark.parametrize("behind_s", [0.15, 0.25, 3600])
async def test_a_registration_that_a_slow_clock_took_makes_nobody_else_wait(
    database: Database, behind_s: float
) -> None:
    """Its run seems older than what came before it. That did not wait for its word."""
    # case: G9, B33, F21
    async with live_in(database) as live, live_in(database) as slow:
        await live.arrive(said("order.paid", "evt_0", order_id="A0", amount="5", at=live.clock.now()))
        live.clock.advance(7200)
        payment = {"id": "p2", "status": "SUCCEEDED", "order_id": "A2", "amount": "1"}
        await live.arrive(observed("payment:p2", 1, payment, at=live.clock.now()))
        live.clock.advance(0.1)
        paid = {"id": "so2", "order_id": "A2", "status": "PAID"}
        await live.arrive(observed("order:A2", 3, paid, at=live.clock.now()))
        await live.relay()
        live.clock.advance(0.1)
        await live.register("s1", order_id="A1", customer="c", expected_amount="10")
        slow.clock.advance(7200.2 - behind_s)
        await slow.relay()
        findings = (await contents(live, [fulfilment.FINDINGS]))["fulfilment_finding"]
        assert [(row["subject"], row["closed_at"] is None) for row in findings] == [("A2", False)]
        await same_after_rebuild(live)


async def test_an_old_history_that_contradicts_itself_is_rebuilt(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: G9, F21: before `terms_differ`, a later registration of a session replaced the earlier one
    monkeypatch.setattr(subjects, "contradicted", lambda *_: ())
    async with live_in(database, {"matching": "off"}) as live:
        for customer, amount in (("alice", "10"), ("bob", None)):
            live.clock.advance(1)
            now = live.clock.now()
            told: dict[str, Any] = {"session_id": "s1", "order_id": "A1", "mode": "payment", "customer": customer}
            told["expected_amount"] = amount
            async with database.transaction() as session:
                await say(session, REGISTERED, "A1", application="default", by=ACTOR, reason="as then", now=now,
                          data=told)  # fmt: skip
                await write_checkout(session, Checkout(application="default", **told), now)
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="50"))
        await live.pass_time(5)
        (order,) = (await contents(live, [ORDERS]))["fulfilment_order"]
        assert (order["customer"], order["requested_at"] is None) == ("bob", False)
        monkeypatch.undo()
        await same_after_rebuild(live)


async def test_what_a_seed_brought_stays_a_seed(sqlite_ledger: Database) -> None:
    # case: G9, B30
    async with live_in(sqlite_ledger) as live:
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="9"), plan=SEED)
        await live.pass_time(5)
        assert (await contents(live, [ORDERS]))["fulfilment_order"][0]["requested_at"] is not None
        await same_after_rebuild(live)


async def test_an_attempt_that_came_to_nothing_is_not_made_up_for(sqlite_ledger: Database) -> None:
    # case: G9
    async with live_in(sqlite_ledger) as live:
        release = own("fulfilment.released", "order:A1", {"by": "op"})
        await live.arrive(release)  # rejected: the order is unknown
        await live.arrive(said("order.paid", "evt_1", order_id="A1", trust=Trust.READ))
        await live.pass_time(5)
        await same_after_rebuild(live)


async def test_under_other_settings_what_was_requested_stays_so(sqlite_ledger: Database) -> None:
    # case: G9, F31
    async with live_in(sqlite_ledger, {"matching": "off"}) as live:
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="9"))
        await live.pass_time(1)
        await rebuild(live, {"fulfilment": {"matching": "on"}, "access": {}}).run("default")
        (order,) = (await contents(live, [ORDERS]))["fulfilment_order"]
        assert (order["requested_at"], order["hold"]) == (order["paid_at"], None)


@handles("fulfilment.requested", name="till:note", transactional=True)
async def _till(event: Event, ctx: Context) -> None:
    pass


@pytest.mark.parametrize(("was", "now"), [("off", "on"), ("on", "off")])
async def test_a_merchants_projection_of_requests_changes_none(sqlite_ledger: Database, was: str, now: str) -> None:
    # case: G9, F31
    till = declared(_till)
    assert till is not None
    async with live_in(sqlite_ledger, {"matching": was}, more=[till]) as live:
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="9"))
        await live.pass_time(1)
        before = [row["requested_at"] for row in (await contents(live, [ORDERS]))["fulfilment_order"]]
        with suppress(RebuildDiffers):
            await rebuild(live, {"fulfilment": {"matching": now}, "access": {}}, [till]).run("default")
        assert [row["requested_at"] for row in (await contents(live, [ORDERS]))["fulfilment_order"]] == before


@pytest.mark.parametrize("held", [0, 10_000], ids=["in a table", "in memory"])
async def test_under_other_settings_nothing_new_is_requested(
    database: Database, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    # case: G9, G6
    monkeypatch.setattr(told, "HELD_MAX", held)
    async with live_in(database, {"matching": "on"}) as live:
        await live.arrive(said("order.paid", "evt_1", order_id="A1", amount="9"))
        await live.pass_time(1)
        before = await contents(live, [*OURS, *LEFT_ALONE])
        with pytest.raises(
            RebuildDiffers, match=r"fulfilment\.requested by fulfilment:order_paid on evt_1 was never sent"
        ):
            await rebuild(live, {"fulfilment": {"matching": "off"}, "access": {}}).run("default")
        assert await contents(live, [*OURS, *LEFT_ALONE]) == before


async def test_two_workers_at_once_rebuild_to_the_same_orders(database: Database) -> None:
    # case: G9, F3
    async with live_in(database) as one, live_in(database) as other:
        other.clock.advance(-1)
        for number in range(6):
            id_ = f"A{number}"
            paid = said("order.paid", f"evt_{number}", order_id=id_, amount="10")
            await asyncio.gather(one.arrive(paid), other.arrive(unreadable(f"order:{id_}", 1)))
            word = own("fulfilment.released", f"order:{id_}", {"by": "op"})
            shown = observed(f"order:{id_}", 2, {"status": "PENDING", "amount": "9"})
            await asyncio.gather(one.arrive(shown), other.arrive(word))
        requested = [row["requested_at"] for row in (await contents(one, [ORDERS]))["fulfilment_order"]]
        assert len(requested) == 6
        assert None not in requested
        await same_after_rebuild(one, DECISIONS)


async def test_a_full_life_rebuilds_to_the_same_rows(database: Database) -> None:
    # case: G9
    async with live_in(database) as live:
        await live.register("s1", order_id="A1", customer="c", expected_amount="10")
        await live.arrive(
            said("order.paid", "evt_1", order_id="A1", amount="9"),
            said("checkout.session.completed", "evt_2", id="s1", order_id="A1"),
            observed("payment:p1", 1, {"id": "p1", "status": "SUCCEEDED", "order_id": "A1"}),
            observed("payment:p2", 2, {"id": "p2", "status": "SUCCEEDED", "order_id": "A1"}),
            said("subscription.created", "evt_3", id="S1", customer_reference="c"),
            said("order.paid", "evt_4", order_id="A2"),
            said("order.paid", "evt_5", order_id="A3"),
            unreadable("order:A3", 4),
            said("subscription.created", "evt_6", id="S2", customer_reference="d"),
            unreadable("subscription:S2", 5),
        )
        await live.pass_time(60)
        now = live.clock.now()
        await live.arrive(
            own("fulfilment.released", "order:A1", {"by": "op"}, at=now), unreadable("order:A2", 6, at=now)
        )
        await live.register("s3", order_id="A3")
        status = {"status": "PAST_DUE", "customer_reference": "c"}
        await live.arrive(observed("subscription:S1", 3, status, at=now))
        await live.arrive(own("access.held", "customer:c", {"by": "op"}, at=now, id_="drv_hold"))
        await live.pass_time(3 * 86_400)
        lifted = own("access.hold_lifted", "customer:c", {"id": "drv_hold"}, at=live.clock.now())
        await live.arrive(lifted)
        await live.pass_time(30 * 86_400)
        sent = [row["type"] for row in (await contents(live, [LEFT_ALONE[0]]))["outbox"]]
        changes = [type_ for type_ in sent if type_ in ("access.granted", "access.revoked")]
        assert changes == ["access.granted", "access.revoked", "access.granted", "access.revoked"]
        assert sent.count("fulfilment.requested") == 3
        assert not await live.unfinished()
        await same_after_rebuild(live)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def ledger(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("rebuild")
    database = Database(f"sqlite+aiosqlite:///{folder}/ledger.db")
    runner.run(schema.upgrade(database))
    yield database
    runner.run(database.stop())


_names = count()


def order_facts(application: str) -> list[Event]:
    """What may arrive about two orders; the second one is known by the service's id only, at first."""
    made: list[Event] = []
    for name, service in (("A1", "so1"), ("A2", "so2")):
        key = f"order:{name}"
        named: dict[str, Any] = {"id": service, "order_id": name} if name == "A1" else {"id": service}
        here: dict[str, Any] = {"application": application}
        made += [
            said("order.paid", f"evt_{name}_signed", amount="10", **named, **here),
            said("order.paid", f"evt_{name}_read", trust=Trust.READ, amount="9", **named, **here),
            said("order.expired", f"evt_{name}_expired", **named, **here),
            said("checkout.session.completed", f"evt_{name}_done", id=f"s_{name}", order_id=name, **here),
            unreadable(key, 1, **here),
            observed(key, 2, {"id": service, "status": "PENDING"}, **here),
            unreadable(key, 3, **here),
            observed(key, 4, {"id": service, "status": "PAID", "amount": "10"}, **here),
            observed(f"payment:p_{name}", 5, {"id": f"p_{name}", "status": "SUCCEEDED", "order_id": name}, **here),
            own("fulfilment.released", key, {"by": "op"}, **here),
            own("fulfilment.unfulfillable", key, {"reason": "none left"}, **here),
        ]
    return made


def money_facts(application: str) -> list[Event]:
    """What else may arrive about them: payments, and proofs that show one, some by the service's id alone."""
    made: list[Event] = []
    here: dict[str, Any] = {"application": application}
    for name, service in (("A1", "so1"), ("A2", "so2")):
        read = {"id": service, "status": "PAID", "amount": "10", "payment": {"id": f"r_{name}"}}
        by_service_id, by_ours = {"order": {"id": service}}, {"order_id": name}
        made += [
            observed(f"payment:q_{name}", 6, {"id": f"q_{name}", "status": "SUCCEEDED", **by_service_id}, **here),
            observed(f"payment:r_{name}", 7, {"id": f"r_{name}", "status": "SUCCEEDED", **by_ours}, **here),
            said("order.paid", f"evt_{name}_by_p", amount="10", id=service, payment_id=f"p_{name}", **here),
            said("order.paid", f"evt_{name}_by_z", id=service, order_id=name, payment_id=f"z_{name}", **here),
            observed(f"order:{name}", 8, read, **here),
        ]
    return made


def handlers_of(event: Event) -> list[str]:
    """The handlers of ours that may stumble on it."""
    return {
        "order.paid": ["fulfilment:order_paid"],
        "order.expired": ["fulfilment:order_expired"],
        "order.observed": ["fulfilment:order_observed"],
        "order.unreadable": ["fulfilment:order_unreadable"],
        "payment.observed": ["fulfilment:payment_observed"],
        "fulfilment.released": ["fulfilment:operator"],
        "checkout.session.completed": ["fulfilment:checkout_session"],
    }.get(event.type, ["access:subscription"] if event.type.startswith("subscription.") else [])


@pytest.mark.slow
@pytest.mark.timeout(300 + HISTORIES * 5)
@settings(
    max_examples=HISTORIES,
    derandomize="CONSUMER_TEST_HISTORIES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_order_of_handling_orders_rebuilds_to_the_same_rows(
    runner: asyncio.Runner, ledger: Database, data: Any
) -> None:
    # case: G9, G12
    application = f"app{next(_names)}"
    all_of_them = enumerate(order_facts(application) + money_facts(application))
    facts = [replace(one, received_at=one.received_at + timedelta(milliseconds=nth)) for nth, one in all_of_them]
    arrivals = data.draw(st.lists(st.lists(st.sampled_from(facts), min_size=1, max_size=7), min_size=1, max_size=5))
    candidates = [(event.id, name) for event in facts for name in handlers_of(event)]
    candidates += [
        (derived_id(application, READ_DUE, f"order:{name}", "read"), "fulfilment:read_due") for name in ("A1", "A2")
    ]
    stumbles = data.draw(st.dictionaries(st.sampled_from(candidates), st.integers(1, 2), max_size=4))

    async def run() -> None:
        matching = data.draw(st.sampled_from(["auto", "off", "on", "read"]))
        plugins = {"fulfilment": {"matching": matching}, "access": {}}
        live = Live(ledger, plugins, application=application, stumbles=stumbles)
        try:
            for batch in arrivals:
                if data.draw(st.integers(0, 3)) == 0:
                    name = data.draw(st.sampled_from(["A1", "A2"]))
                    amount = data.draw(st.sampled_from([None, "10", "9"]))
                    with suppress(TermsDiffer):  # of the same session: refused, nothing written
                        await live.register(f"s_{name}", order_id=name, customer="c", expected_amount=amount)
                await live.arrive(*batch, plan=data.draw(st.sampled_from([None, None, None, SEED])))
                match data.draw(st.sampled_from(["nothing", "relay", "make_up", "wait"])):
                    case "relay":
                        await live.relay()
                    case "make_up":
                        await live.make_up()
                    case "wait":
                        await live.pass_time(2, steps=2)
            if data.draw(st.booleans()):
                await live.pass_time(30)
            await same_after_rebuild(live)
        finally:
            await live.close()

    runner.run(run())


@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_any_order_of_handling_subscriptions_rebuilds_to_the_same_rows(
    runner: asyncio.Runner, ledger: Database, service: Service, data: Any
) -> None:
    # case: G9, G12
    application = f"app{next(_names)}"
    happened = webhooks(service, application, thin=data.draw(st.booleans()))
    happened += data.draw(st.lists(st.sampled_from(denials(service, application)), max_size=2, unique=True))
    order = data.draw(st.permutations(happened + data.draw(st.lists(st.sampled_from(happened), max_size=3))))
    last = reconcile(service, application)
    candidates = [(event.id, name) for event in [*happened, *last] for name in handlers_of(event)]
    stumbles = data.draw(st.dictionaries(st.sampled_from(candidates), st.integers(1, 2), max_size=3))

    async def run() -> None:
        live = Live(ledger, PLUGINS, application=application, stumbles=stumbles)
        live.clock.advance((service.now - live.clock.now()).total_seconds())
        try:
            half = data.draw(st.integers(0, len(order)))
            await live.arrive(*order[:half])
            if data.draw(st.booleans()):
                await live.pass_time(data.draw(st.sampled_from([1, 5])), steps=2)
            await live.arrive(*order[half:])
            await live.relay()
            await live.arrive(*last)
            await live.pass_time(20 * 86_400, steps=5)
            await same_after_rebuild(live)
        finally:
            await live.close()

    runner.run(run())


@pytest.mark.parametrize("answered_after_s", [1.0, 5.0], ids=["timer withdrawn", "timer gone off"])
async def test_a_second_payment_of_an_order_that_was_asked_about_is_rebuilt(
    sqlite_ledger: Database, answered_after_s: float
) -> None:
    """The timer that the first one asked for is withdrawn by the answer, so no row says that it was."""
    # case: G10
    async with live_in(sqlite_ledger) as live:
        for number in (1, 2):
            await live.arrive(said("order.paid", f"evt_{number}", order_id="A1", amount="10", payment_id=f"p{number}"))
            live.clock.advance(1)
        await live.pass_time(answered_after_s)
        await live.arrive(observed("order:A1", 1, {"status": "PAID", "order_id": "A1", "payment_id": "p1"}))
        await live.pass_time(5)
        assert len((await contents(live, OURS))["fulfilment_payment"]) == 2
        await same_after_rebuild(live)
