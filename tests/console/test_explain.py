"""Explain: why, and what comes next."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from consumer.console.alarms.unread import Unread, is_read, unread
from consumer.console.answers import answer
from consumer.console.cure import command, redrive, replay_command
from consumer.console.explain import explain_customer, explain_order, explain_subscription
from consumer.console.operators.words import say
from consumer.errors import NotFound
from consumer.ledger import Database, leases
from consumer.ledger.handling import attempts, handlers, runs
from consumer.ledger.handling.attempts import Attempt
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import DeadLetterRow, RunStatus
from consumer.plugin import Context, Event, Handler
from handlers.access.policy import Policy
from tests.contract.ledger.facts import HANDLER, run, store
from tests.support.handling.projections import START, Projections, observed, own, said, unreadable


async def test_an_order_says_why_it_waits_and_for_what(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50, F21
    said_ = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", said_))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START + timedelta(minutes=1)))
    async with sqlite_ledger.reading() as session:
        found = await explain_order(session, "default", "A1")
        with pytest.raises(NotFound):
            await explain_order(session, "default", "A2")
    assert found["state"]["hold"] == "amount_mismatch"
    assert [(entry["code"], entry["event_id"]) for entry in found["timeline"] if "trust" in entry] == [
        ("checkout.registered", "drv_checkout.registered_order:A1_1767225600.0"),
        ("order.paid", "evt_1"),
    ]
    assert [entry["code"] for entry in found["next"]] == ["read", "held.amount_mismatch"]
    answer(found)


async def test_what_was_found_is_told_with_who_settled_it(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50, F21, F28
    later = START + timedelta(minutes=1)
    said_ = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", said_))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=later))
    paid = {"status": "SUCCEEDED", "order_id": "A1"}
    await projections.feed(observed("payment:p1", 1, {"id": "p1"} | paid))
    await projections.feed(observed("payment:p2", 2, {"id": "p2"} | paid))
    async with sqlite_ledger.transaction() as session:
        about: dict[str, Any] = {"application": "default", "by": "ada", "now": later}
        await say(session, "fulfilment.released", "A1", reason="a voucher", **about)
        refunded = {"kind": "duplicate_payment"}
        await say(session, "fulfilment.finding_closed", "A1", reason="refunded", data=refunded, **about)
    async with sqlite_ledger.reading() as session:
        waits = (await explain_order(session, "default", "A1"))["next"]
    await projections.pass_time(minutes=2)
    async with sqlite_ledger.reading() as session:
        found = await explain_order(session, "default", "A1")
    told = [(one["code"], one["finding"]) for one in found["timeline"] if one["code"].startswith("finding.")]
    assert sorted(told) == [
        ("finding.closed", "amount_mismatch"),
        ("finding.closed", "duplicate_payment"),
        ("finding.opened", "amount_mismatch"),
        ("finding.opened", "duplicate_payment"),
    ]
    closed = {one["finding"]: one for one in found["timeline"] if one["code"] == "finding.closed"}
    assert (closed["duplicate_payment"]["by"], closed["duplicate_payment"]["reason"]) == ("ada", "refunded")
    assert closed["amount_mismatch"]["reason"] == "its cause is gone"
    held, double = [one for one in waits if one["at"] is None]
    assert (held["code"], double["code"]) == ("held.amount_mismatch", "finding.duplicate_payment"), "the hold is first"
    printed = "consumer say fulfilment.released A1 --set hold=amount_mismatch --application default --reason …"
    assert held["waits"] == f"an operator: {printed}", "it acts on what is told here, as a page's button does"
    assert held["detail"]["expected_amount"] == "10"
    assert (
        re.sub(r"--seen [0-9a-f]{16} ", "--seen X ", double["waits"])
        == "an operator: consumer findings close A1 duplicate_payment --seen X --application default --reason …"
    ), "so does this"
    codes = [(one["code"], one.get("by")) for one in found["timeline"]]
    spoken, handled = codes.index(("fulfilment.released", "ada")), codes.index(("fulfilment.released", None))
    assert spoken < handled, "what a person said comes before the event that it became"
    answer(found)


def test_an_id_like_an_option_stands_behind_the_options() -> None:
    assert command("consumer say x", "A 1", options="--reason …") == "consumer say x 'A 1' --reason …"
    assert command("consumer say x", "-1", "kind", options="--reason …") == "consumer say x --reason … -- -1 kind"
    assert command("consumer explain order", "A1") == "consumer explain order A1"


# case: G8
def test_a_command_about_what_is_one_shop_s_names_it() -> None:
    """The same order id, the same event id may be another shop's, too."""
    assert redrive("evt_1", "shop:ship", "far") == (
        "consumer dead redrive --event evt_1 --handler shop:ship --application far --reason …"
    )
    assert redrive("evt_1", "ship") == (
        "consumer dead redrive --event evt_1 --handler ship --application default --reason …"
    )
    told = replay_command("shop:ship", order="A 1", application="far")
    assert told == "consumer replay plan --handler shop:ship --order 'A 1' --application far"


async def test_a_command_to_be_copied_is_one_command(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50
    order_id = "A1; echo $HOME"
    said_ = {"session_id": "s1", "order_id": order_id, "expected_amount": "10"}
    await projections.feed(own("checkout.registered", f"order:{order_id}", said_))
    await projections.feed(said("order.paid", "evt_1", order_id=order_id, amount="9"))
    async with sqlite_ledger.reading() as session:
        found = await explain_order(session, "default", order_id)
    [held] = [entry for entry in found["next"] if entry["code"] == "held.amount_mismatch"]
    command = held["waits"].partition(": ")[2]
    assert shlex.split(command)[:4] == ["consumer", "say", "fulfilment.released", order_id]


async def test_a_subscription_says_its_policy_and_its_next_read(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A50
    await projections.feed(said("subscription.past_due", "evt_1", id="S1", customer_reference="c"))
    await projections.feed(
        observed("subscription:S1", 1, {"status": "PAST_DUE", "price_id": "p", "customer_reference": "c"})
    )
    policy = Policy(past_due_by_price={"p": "grace:3d"})
    async with sqlite_ledger.reading() as session:
        found = await explain_subscription(session, "default", "S1", policy, START)
    assert found["policy"]["past_due"] == "grace:3d"
    assert found["state"]["until"] == START + timedelta(days=3)
    codes = [entry["code"] for entry in found["next"]]
    assert codes == ["access.granted", "read", "access.subscription_due", "access.customer_due"], "the customer's, too"
    answer(found)


async def test_a_customer_says_every_source_and_every_deadline(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A50, A42
    await projections.feed(observed("subscription:S1", 1, {"status": "PAST_DUE", "customer_reference": "c"}))
    await projections.feed(own("access.held", "customer:c", {"by": "op", "reason": "dispute"}, id_="drv_hold"))
    async with sqlite_ledger.reading() as session:
        found = await explain_customer(session, "default", "c", Policy(), START)
    assert found["state"]["allowed"] is False
    assert found["state"]["entitlements"][0]["reasons"] == ["held:drv_hold"]
    assert [(one["kind"], one["reason"], one["by"]) for one in found["sources"]] == [("hold", "dispute", "op")]
    assert [one["id"] for one in found["subscriptions"]] == ["S1"]
    assert "access.customer_due" in [entry["code"] for entry in found["next"]]
    codes = [entry["code"] for entry in found["timeline"]]
    assert "access.held" in codes
    [revoked] = [entry for entry in found["timeline"] if entry["code"] == "access.revoked"]
    assert revoked["by"] == "access:source_added"
    assert revoked["after"]["reasons"] == ["held:drv_hold"]
    answer(found)


async def test_a_subscription_says_what_stops_its_customers_access_and_the_cure(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A36, A42, A50
    held = own("access.held", "customer:c", {"by": "ann", "reason": "chargeback"}, application="other")
    over = own("access.held", "customer:c", {"by": "ann", "until": "2026-01-02T00:00:00Z"}, application="other")
    live = {"status": "ACTIVE", "customer_reference": "c"}
    await projections.feed(observed("subscription:S1", 1, live, application="other"), held, over)
    await projections.feed(observed("subscription:S2", 2, {"status": "ACTIVE"}, application="other"))
    now = START + timedelta(days=1)
    async with sqlite_ledger.reading() as session:
        found = await explain_subscription(session, "other", "S1", Policy(), now)
        of_customer = await explain_customer(session, "other", "c", Policy(), now)
        nobodys = await explain_subscription(session, "other", "S2", Policy(), now)
    assert (found["state"]["allowed"], found["state"]["reason"]) == (False, f"held:{held.id}")
    [stopped] = [entry for entry in found["next"] if entry["code"] == "access.held"]
    assert stopped in of_customer["next"]
    assert (stopped["by"], stopped["reason"]) == ("ann", "chargeback")
    lift = f"consumer say access.hold_lifted c --set id={held.id} --application other --reason …"
    assert stopped["waits"] == f"an operator: {lift}"
    attach = "consumer say access.customer_attached S2 --set customer=… --application other --reason …"
    assert [entry["waits"] for entry in nobodys["next"] if "waits" in entry] == [f"an operator: {attach}"]


async def test_a_customer_is_told_which_order_is_stuck(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50, F21
    for number in (1, 2):
        registered = {"session_id": f"s{number}", "order_id": f"A{number}", "customer": "c", "expected_amount": "9"}
        await projections.feed(own("checkout.registered", f"order:A{number}", registered))
        await projections.feed(observed(f"order:A{number}", number, {"status": "PAID", "amount": "9"}))
        await projections.relay()
    await failed(sqlite_ledger, "order:A1")
    async with sqlite_ledger.reading() as session:
        found = await explain_customer(session, "default", "c", Policy(), START)
    told = {(one["code"], one["order_id"]) for one in found["next"]}
    assert ("run.dead", "A1") in told
    assert ("no_handler", "A2") in told
    answer(found)


async def test_a_customer_says_what_comes_next_for_each_subscription_and_each_held_order(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A50, F21, G7
    for customer, number in (("c", 1), ("somebody else", 3)):
        order = f"order:A{number}"
        registered = {"session_id": f"s{number}", "order_id": f"A{number}", "customer": customer}
        record = {"status": "ACTIVE", "customer_reference": customer}
        await projections.feed(
            own("checkout.registered", order, registered | {"expected_amount": "10"}),
            said("order.paid", f"evt_{number}", order_id=f"A{number}", amount="9"),
            observed(f"subscription:S{number}", number, record),
            observed(f"subscription:S{number + 1}", number + 1, record),
            unreadable(f"subscription:S{number + 1}", 10 + number),
        )
    await failed(sqlite_ledger, "subscription:S1")
    await projections.relay()
    async with sqlite_ledger.reading() as session:
        found = await explain_customer(session, "default", "c", Policy(), START)
        with pytest.raises(NotFound):
            await explain_customer(session, "other", "c", Policy(), START)
    lease = START + Policy().lease
    told = [(one["at"], one["code"], one.get("subscription_id") or one.get("order_id")) for one in found["next"]]
    assert sorted(told, key=str) == sorted(
        [
            (START, "read", "S1"),
            (START, "read", "A1"),
            (START, "run.dead", "S1"),
            (lease, "access.subscription_due", "S1"),
            (lease, "access.subscription_due", "S2"),
            (None, "finding.unreadable_subscription", "S2"),
            (None, "held.amount_mismatch", "A1"),
        ],
        key=str,
    )
    assert [one["at"] is None for one in found["next"]] == [False] * 5 + [True] * 2, "what has no time comes last"
    answer(found)


async def test_a_run_that_failed_says_why_and_in_which_line(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50, R4
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    said_ = {"code": "handler_failed", "reason": "ValueError: no shelf"}
    about = {"application": "default", "event_id": "evt_1", "handler": "shop:told"}
    run = Run(**about, seq=1, key="order:A1", blocking=True, status=RunStatus.DEAD, next_at=START, attempts=8, **said_)
    trace = "plug/warehouse.py:6 < plug/warehouse.py:2"
    tries = [
        Attempt(**about, number=number, outcome="dead", fingerprint=None, code_version="1", worker="w", trace=where,
                started_at=START + timedelta(seconds=number), finished_at=START + timedelta(seconds=number), **said_)
        for number, where in ((7, "plug/other.py:1"), (8, trace))
    ]  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, [run], START)
        await attempts.add(session, tries)
    async with sqlite_ledger.reading() as session:
        found = await explain_order(session, "default", "A1")
    [told] = [one for one in found["next"] if one["code"] == "run.dead"]
    assert told["error"] == "handler_failed"
    assert (told["reason"], told["place"]) == ("ValueError: no shelf", "plug/warehouse.py:6")
    assert [one["reason"] for one in found["timeline"] if one["code"] == "run.dead"] == ["ValueError: no shelf"]
    answer(found)


# case: A50, F21, G7
async def test_a_customer_of_many_orders_is_told_what_waits_of_any_of_them(database: Database) -> None:
    """The newest are shown, those that were never paid last, on either database; the rest are named as left out, and
    what is dead or found of them is told all the same."""
    plugins = Projections(
        database, "handlers.fulfilment.handler", options={"handlers.fulfilment.handler": {"matching": "off"}}
    )
    for number in range(25):
        mine = {"session_id": f"s{number}", "order_id": f"A{number}", "customer": "c", "expected_amount": "9"}
        await plugins.feed(own("checkout.registered", f"order:A{number}", mine))
    for number in range(3):
        await plugins.feed(said("order.paid", f"evt_{number}", order_id=f"A{number}", amount="9"))
    await plugins.relay()
    later = START + timedelta(hours=1)
    for number in range(30, 50):
        newer = {"session_id": f"s{number}", "order_id": f"A{number}", "customer": "c"}
        await plugins.feed(own("checkout.registered", f"order:A{number}", newer))
        await plugins.feed(said("order.paid", f"evt_{number}", order_id=f"A{number}", amount="9", at=later))
    await failed(database, "order:A1")
    double = {"status": "SUCCEEDED", "order_id": "A2"}
    await plugins.feed(*[observed(f"payment:p{one}", one, {"id": f"p{one}"} | double) for one in (1, 2)])
    async with database.reading() as session:
        found = await explain_customer(session, "default", "c", Policy(), START)
    assert {one["status"] for one in found["orders"]} == {"PAID"}, "what nobody paid for pushes out nothing"
    assert not {"A0", "A1", "A2"} & {one["order_id"] for one in found["orders"]}, "older than those shown"
    told = {(one["code"], one.get("order_id")) for one in found["next"]}
    assert {("run.dead", "A1"), ("no_handler", "A0"), ("finding.duplicate_payment", "A2")} <= told
    assert found["orders_shown"] == "the newest 20 of 45"
    answer(found)


async def test_a_run_that_asked_for_later_says_why(sqlite_ledger: Database, projections: Projections) -> None:
    """It costs no attempt, so that none is counted: its reason was left out."""
    # case: A50
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    run = Run(application="default", event_id="evt_1", handler="shop:told", seq=1, key="order:A1", blocking=True,
              status=RunStatus.RETRYING, next_at=START, code="retry_later", reason="no shelf is free")  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, [run], START)
    async with sqlite_ledger.reading() as session:
        found = await explain_order(session, "default", "A1")
    [told] = [one for one in found["next"] if one["code"] == "run.retrying"]
    assert (told["error"], told["reason"]) == ("retry_later", "no shelf is free")


async def failed(database: Database, key: str) -> None:
    """A run of this key that is dead."""
    run = Run(application="default", event_id="evt_x", handler="shop:told", seq=1, key=key, blocking=True,
              status=RunStatus.DEAD, next_at=START)  # fmt: skip
    async with database.transaction() as session:
        await runs.add(session, [run], START)


async def test_a_read_that_nobody_will_do_says_so(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50, I15
    await projections.feed(said("subscription.renewed", "evt_1", id="S1", customer_reference="c"))
    async with sqlite_ledger.reading() as session:
        for has_reader, error in ((True, None), (False, "no_credentials")):
            by_id = await explain_subscription(session, "default", "S1", Policy(), START, is_read=has_reader)
            by_customer = await explain_customer(session, "default", "c", Policy(), START, is_read=has_reader)
            for found in (by_id, by_customer):
                assert [one["error"] for one in found["next"] if one["code"] == "read"] == [error]


async def test_reads_that_wait_for_credentials_are_counted_unless_somebody_reads(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: I15, A50
    later = START + timedelta(days=1)
    for number, application in enumerate(["club", "club", "default"]):
        event = said("subscription.renewed", f"evt_{number}", id=f"S{number}", application=application)
        await projections.feed(event)
    async with sqlite_ledger.reading() as session:
        assert await unread(session, ["club", "none"], later) == [Unread(application="club", count=2, oldest_at=START)]
    async with sqlite_ledger.transaction() as session:
        lease = await leases.acquire(session, "sync/club", "a process with credentials", later, 15)
        assert lease is not None
        assert await unread(session, ["club"], later) == []
        assert await is_read(session, "club", later + timedelta(seconds=60))
        assert not await is_read(session, "club", later + timedelta(minutes=5))
        await leases.release(session, lease)
        assert not await is_read(session, "club", later)


@pytest.mark.parametrize(("attempts", "told"), [(0, ["run.dead"]), (1, ["run.dead", "run.retrying"])])
async def test_what_was_redriven_and_not_tried_since_did_not_fail_again(
    sqlite_ledger: Database, projections: Projections, attempts: int, told: list[str]
) -> None:
    """Its handler is paused: the run still says what it died of, and nothing has happened since."""
    # case: A50
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    about: dict[str, Any] = {"application": "default", "event_id": "evt_1", "handler": "shop:told"}
    why: dict[str, Any] = {"code": "handler_failed", "reason": "ValueError: no shelf"}
    later = START + timedelta(minutes=5)
    run = Run(**about, seq=1, key="order:A1", blocking=True, status=RunStatus.RETRYING, next_at=later,
              attempts=attempts, **why)  # fmt: skip
    death = DeadLetterRow(**about, died_at=START, blocking=True, attempts=8, **why)
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, [run], later)
        session.add(death)
        await session.flush()
        found = await explain_order(session, "default", "A1")
    assert [one["code"] for one in found["timeline"] if one["code"].startswith("run.")] == told


# case: A50, R12
async def test_what_was_redriven_and_died_again_is_told_twice(
    sqlite_ledger: Database, projections: Projections
) -> None:
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    about: dict[str, Any] = {"application": "default", "event_id": "evt_1", "handler": "shop:told"}
    later = START + timedelta(minutes=5)
    run = Run(**about, seq=1, key="order:A1", blocking=True, status=RunStatus.DEAD, attempts=8, code="handler_failed",
              reason="ValueError: full")  # fmt: skip
    died = ((START, "ValueError: no shelf"), (later, "ValueError: full"))
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, [run], later)
        for at, reason in died:
            session.add(DeadLetterRow(**about, died_at=at, blocking=True, attempts=8, reason=reason))
            await session.flush()
        found = await explain_order(session, "default", "A1")
    told = [one for one in found["timeline"] if one["code"] == "run.dead"]
    assert [(one["at"], one["reason"]) for one in told] == list(died)


# case: A50, G8, R11
async def test_orders_of_one_shop_do_not_wait_for_the_warehouse_of_another(
    sqlite_ledger: Database, projections: Projections
) -> None:
    handler = Handler(name=HANDLER, types=("*",), function=nothing)
    for shop in ("far", "near"):
        await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", application=shop))
        await store(sqlite_ledger, replace(run(1, key="order:A1"), application=shop))
    await store_waiting(sqlite_ledger, handler, handlers.only(["far", "further"], "gaierror: no such name"))
    waits = f"handler {HANDLER} waits since {START:%Y-%m-%d %H:%M:%S}: "
    assert await waits_told(sqlite_ledger) == {"far": f"{waits}only far, further: gaierror: no such name", "near": None}
    await store_waiting(sqlite_ledger, handler, "gaierror: no such name")
    assert await waits_told(sqlite_ledger) == dict.fromkeys(("far", "near"), f"{waits}gaierror: no such name")
    await store_waiting(sqlite_ledger, handler, handlers.only(["far"], "refused"))
    async with sqlite_ledger.transaction() as session:
        await handlers.pause(session, HANDLER, by="ann", reason="it ships twice", now=START)
    told = await waits_told(sqlite_ledger)
    assert told["far"] == told["near"]
    assert "is paused" in (told["near"] or "")


# case: A50, G8, H9
async def test_orders_of_one_shop_do_not_wait_for_the_pause_of_another(
    sqlite_ledger: Database, projections: Projections
) -> None:
    for shop in ("far", "near"):
        await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", application=shop))
        await store(sqlite_ledger, replace(run(1, key="order:A1"), application=shop))
    async with sqlite_ledger.transaction() as session:
        await handlers.register(session, [Handler(name=HANDLER, types=("*",), function=nothing)], START)
        await handlers.pause(session, HANDLER, by="ann", reason="it sells junk", now=START, application="far")
    told = f"handler {HANDLER} is paused for far since {START:%Y-%m-%d %H:%M:%S} by ann: it sells junk; "
    told += f"consumer handlers resume {HANDLER} --application far --reason …"
    assert await waits_told(sqlite_ledger) == {"far": told, "near": None}
    async with sqlite_ledger.transaction() as session:
        await runs.claim(session, handler=HANDLER, worker="w", limit=9, now=START + timedelta(days=999), lease_s=9)
    assert await waits_told(sqlite_ledger) == {"far": told, "near": None}, "also when a claim has put it aside"


async def nothing(event: Event, ctx: Context) -> None:
    """Nothing."""


async def store_waiting(database: Database, handler: Handler, reason: str) -> None:
    async with database.transaction() as session:
        await handlers.register(session, [handler], START)
        await handlers.set_waiting(session, handler.name, since=START, reason=reason)


async def waits_told(database: Database) -> dict[str, str | None]:
    """What the run of each shop's order is said to wait for."""
    told: dict[str, str | None] = {}
    async with database.reading() as session:
        for shop in ("far", "near"):
            found = await explain_order(session, shop, "A1")
            [told[shop]] = [one.get("waits") for one in found["next"] if one.get("by") == HANDLER]
    return told
