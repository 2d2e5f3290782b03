"""A button acts once, on what its page showed, with a reason, and is audited with who pressed it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import quote_plus

import pytest

from consumer.ledger import Database
from consumer.ledger.handling import dead, events, handlers, runs
from consumer.ledger.handling.dead import DeadFilter
from consumer.ledger.reading import quarantine
from consumer.ledger.tables import RunStatus
from consumer.ledger.trail import sealing
from consumer.reason import Reason
from handlers.fulfilment.handler import order_paid
from handlers.fulfilment.tables import ORDERS
from tests.console.pages.conftest import KINDS, Open, Pages, die, press, text
from tests.contract.ledger import facts
from tests.support.handling.projections import START, Projections, declared_in, observed, own, said

FORMS = re.compile(r'<form class="press".*?</form>', re.DOTALL)
HIDDEN = re.compile(r'type="hidden" name="([^"]+)" value="([^"]*)"')
SEEN = re.compile(r'name="seen" value="([^"]+)"')


def forms(seen: str, label: str) -> list[dict[str, str]]:
    """What each button of this name sends, as a browser does."""
    return [
        {name: unescape(value) for name, value in HIDDEN.findall(form)}
        for form in FORMS.findall(seen)
        if f">{label}</button>" in form
    ]


async def entries(database: Database) -> list[tuple[str, str, str, str | None]]:
    """Who did what to whom and why, the newest first."""
    async with database.reading() as session:
        found = await sealing.newest(session, None, 50)
    return [(one["actor"], one["action"], one["subject"], one["reason"]) for one in found]


async def statuses(database: Database) -> list[str]:
    async with database.reading() as session:
        found = [await runs.of_event(session, "default", f"evt_{number}") for number in (1, 2, 3, 4)]
    return [str(rows[0].status) for rows in found if rows]


async def test_a_kind_of_dead_runs_is_redriven(sqlite_ledger: Database, pages: Pages, three_dead: None) -> None:
    # case: R10
    seen = SEEN.findall(await text(pages, "/console/dead"))[0]
    form = {"handler": facts.HANDLER, "fingerprint": KINDS[0], "seen": unescape(seen), "reason": "mended"}
    assert await press(pages, "redrive", **form) == (303, "/console/dead?done=redriven")
    assert await statuses(sqlite_ledger) == ["retrying", "retrying", "dead"]
    assert await press(pages, "redrive", **form) == (303, "/console/dead?done=nothing")
    assert "no longer as the page showed it" in await text(pages, "/console/dead?done=nothing")
    noted = [one for one in await entries(sqlite_ledger) if one[3] == "mended"]
    assert [(actor, action) for actor, action, *_ in noted] == [("operator:console", "dead.redrive")] * 2


async def test_what_died_since_is_left_alone(sqlite_ledger: Database, pages: Pages, three_dead: None) -> None:
    seen = unescape(SEEN.findall(await text(pages, "/console/dead"))[0])
    async with sqlite_ledger.transaction() as session:
        later = facts.NOW + timedelta(seconds=1)
        await events.record(session, [facts.event(4)], later)
        died = replace(facts.run(4, status=RunStatus.DEAD, blocking=False), fingerprint=KINDS[0])
        await runs.add(session, [died], later)
    form = {"handler": facts.HANDLER, "fingerprint": KINDS[0], "seen": seen, "reason": "mended"}
    assert await press(pages, "discard", **form) == (303, "/console/dead?done=discarded")
    assert await statuses(sqlite_ledger) == ["skipped", "skipped", "dead", "dead"]


async def test_what_has_no_fingerprint_is_a_kind_of_its_own(
    sqlite_ledger: Database, pages: Pages, three_dead: None
) -> None:
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(4)], facts.NOW)
        await runs.add(session, [facts.run(4, status=RunStatus.DEAD, blocking=False)], facts.NOW)
    (form,) = [one for one in forms(await text(pages, "/console/dead"), "Give up") if "fingerprint" not in one]
    assert await press(pages, "discard", **form, reason="nobody wants it") == (303, "/console/dead?done=discarded")
    assert await statuses(sqlite_ledger) == ["dead", "dead", "dead", "skipped"]


async def test_what_was_given_up_is_taken_back(sqlite_ledger: Database, pages: Pages, three_dead: None) -> None:
    # case: R12
    seen = unescape(SEEN.findall(await text(pages, "/console/event?id=evt_1"))[0])
    form = {"handler": facts.HANDLER, "event": "evt_1", "application": "default", "seen": seen, "reason": "no goods"}
    assert await press(pages, "discard", **form) == (303, "/console/event?id=evt_1&application=default&done=discarded")
    assert await statuses(sqlite_ledger) == ["skipped", "dead", "dead"]
    given_up = await text(pages, "/console/dead?discarded=1")
    form = {"handler": facts.HANDLER, "fingerprint": KINDS[0], "seen": unescape(SEEN.findall(given_up)[0])}
    assert await press(pages, "restore", **form, reason="there are") == (303, "/console/dead?discarded=1&done=restored")
    assert await statuses(sqlite_ledger) == ["dead", "dead", "dead"]


async def test_what_is_dead_of_an_order_is_tried_again_where_it_is_explained(
    sqlite_ledger: Database, projections: Projections, pages: Pages
) -> None:
    # case: R10
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START))
    run = replace(facts.run(1, status=RunStatus.DEAD, blocking=True), key="order:A1")
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, [run], facts.NOW)
    (form,) = forms(await text(pages, "/console/order?id=A1"), "Try again")
    assert (await press(pages, "redrive", **form))[0] == 400, "without a reason"
    assert await press(pages, "redrive", **form, reason="mended") == (
        303,
        "/console/order?id=A1&application=default&done=redriven",
    )
    assert await press(pages, "redrive", **form, reason="mended") == (
        303,
        "/console/order?id=A1&application=default&done=nothing",
    )
    assert forms(await text(pages, "/console/order?id=A1"), "Try again") == []
    assert ("operator:console", "dead.redrive", "mended") in {
        (actor, action, reason) for actor, action, _, reason in await entries(sqlite_ledger)
    }


async def test_a_handler_is_paused_for_one_shop_and_goes_on(sqlite_ledger: Database, pages: Pages) -> None:
    # case: H9, G8
    async with sqlite_ledger.transaction() as session:
        await handlers.register(session, declared_in("handlers.fulfilment.handler"), facts.NOW)
    name = "fulfilment:order_paid"
    assert '<option value="other">for other</option>' in await text(pages, "/console/handlers")
    sent = {"handler": name, "application": "other", "reason": "it sells junk"}
    assert await press(pages, "pause", **sent) == (303, "/console/handlers?done=paused")
    assert await press(pages, "pause", **sent) == (303, "/console/handlers?done=nothing")
    seen = await text(pages, "/console/handlers")
    assert "for other alone since" in seen
    assert "by operator:console: it sells junk" in seen
    (form,) = forms(seen, "Let other go on")
    assert (form["handler"], form["application"]) == (name, "other")
    async with sqlite_ledger.reading() as session:
        assert (await handlers.paused(session)).of == {(name, "other")}
    assert await press(pages, "resume", **{**form, "seen": "2026-01-01T00:00:00+00:00"}, reason="x") == (
        303, "/console/handlers?done=nothing",
    )  # fmt: skip
    assert await press(pages, "resume", **form, reason="mended") == (303, "/console/handlers?done=resumed")
    assert "for other alone" not in await text(pages, "/console/handlers")
    assert (await press(pages, "pause", **{**sent, "application": "nobody"}))[0] == 404
    assert [one[1:] for one in await entries(sqlite_ledger)] == [
        ("handler.resume", f"handler:{name}", "mended"),
        ("handler.pause", f"handler:{name}", "it sells junk"),
    ]


async def test_a_handler_is_paused_and_goes_on(sqlite_ledger: Database, pages: Pages) -> None:
    # case: H9
    async with sqlite_ledger.transaction() as session:
        await handlers.register(session, declared_in("handlers.fulfilment.handler"), facts.NOW)
    name = "fulfilment:order_paid"
    assert order_paid.__name__ in name
    assert "Let it go on" not in await text(pages, "/console/handlers")
    assert await press(pages, "pause", handler=name, reason="the carrier is down") == (
        303,
        "/console/handlers?done=paused",
    )
    paused = await text(pages, "/console/handlers?done=paused")
    assert "by operator:console: the carrier is down" in paused
    assert "Paused: its runs wait." in paused
    (form,) = forms(paused, "Let it go on")
    assert await press(pages, "pause", handler=name, reason="I too") == (303, "/console/handlers?done=nothing")
    assert await press(pages, "resume", **form, reason="it is up") == (303, "/console/handlers?done=resumed")
    async with sqlite_ledger.transaction() as session:
        later = facts.NOW + timedelta(seconds=1)
        assert await handlers.pause(session, name, by="operator:bob", reason="it ships twice", now=later)
    assert await press(pages, "resume", **form, reason="it is up") == (303, "/console/handlers?done=nothing")
    assert "it ships twice" in await text(pages, "/console/handlers")
    async with sqlite_ledger.transaction() as session:
        assert await handlers.resume(session, name)
    assert "Let it go on" not in await text(pages, "/console/handlers")
    assert [one[1:] for one in await entries(sqlite_ledger)] == [
        ("handler.resume", f"handler:{name}", "it is up"),
        ("handler.pause", f"handler:{name}", "the carrier is down"),
    ]


@pytest.mark.parametrize("whose", [{}, {"application": "other"}])
async def test_pressed_by_several_at_once_it_acts_once(
    database: Database, open_pages: Open, whose: dict[str, str]
) -> None:
    # case: H9
    async with database.transaction() as session:
        await handlers.register(session, declared_in("handlers.fulfilment.handler"), facts.NOW)
    pages, name = await open_pages(database=database), "fulfilment:order_paid"

    async def pressed(act: str, **form: str) -> list[str]:
        each = [press(pages, act, **form, reason=f"{act} {number}") for number in range(6)]
        return sorted(way.partition("done=")[2] for _, way in await asyncio.gather(*each))

    assert await pressed("pause", handler=name, **whose) == ["nothing"] * 5 + ["paused"]
    seen = await text(pages, "/console/handlers")
    (form,) = forms(seen, "Let other go on" if whose else "Let it go on")
    [_, _, _, first] = (await entries(database))[0]
    assert f"by operator:console: {first}" in seen, "who was first stands"
    assert await pressed("resume", **form) == ["nothing"] * 5 + ["resumed"]
    assert [one[1] for one in await entries(database)] == ["handler.resume", "handler.pause"]


async def test_a_held_order_is_let_go(sqlite_ledger: Database, projections: Projections, pages: Pages) -> None:
    # case: F21
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", told))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START + timedelta(minutes=1)))
    assert "Let it go" in await text(pages, "/console/order?id=A1")
    word = {
        "word": "fulfilment.released", "subject": "A1", "application": "default", "reason": "a voucher",
        "seen": "amount_mismatch",
    }  # fmt: skip
    assert await press(pages, "say", **word) == (303, "/console/order?id=A1&application=default&done=said")
    projections.now = datetime.now(UTC) + timedelta(minutes=1)  # a page goes by the database's clock
    await projections.relay()
    seen = await text(pages, "/console/order?id=A1")
    assert "Let it go" not in seen
    assert "fulfilment.requested" in seen
    assert await press(pages, "say", **word) == (303, "/console/order?id=A1&application=default&done=nothing")
    assert (await press(pages, "say", **word | {"subject": "A2"}))[0] == 404


async def test_what_holds_an_order_by_now_is_not_let_go_unseen(
    sqlite_ledger: Database, projections: Projections, pages: Pages
) -> None:
    """Who let a held order go whose checkout was missing shipped one that was paid too little, once that came."""
    # case: F20, F21
    projections.options["handlers.fulfilment.handler"]["matching"] = "on"
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    shown = [
        word
        for path in ("order?id=A1", "findings")
        for button in ("Let it go", "There is nothing to deliver")
        for word in forms(await text(pages, f"/console/{path}"), button)
    ]
    assert [one["seen"] for one in shown] == ["unmatched"] * 2 + ["paid_unmatched"] * 2
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", told))
    for word in shown:
        assert await press(pages, "say", **word, reason="it is ours") == (
            303,
            "/console/order?id=A1&application=default&done=nothing",
        )
    assert not [one for one in await entries(sqlite_ledger) if one[0].startswith("operator:")]
    (word, *_) = forms(await text(pages, "/console/order?id=A1"), "Let it go")
    assert (await press(pages, "say", **word, reason="a voucher"))[1].endswith("done=said")


@pytest.mark.parametrize("button", ["Let it go", "There is nothing to deliver"])
async def test_what_holds_an_order_when_the_word_is_handled_is_left_alone_unseen(
    sqlite_ledger: Database, projections: Projections, pages: Pages, button: str
) -> None:
    """Between the button and `work` lie a moment or an hour: a registration handled in between was shipped over."""
    # case: F20, F21
    projections.options["handlers.fulfilment.handler"]["matching"] = "on"
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    (word,) = forms(await text(pages, "/console/order?id=A1"), button)
    assert (await press(pages, "say", **word, reason="it is ours"))[1].endswith("done=said")
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", told))
    projections.now = datetime.now(UTC) + timedelta(minutes=1)
    assert [event.type for event in await projections.relay()] == [word["word"]]
    seen = await text(pages, "/console/order?id=A1")
    assert button in seen, "the order is held as before"
    assert "order.left_alone" in seen


async def test_what_somebody_let_go_is_not_given_back_from_an_older_page(
    sqlite_ledger: Database, projections: Projections, pages: Pages
) -> None:
    """Shipped, and its money given back: the order was requested, and counted as unfulfillable besides."""
    # case: F33
    projections.options["handlers.fulfilment.handler"]["matching"] = "on"
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9"))
    page = await text(pages, "/console/order?id=A1")
    (go,), (nothing,) = forms(page, "Let it go"), forms(page, "There is nothing to deliver")
    assert (await press(pages, "say", **go, reason="it is ours"))[1].endswith("done=said")
    assert (await press(pages, "say", **nothing, reason="no goods"))[1].endswith("done=said"), "work handled neither"
    projections.now = datetime.now(UTC) + timedelta(minutes=1)
    assert "fulfilment.requested" in [event.type for event in await projections.relay()]
    assert [row["unfulfillable_at"] for row in await projections.rows(ORDERS)] == [None]
    assert (await press(pages, "say", **nothing, reason="no goods"))[1].endswith("done=nothing")
    await projections.relay()
    assert [row["unfulfillable_at"] for row in await projections.rows(ORDERS)] == [None]


@pytest.mark.parametrize("order", ["A\u00a01", "A1 ", " A1", "A\u200b1", "A\t1", "\u202eA1", "A1&\"'<b>"])
async def test_a_button_names_its_order_to_the_letter(
    sqlite_ledger: Database, projections: Projections, pages: Pages, order: str
) -> None:
    """Another may have what the page shows of its name."""
    for number, id_ in enumerate(("A1", order)):
        told = {"session_id": f"s{number}", "order_id": id_, "expected_amount": "10"}
        await projections.feed(own("checkout.registered", f"order:{id_}", told))
        later = START + timedelta(minutes=1)
        await projections.feed(said("order.paid", f"evt_{number}", order_id=id_, amount="9", at=later))
    (word,) = forms(await text(pages, f"/console/order?id={quote_plus(order)}"), "Let it go")
    assert (await press(pages, "say", **word, reason="x"))[0] == 303
    assert (await entries(sqlite_ledger))[0][2] == f"order:{order}"


async def test_a_finding_is_closed(sqlite_ledger: Database, projections: Projections, pages: Pages) -> None:
    # case: F28
    await projections.feed(observed("payment:p1", 1, {"id": "p1", "status": "SUCCEEDED", "order_id": "A1"}))
    await projections.feed(observed("payment:p2", 2, {"id": "p2", "status": "SUCCEEDED", "order_id": "A1"}))
    word, *_ = forms(await text(pages, "/console/findings"), "It is settled")
    said_ = (303, "/console/findings?application=default&done=said")
    assert await press(pages, "say", **word, reason="refunded") == said_
    projections.now = datetime.now(UTC) + timedelta(minutes=1)  # a page goes by the database's clock
    await projections.relay()
    assert f'value="{word["kind"]}"' not in await text(pages, "/console/findings")


@pytest.mark.parametrize("comes", ["before the button", "before the worker"])
async def test_a_payment_that_no_page_showed_is_not_settled(projections: Projections, pages: Pages, comes: str) -> None:
    """Who gave the second payment back pressed on a page without the third, and the third was owed for good."""
    # case: F29
    projections.options["handlers.fulfilment.handler"]["matching"] = "off"
    paid = {"id": "A1", "status": "PAID", "order_id": "A1", "payment": {"id": "p1"}}
    await projections.feed(observed("order:A1", 1, paid))
    pays = [observed(f"payment:p{n}", n, {"id": f"p{n}", "status": "SUCCEEDED", "order_id": "A1"}) for n in (1, 2, 3)]
    await projections.feed(*pays[:2])
    (word,) = forms(await text(pages, "/console/findings?kind=duplicate_payment"), "It is settled")
    done = "said" if comes == "before the worker" else "nothing"
    if done == "nothing":
        await projections.feed(pays[2])
    went = await press(pages, "say", **word, reason="refunded p2")
    assert went == (303, f"/console/findings?application=default&done={done}")
    if done == "said":
        await projections.feed(pays[2])
    projections.now = datetime.now(UTC) + timedelta(minutes=1)
    await projections.relay()
    (again,) = forms(await text(pages, "/console/findings?kind=duplicate_payment"), "It is settled")
    assert again["seen"] != word["seen"]
    assert ("finding.left_open" in await text(pages, "/console/order?id=A1")) == (done == "said")
    assert (await press(pages, "say", **{**again, "seen": ""}, reason="refunded"))[0] == 400, "a page of before"
    assert (await press(pages, "say", **again, reason="refunded p3, too"))[1].endswith("done=said")
    projections.now += timedelta(minutes=1)
    await projections.relay()
    assert forms(await text(pages, "/console/findings?kind=duplicate_payment"), "It is settled") == []


async def test_what_holds_an_order_is_let_go_where_it_is_found(projections: Projections, pages: Pages) -> None:
    """To settle the finding is refused: the order would stay held, and nothing would say so."""
    # case: F21
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", told))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START + timedelta(minutes=1)))
    seen = unescape(await text(pages, "/console/findings"))
    assert "What was paid is not what was expected." in seen
    assert "<dt>expected amount, USDC</dt><dd>10</dd>" in seen
    assert forms(seen, "It is settled") == []
    (word,) = forms(seen, "Let it go")
    assert await press(pages, "say", **word, reason="a voucher") == (
        303,
        "/console/order?id=A1&application=default&done=said",
    )


async def test_whose_a_subscription_is_cannot_be_pressed_away(projections: Projections, pages: Pages) -> None:
    # case: A36
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE"}))
    seen = unescape(await text(pages, "/console/findings"))
    assert forms(seen, "It is settled") == []
    assert "consumer say access.customer_attached S1 --set customer=… --application default --reason …" in seen
    word = {"word": "access.finding_closed", "subject": "S1", "kind": "unresolved_subscriber", "reason": "seen"}
    assert (await press(pages, "say", **word))[0] == 400


async def test_a_price_that_gives_nothing_cannot_be_pressed_away(projections: Projections, pages: Pages) -> None:
    # case: A32
    projections.options = {"handlers.access.handler": {"entitlements": {}}, "handlers.fulfilment.handler": {}}
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE", "customer_reference": "c"}))
    seen = unescape(await text(pages, "/console/findings"))
    assert forms(seen, "It is settled") == []
    recheck = "consumer say access.recheck default --application default --reason …"
    assert f"to [] where it gives nothing; then: <code>{recheck}</code>" in seen
    word = {"word": "access.finding_closed", "subject": "S1", "kind": "unmapped_price", "reason": "seen"}
    assert (await press(pages, "say", **word))[0] == 400


async def test_a_quarantined_delivery_is_thrown_away(sqlite_ledger: Database, pages: Pages) -> None:
    async with sqlite_ledger.transaction() as session:
        await quarantine.put(session, [(facts.delivery(1), Reason.NOT_CONFIRMED)], facts.NOW)
    (word,) = forms(await text(pages, "/console/quarantine"), "Throw it away")
    gone = {**word, "reason": "forged"}
    assert await press(pages, "throw-away", **gone) == (303, "/console/quarantine?done=thrown")
    assert await press(pages, "throw-away", **gone) == (303, "/console/quarantine?done=nothing")
    assert "Nothing lies in quarantine" in await text(pages, "/console/quarantine")


async def test_a_delivery_that_took_the_number_of_another_is_not_thrown_away(
    sqlite_ledger: Database, pages: Pages
) -> None:
    """Two operators saw the same page. What came between their buttons was a record of the service, and was gone."""
    async with sqlite_ledger.transaction() as session:
        await quarantine.put(session, [(facts.delivery(n), Reason.NOT_JSON) for n in (1, 2)], facts.NOW)
    newest, _ = forms(await text(pages, "/console/quarantine"), "Throw it away")
    assert await press(pages, "throw-away", **newest, reason="junk") == (303, "/console/quarantine?done=thrown")
    async with sqlite_ledger.transaction() as session:
        await quarantine.put(session, [(facts.delivery(3), Reason.TOO_LARGE)], facts.NOW)
    now_newest, _ = forms(await text(pages, "/console/quarantine"), "Throw it away")
    assert now_newest["number"] == newest["number"], "SQLite gives the number anew"
    assert await press(pages, "throw-away", **newest, reason="junk") == (303, "/console/quarantine?done=nothing")
    async with sqlite_ledger.reading() as session:
        assert [row.delivery_id for row in await quarantine.newest(session)] == [facts.delivery(n).id for n in (3, 1)]
    assert [one[1] for one in await entries(sqlite_ledger)] == ["quarantine.discarded"]


async def test_an_order_is_read_again(sqlite_ledger: Database, projections: Projections, pages: Pages) -> None:
    await projections.feed(own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1"}))
    known = {"kind": "order", "id": "A1", "application": "default"}
    assert await press(pages, "read", **known) == (303, "/console/order?id=A1&application=default&done=asked")
    assert "<strong>read</strong>" in await text(pages, "/console/order?id=A1")
    assert (await press(pages, "read", kind="order", id="A2"))[0] == 404
    assert (await press(pages, "read", kind="payment", id="A1"))[0] == 400
    assert (await press(pages, "read", kind="order", id="A1", application="none"))[0] == 404


@pytest.mark.parametrize(
    ("act", "fields", "told"),
    [
        ("redrive", {"handler": facts.HANDLER, "seen": "2030-01-01T00:00:00+00:00"}, "say why"),
        ("redrive", {"handler": facts.HANDLER, "seen": "2030-01-01T00:00:00+00:00", "reason": "  "}, "say why"),
        ("redrive", {"handler": facts.HANDLER, "seen": "2030-01-01T00:00:00+00:00", "reason": "x" * 501}, "say why"),
        ("redrive", {"seen": "2030-01-01T00:00:00+00:00", "reason": "x"}, "handler is missing"),
        ("redrive", {"handler": facts.HANDLER, "reason": "x"}, "seen is missing"),
        ("redrive", {"handler": facts.HANDLER, "seen": "soon", "reason": "x"}, "when the last of them died"),
        ("redrive", {"handler": facts.HANDLER, "seen": "9999-12-31T23:59:59.999999+00:00", "reason": "x"}, "died"),
        ("redrive", {"handler": facts.HANDLER, "seen": "2030-01-01", "reason": "x"}, "when the last of them died"),
        ("throw-away", {"number": "1; drop", "reason": "x"}, "number is that of a delivery"),
        ("throw-away", {"number": "9" * 30, "reason": "x"}, "number is that of a delivery"),
        ("throw-away", {"number": "0" * 20 + "9" * 30, "reason": "x"}, "number is that of a delivery"),
        ("throw-away", {"number": "1", "reason": "x"}, "seen is missing"),
        ("pause", {"handler": "a\0", "reason": "x"}, "handler has a character"),
        ("say", {"word": "fulfilment.marked_paid", "subject": "A1", "reason": "x"}, "`consumer say`"),
    ],
)
async def test_what_is_no_press_moves_nothing(
    sqlite_ledger: Database, pages: Pages, three_dead: None, act: str, fields: dict[str, Any], told: str
) -> None:
    status, refused = await press(pages, act, **fields)
    assert status == 400
    assert told in re.sub("</?code>", "`", unescape(refused))
    assert await statuses(sqlite_ledger) == ["dead"] * 3
    assert await entries(sqlite_ledger) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded; charset=none", b"reason=x"),
        ("application/x-www-form-urlencoded", b"reason=\xff"),
        ("multipart/form-data", b"reason=x"),
        ("multipart/form-data; boundary=x", b"reason=x"),
    ],
)
async def test_what_is_no_form_is_refused(pages: Pages, kind: str, body: bytes) -> None:
    async with pages.post("/console/act/pause", data=body, headers={"Content-Type": kind}) as response:
        assert response.status == 400
        assert "no form" in await response.text()


async def test_a_press_of_the_past_finds_nothing(sqlite_ledger: Database, pages: Pages) -> None:
    await die(sqlite_ledger, (1, KINDS[0]))
    before = (facts.NOW - timedelta(seconds=1)).isoformat()
    done = await press(pages, "redrive", handler=facts.HANDLER, seen=before, reason="x")
    assert done == (303, "/console/dead?done=nothing")
    async with sqlite_ledger.reading() as session:
        assert len(await dead.search(session, DeadFilter())) == 1
