"""Money and access that are as they should be are explained to the last unit; what is planted is named, and alone."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main

from consumer.cli.tree import tree
from consumer.console.invariants import access
from consumer.console.invariants.cures import CURES, LOST_ACCESS, LOST_ROW, problem
from consumer.console.invariants.report import usdc
from consumer.ledger import Database
from handlers.access.policy import Policy
from handlers.access.subscription import ENDED, Subscription
from tests.console.invariants.shop import NOW, Shop, healthy
from tests.support.handling.projections import START, said

Plant = Callable[[Shop], Awaitable[None]]


@pytest.fixture(scope="module")
def healthy_file(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("healthy") / "ledger.db"
    shutil.copyfile(sqlite_template, path)

    async def make() -> None:
        database = Database(f"sqlite+aiosqlite:///{path}")
        await healthy(database)
        await database.stop()

    asyncio.run(make())
    return path


@pytest.fixture
async def shop(healthy_file: Path, tmp_path: Path) -> AsyncIterator[Shop]:
    for file in healthy_file.parent.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    found = Shop(database)
    found._version = 1000
    yield found
    await database.stop()


async def test_every_payment_is_in_one_class_and_nothing_is_left(database: Database) -> None:
    # case: F28, F29, B33, A22, A42
    found = await (await healthy(database)).check()
    assert found.problems == []
    assert found.residual == 0
    sums = {name.value: (one.payments, usdc(one.micro)) for name, one in found.sums.items() if one.payments}
    assert sums == {
        "fulfilled": (3, "50.000001"), "late": (1, "25"), "due": (1, "25"), "given_up": (2, "50"), "held": (1, "25"),
        "unfulfillable": (2, "50"), "duplicate": (1, "25"), "orphan": (2, "50"), "by_hand": (1, "25"),
        "period": (7, "70"), "after_end": (1, "10"), "before": (1, "0"),
    }  # fmt: skip
    assert (found.without_amount, found.unread) == (1, 1), "of the first walk only the state is kept"
    assert found.live == {"access": 2, "unresolved_subscriber": 1, "unmapped_price": 1, "held": 1}
    assert found.grants == {"active": 3, "complimentary": 1}


@pytest.mark.parametrize("ships", [None, "skipped"], ids=["no plugin yet", "a plugin was there"])
async def test_what_a_seed_took_in_is_history_and_waits_for_no_handler(database: Database, ships: str | None) -> None:
    # case: B30
    shop = Shop(database)
    await shop.paid("old", ships=ships)
    await shop.sql("UPDATE outbox SET plan = 'seed'")
    found = await shop.check()
    assert (found.problems, found.residual) == ([], 0)
    assert {name.value: one.payments for name, one in found.sums.items() if one.payments} == {"before": 1}


def sql(*statements: str) -> Plant:
    async def plant(shop: Shop) -> None:
        await shop.sql(*statements)

    return plant


async def unknown_subscription_pays(shop: Shop) -> None:
    await shop.pays("pay_unknown", None, "10.00", subscription_id="sub_unknown")


async def pays_too_little(shop: Shop) -> None:
    await shop.read("order", "cheap", order_id="cheap", status="PAID", amount="25.00")
    await shop.pays("pay_cheap", "cheap", "24.999999")
    await shop.runs("cheap", "succeeded")


async def pays_less_than_registered(shop: Shop) -> None:
    """Of an order that names no amount itself; it is shipped, and its finding says so."""
    terms = {"session_id": "ses_cheap", "order_id": "cheap", "expected_amount": "25.00"}
    await shop.say("checkout.registered", "order:cheap", **terms)
    await shop.read("order", "cheap", order_id="cheap", status="PAID")
    await shop.pays("pay_cheap", "cheap", "24.999999")
    await shop.runs("cheap", "succeeded")


async def pays_less_than_registered_and_nobody_sees_it(shop: Shop) -> None:
    await pays_less_than_registered(shop)
    await shop.sql("DELETE FROM fulfilment_finding WHERE subject = 'cheap'")


async def request_was_never_sent(shop: Shop) -> None:
    await shop.paid("lost")
    await shop.sql(
        "DELETE FROM outbox WHERE key = 'order:lost'", "DELETE FROM runs WHERE key = 'order:lost'",
        "DELETE FROM events WHERE key = 'order:lost' AND type = 'fulfilment.requested'",
        "UPDATE fulfilment_order SET requested_at = '2025-12-31 00:00:00' WHERE order_id = 'lost'",
    )  # fmt: skip


async def dies(shop: Shop) -> None:
    await shop.paid("sad", ships="dead")


async def nobody_ships(shop: Shop) -> None:
    await shop.paid("alone", ships=None)


async def only_statistics_took_it(shop: Shop) -> None:
    await shop.paid("alone", ships=None)
    await shop.runs("alone", "succeeded", handler="stats:count")
    await shop.sql(
        "INSERT INTO handlers (name, plugin, types, transactional, fulfils, code_version, first_seen_at, last_seen_at) "
        "VALUES ('stats:count', 'stats', '', false, false, '', '2026-01-01 00:00:00', '2026-01-01 00:00:00')"
    )


async def asked_for_hours(shop: Shop) -> None:
    await shop.sql(
        "UPDATE fulfilment_order SET hold = 'asked', requested_at = NULL WHERE order_id = 'due'",
        "DELETE FROM runs WHERE key = 'order:due'",
    )


async def paid_at_the_service(shop: Shop) -> None:
    await shop.read("order", "A9", order_id="A9", status="PAID", amount="1.00")
    await shop.sql("DELETE FROM fulfilment_order WHERE order_id = 'A9'")


async def requested_again(shop: Shop) -> None:
    await shop.sql(
        "INSERT INTO events (application, id, type, key, trust, source, raw, received_at, recorded_at, delivery_id) "
        "SELECT application, 'drv_other', type, key, trust, source, raw, received_at, recorded_at, delivery_id "
        "FROM events WHERE key = 'order:A1' AND type = 'fulfilment.requested'"
    )


async def grace_is_over(shop: Shop) -> None:
    since = START - timedelta(days=20)
    await shop.sql(
        f"UPDATE access_subscription SET status = 'PAST_DUE', past_due_since = '{since:%Y-%m-%d %H:%M:%S}.000000' "
        "WHERE subscription_id = 'sub_1'",
        f"UPDATE access_customer SET as_of = '{since:%Y-%m-%d %H:%M:%S}.000000' WHERE customer = 'cus_1'",
    )


CLOSED = "closed_at = '2026-01-01 00:00:00.000000', closed_by = 'system'"
PLANTED: dict[str, tuple[str, str, Plant]] = {
    "a payment's row is gone": (
        "payment_unrecorded", "pay_orphan", sql("DELETE FROM fulfilment_payment WHERE payment_id = 'pay_orphan'")),
    "a finding of orphan money is gone": (
        "orphan_unseen", "pay_orphan", sql("DELETE FROM fulfilment_finding WHERE subject = 'pay_orphan'")),
    "orphan money was closed by nobody": (
        "orphan_unseen", "pay_unpaid", sql(f"UPDATE fulfilment_finding SET {CLOSED} WHERE subject = 'unpaid'")),
    "a finding of a second payment is gone": (
        "duplicate_unseen", "pay_twice_again", sql("DELETE FROM fulfilment_finding WHERE kind = 'duplicate_payment'")),
    "an unknown subscription pays": ("unknown_subscription_paid", "pay_unknown", unknown_subscription_pays),
    "a payment is a millionth too small": ("underpaid", "pay_cheap", pays_too_little),
    "less than registered, and nobody sees it": (
        "underpaid", "pay_cheap", pays_less_than_registered_and_nobody_sees_it),
    "the service says paid, the row is gone": ("paid_not_taken", "A9", paid_at_the_service),
    "paid here, pending there": (
        "paid_here_only", "A1", sql("UPDATE observations SET state = 'PENDING||||' WHERE object_id = 'A1'")),
    "requested, and not paid": (
        "requested_unpaid", "A1", sql(
            "UPDATE fulfilment_order SET paid_at = NULL WHERE order_id = 'A1'",
            "UPDATE observations SET state = 'PENDING||||' WHERE object_id = 'A1'",
            "DELETE FROM observations WHERE object_id = 'pay_A1'")),
    "paid, and forgotten": (
        "paid_not_requested", "due", sql("UPDATE fulfilment_order SET requested_at = NULL WHERE order_id = 'due'")),
    "requested twice": ("requested_twice", "A1", requested_again),
    "one order there, requested as two here": (
        "requested_under_two_ids", "A1", sql(
            "UPDATE fulfilment_order SET service_order_id = 'ord_1' WHERE order_id IN ('A1', 'due')")),
    "shipped, and not requested": (
        "fulfilled_unrequested", "A1", sql(
            "UPDATE fulfilment_order SET requested_at = NULL, unfulfillable_at = paid_at WHERE order_id = 'A1'",
            "INSERT INTO fulfilment_finding (application, kind, subject, detail, opened_at) "
            "VALUES ('default', 'paid_unfulfillable', 'A1', '{}', '2026-01-01 00:00:00.000000')")),
    "the request is gone": ("request_lost", "lost", request_was_never_sent),
    "requested by a clock that was ahead": (
        "requested_ahead", "due", sql(
            "UPDATE fulfilment_order SET requested_at = '2999-01-01 00:00:00.000000' WHERE order_id = 'due'")),
    "the shipping is dead": ("fulfilment_dead", "sad", dies),
    "nobody ships": ("no_handler", "alone", nobody_ships),
    "only a bystander took it": ("no_handler", "alone", only_statistics_took_it),
    "held, and nobody sees it": (
        "hold_unseen", "dear", sql("DELETE FROM fulfilment_finding WHERE subject = 'dear'")),
    "the service is asked for hours": ("asked_too_long", "due", asked_for_hours),
    "unfulfillable, and nobody sees it": (
        "unfulfillable_unseen", "gone", sql("DELETE FROM fulfilment_finding WHERE subject = 'gone'")),
    "live, and never decided": (
        "access_missing", "sub_1", sql("DELETE FROM access_entitlement WHERE customer = 'cus_1'")),
    "access from nowhere": (
        "access_without_source", "cus_1", sql(
            "UPDATE access_subscription SET customer = 'cus_2' WHERE subscription_id = 'sub_1'")),
    "access withheld": (
        "access_withheld", "cus_1", sql("UPDATE access_entitlement SET allowed = false WHERE customer = 'cus_1'")),
    "a gift that was ended goes on": (
        "access_without_source", "cus_6", sql(
            "UPDATE access_source SET ended_at = created_at WHERE kind = 'complimentary'")),
    "a hold does not hold": (
        "access_without_source", "cus_5", sql("UPDATE access_entitlement SET allowed = true WHERE customer = 'cus_5'")),
    "a grace that never ended": ("deadline_missed", "cus_1", grace_is_over),
    "a subscription of nobody, unseen": (
        "unresolved_unseen", "sub_nobody", sql("DELETE FROM access_finding WHERE subject = 'sub_nobody'")),
    "a price without a mapping, unseen": (
        "unmapped_unseen", "sub_unmapped", sql("DELETE FROM access_finding WHERE subject = 'sub_unmapped'")),
    "ended there, live here": (
        "ended_kept", "sub_2", sql("UPDATE observations SET state = 'ENDED||||' WHERE object_id = 'sub_2'")),
    "live there, ended here": (
        "revived", "sub_ended", sql(
            "UPDATE observations SET state = 'ACTIVE||||', read_at = '2030-01-01 00:00:00.000000' "
            "WHERE object_id = 'sub_ended'")),
    "live there, unknown here": (
        "subscription_unknown", "sub_new", sql(
            "INSERT INTO observations (application, kind, object_id, version, digest, read_at, state, shape) "
            "VALUES ('default', 'subscription', 'sub_new', 99, 'x', '2026-01-01 00:00:00.000000', 'ACTIVE||||', '')")),
    "charged after the end, unmarked": (
        "after_end_unflagged", "sub_ended", sql(
            "UPDATE access_subscription SET charged_after_end = false WHERE subscription_id = 'sub_ended'")),
    "charged after the end, unseen": (
        "after_end_unseen", "sub_ended", sql("DELETE FROM access_finding WHERE kind = 'charged_after_end'")),
    "a stopped revocation, unseen": (
        "brake_unseen", "cus_1", sql("UPDATE access_entitlement SET braked = true WHERE customer = 'cus_1'")),
    "a stopped revocation whose finding was closed by hand": (
        "brake_unseen", "cus_1", sql(
            "UPDATE access_entitlement SET braked = true WHERE customer = 'cus_1'",
            "INSERT INTO access_finding (application, kind, subject, detail, opened_at, closed_at, closed_by) VALUES "
            "('default', 'brake', 'default', '{}', '2026-01-01 00:00:00.000000', '2026-01-02 00:00:00.000000', 'op')")),
    "events that are in no book": (
        "projection_dead", "fulfilment:order_paid", sql(
            "INSERT INTO runs (event_id, application, handler, seq, key, status, blocking, attempts, code_version, "
            "created_at, updated_at) VALUES ('evt_x', 'default', 'fulfilment:order_paid', 1, 'k', 'dead', true, 1, '', "
            "'2026-01-01 00:00:00.000000', '2026-01-01 00:00:00.000000')")),
    "events from archives, and no rebuild": (
        "not_derived", "all", sql("INSERT INTO budgets (name, value) VALUES ('archive/not_derived/default', 'owed')")),
    "events from archives, and the rest of them is lacking": (
        "import_cut", "all", sql(
            "INSERT INTO budgets (name, value) VALUES ('archive/not_derived/default', 'owed'), ('archive/half', 'x')")),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
async def test_it_is_named_with_its_cure(shop: Shop, what: str) -> None:
    # case: F31, A14, A22, A36
    code, subject, plant = PLANTED[what]
    await plant(shop)
    found = await shop.check()
    named = {(one.code, one.subject) for one in found.problems}
    assert (code, subject) in named, named
    assert {one.code for one in found.problems} == {code}, "it alone"
    assert not found.holds
    assert all(one.cure.startswith("consumer ") for one in found.problems)


CLOSE = (
    "UPDATE fulfilment_finding SET closed_at = '2026-01-01 00:00:00.000000', closed_by = 'op' WHERE subject = 'cheap'"
)


@pytest.mark.parametrize("then", [sql(), sql(CLOSE)], ids=["open", "settled"])
async def test_what_is_less_than_registered_and_seen_is_not_broken(shop: Shop, then: Plant) -> None:
    # case: F21
    await pays_less_than_registered(shop)
    await then(shop)
    assert [one.code for one in (await shop.check()).problems] == []


async def test_of_two_payments_the_larger_is_what_was_paid(shop: Shop) -> None:
    # case: F21, F29
    await pays_less_than_registered(shop)
    await shop.pays("pay_rest", "cheap", "25")
    assert [one.code for one in (await shop.check()).problems] == []
    await shop.sql("DELETE FROM fulfilment_finding WHERE subject = 'cheap'")
    assert {one.code for one in (await shop.check()).problems} == {"underpaid", "duplicate_unseen"}


async def test_one_of_two_names_of_an_order_is_settled(shop: Shop) -> None:
    # case: F1, U10
    _, _, plant = PLANTED["one order there, requested as two here"]
    await plant(shop)
    found = [(one.code, one.subject, one.says.rpartition(" ")[2]) for one in (await shop.check()).problems]
    assert sorted(found) == [("requested_under_two_ids", "A1", "(due)"), ("requested_under_two_ids", "due", "(A1)")]
    await sql(
        "UPDATE fulfilment_order SET unfulfillable_at = paid_at WHERE order_id = 'due'",
        "INSERT INTO fulfilment_finding (application, kind, subject, detail, opened_at) "
        "VALUES ('default', 'paid_unfulfillable', 'due', '{}', '2026-01-01 00:00:00.000000')",
    )(shop)
    assert (await shop.check()).holds


async def test_what_is_dead_breaks_the_application_that_it_is_of(shop: Shop) -> None:
    # case: G8
    _, _, plant = PLANTED["events that are in no book"]
    await plant(shop)
    await sql("UPDATE runs SET application = 'other' WHERE event_id = 'evt_x'")(shop)
    assert (await shop.check()).holds
    await sql("UPDATE runs SET application = 'default' WHERE event_id = 'evt_x'")(shop)
    [one] = (await shop.check()).problems
    assert one.cure == "consumer dead redrive --handler fulfilment:order_paid --application default --reason …"


ROW_OF_THE_ORDER = "DELETE FROM fulfilment_order WHERE order_id = 'A1'"
ROW_OF_THE_SUBSCRIPTION = "DELETE FROM access_subscription WHERE subscription_id = 'sub_1'"


@pytest.mark.parametrize("lost", [ROW_OF_THE_ORDER, ROW_OF_THE_SUBSCRIPTION])
async def test_what_is_lost_is_made_anew_and_no_access_is_judged_meanwhile(shop: Shop, lost: str) -> None:
    # case: G9, F31, A14
    await shop.sql(lost)
    cures = {one.cure for one in (await shop.check()).problems}
    assert len(cures) == 1
    assert cures <= {LOST_ROW, LOST_ACCESS}, "a recheck would take away what the lost subscription gives"


async def test_what_was_never_told_is_asked_for(shop: Shop) -> None:
    await PLANTED["live there, unknown here"][2](shop)
    [found] = (await shop.check()).problems
    assert found.cure == "consumer reconcile --application default"


async def test_an_end_that_an_event_told_waits_for_no_read(shop: Shop) -> None:
    """It is final at once, and nothing asks for a read: the last one, of before, still says ACTIVE."""
    # case: A21
    later = START + timedelta(minutes=1)
    ends = said("subscription.ended", "evt_end", id="sub_1", end_reason="MERCHANT_CANCELED", at=later)
    await shop.projections.feed(ends)
    await shop.projections.pass_time(minutes=30)
    assert [one.code for one in (await shop.check()).problems] == []


@pytest.mark.parametrize("code", CURES)
def test_a_cure_can_be_typed_whatever_the_id_looks_like(code: str) -> None:
    for subject in ("-A 1", "--help", "A 1"):
        words = shlex.split(problem(code, "shop", "order", subject, handlers=["shop:ship"]).cure)
        at = words.index(subject) if subject in words else None
        assert at is None or not subject.startswith("-") or words[at - 1] in ("--", "--order", "--handler"), words
        assert at is None or words[at - 1] != "--" or words[at + 1 :] == [], "options come before it"


@pytest.mark.parametrize("code", CURES)
def test_a_cure_names_the_application_where_another_would_be_meant(code: str) -> None:
    words = shlex.split(problem(code, "shop", "subject", "id-1", handlers=["shop:ship"]).cure)
    node: Any = typer.main.get_command(tree(words[1]))
    for word in words[1:]:
        node = getattr(node, "commands", {}).get(word, node)
    if any(parameter.name == "application" and parameter.default == "default" for parameter in node.params):
        assert words[words.index("--application") + 1] == "shop"


def test_every_code_is_planted() -> None:
    """But what only a fresh walk can show."""
    assert {code for code, _, _ in PLANTED.values()} == CURES.keys() - {"payment_unseen"}


@pytest.mark.parametrize(
    ("until", "broken"),
    [(NOW + timedelta(minutes=1), []), (NOW - access.SLACK, ["access_without_source"])],
)
def test_what_waits_for_a_first_read_is_in_order_for_so_long(until: datetime, broken: list[str]) -> None:
    # case: A25
    row = {"allowed": True, "braked": False, "until": until, "reasons": ["settling:successor", "settling:sub_1"]}
    one = access.Customer(
        subscriptions={"sub_1": Subscription(customer="cus_1", status=ENDED)},
        standing={"default": row},
        as_of=NOW - timedelta(hours=1),
    )
    assert access.of_customer(one, Policy(), {}, "default", NOW) == broken
