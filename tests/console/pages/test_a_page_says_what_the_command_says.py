"""A page says what the command says, of any id, and links to what it names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from consumer.cli.looking.status import document
from consumer.clock import DrivenClock
from consumer.console.labels import READING
from consumer.console.pages import lists
from consumer.console.pages.desk import KEPT_S
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database, audit
from consumer.ledger.handling import events, handlers, runs
from consumer.ledger.plans import plans
from consumer.ledger.plans.plans import Decided
from consumer.ledger.reading import quarantine
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler
from consumer.reason import Reason
from tests.console.pages.conftest import Open, Pages, die, healthy, text
from tests.console.test_figures_are_told_in_words import FOUND
from tests.contract.ledger import facts
from tests.support.handling.projections import START, Projections, observed, own, said

EVENT = re.compile(r'href="(event[^"]+)"')
REFRESH = '<meta http-equiv="refresh" content="30">'

ODD = ("a/b", "..", ".", "a b&c=d", "é?#%", "x" * 255, "'\"<>", "-x", "a;b+c")


async def test_how_things_stand_is_what_status_says(pages: Pages) -> None:
    seen = await text(pages, "/console/")
    assert '<h1 class="grade degraded">degraded</h1>' in seen
    assert '<a href="dead"><code>dead_runs</code></a> 3 dead: see <code>consumer dead list</code>' in seen


async def test_figures_are_told_in_words(open_pages: Open) -> None:
    async def status() -> Mapping[str, Any]:
        return document(FOUND)

    seen = await text(await open_pages(status=status), "/console/")
    assert [name for name in re.findall(r"<(?:dt|th)[^>]*>([^<]*)<", seen) if "_" in name] == []
    assert f"<dt>{READING['walked_at']}</dt>" in seen


async def test_all_who_look_share_one_account(open_pages: Open, clock: DrivenClock) -> None:
    asked = 0

    async def status() -> Mapping[str, Any]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return await healthy()

    pages = await open_pages(status=status)
    await asyncio.gather(*(text(pages, "/console/") for _ in range(5)))
    assert asked == 1
    clock.advance(KEPT_S)
    await text(pages, "/console/")
    assert asked == 2


async def test_where_nobody_says_how_things_stand_the_page_says_so(open_pages: Open) -> None:
    assert "is not known here" in await text(await open_pages(status=None), "/console/")


async def test_a_ledger_that_is_away_is_a_page(open_pages: Open) -> None:
    async def status() -> Mapping[str, Any]:
        raise LedgerUnavailable

    seen = await text(await open_pages(status=status), "/console/", 503)
    assert "ledger_unavailable" in seen
    assert REFRESH in seen, "a screen on the wall shows again how things stand, once the ledger is back"


async def test_a_page_may_stand_still(pages: Pages) -> None:
    """Who types an id there began again every 30 s."""
    assert REFRESH in (moving := await text(pages, "/console/"))
    assert '<a href="./?still=1">' in moving
    still = await text(pages, "/console/?still=1")
    assert REFRESH not in still
    assert '<a href="./">' in still
    assert REFRESH not in await text(pages, "/console/nothing", 404)


async def test_a_list_says_that_there_are_more(
    sqlite_ledger: Database, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_ledger.transaction() as session:
        for number in range(3):
            await quarantine.put(session, [(facts.delivery(number), Reason.NOT_CONFIRMED)], facts.NOW)
            decided = Decided(
                by="ada", reason=None, filters={}, forced=False, renews_keys=False, items=0, predicted={}, digest=""
            )
            await plans.create(session, f"rpl_{number}", decided, facts.NOW)
    for listed, is_more in ((2, True), (3, False)):
        monkeypatch.setattr("consumer.console.pages.lists.LISTED", listed)
        for path in ("quarantine", "plans"):
            assert (f"the newest {listed}" in await text(pages, f"/console/{path}")) == is_more, path


async def test_events_are_listed_by_whose_they_are(projections: Projections, pages: Pages) -> None:
    for name in ("A1", "B1"):
        told = {"session_id": f"s-{name}", "order_id": name, "expected_amount": "9", "customer": f"c-{name}"}
        await projections.feed(own("checkout.registered", f"order:{name}", told))
        at = START + timedelta(minutes=1)
        await projections.feed(said("order.paid", f"evt_{name}", order_id=name, amount="9", at=at))
    seen = await text(pages, "/console/events?customer=c-A1")
    assert ("evt_A1" in seen, "evt_B1" in seen) == (True, False)
    assert 'value="c-A1"' in seen, "what was asked for stands in its field"
    assert "nothing is known of this customer" in await text(pages, "/console/events?customer=nobody", 404)


async def test_an_order_says_why_it_waits(projections: Projections, pages: Pages) -> None:
    # case: A50, F21
    told = {"session_id": "s1", "order_id": "A1", "expected_amount": "10", "customer": "c1"}
    await projections.feed(own("checkout.registered", "order:A1", told))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START + timedelta(minutes=1)))
    seen = unescape(await text(pages, "/console/order?id=A1"))
    assert "held.amount_mismatch" in seen
    release = "consumer say fulfilment.released A1 --set hold=amount_mismatch --application default --reason …"
    assert f"an operator: <code>{release}</code>" in seen
    assert '<a href="event?id=evt_1&application=default">evt_1</a>' in seen
    assert '<a href="customer?id=c1&application=default">c1</a>' in seen
    assert "<code>consumer explain order A1 --application default</code>" in seen
    assert "hold - → amount_mismatch" in seen
    assert "expected amount, USDC 10" in seen, "what was found, in words"
    assert "expected_amount" not in seen
    assert 'proof</dt><dd> <span class="word">type order.paid</span>' in seen


async def test_a_subscription_and_its_customer(projections: Projections, pages: Pages) -> None:
    # case: A50
    sub = {"id": "S1", "status": "ACTIVE", "customer_reference": "c1", "current_period_end": "2026-02-01T00:00:00Z"}
    await projections.feed(observed("subscription:S1", 1, sub))
    await projections.relay()
    seen = await text(pages, "/console/subscription?id=S1")
    assert "<dt>status</dt><dd>ACTIVE</dd>" in seen
    assert '<a href="customer?id=c1&amp;application=default">c1</a>' in seen
    seen = await text(pages, "/console/customer?id=c1")
    assert "Subscriptions" in seen
    assert "What the customer may use" in seen


@pytest.mark.parametrize("order_id", ODD)
async def test_any_id_leads_to_its_order(projections: Projections, pages: Pages, order_id: str) -> None:
    # case: F26
    await projections.feed(own("checkout.registered", f"order:{order_id}", {"session_id": "s1", "order_id": order_id}))
    seen = await text(pages, f"/console/order?id={quote(order_id, safe='')}")
    assert f"<code>{order_id}</code>" in unescape(seen)
    async with pages.get("/console/find", params={"name": order_id}) as response:
        assert response.status == 200
        assert (response.url.path, response.url.query["id"]) == ("/console/order", order_id)
    async with pages.get("/console/find", params={"name": "s1"}) as response:
        assert (response.url.path, response.url.query["id"]) == ("/console/order", order_id)


async def test_what_nothing_is_called_says_what_is_near(projections: Projections, pages: Pages) -> None:
    await projections.feed(own("checkout.registered", "order:A1000", {"session_id": "s1", "order_id": "A1000"}))
    for path in ("/console/find?name=A1001", "/console/order?id=A1001"):
        seen = await text(pages, path, 404)
        assert "Nothing has the name" in seen
        assert ">A1000</a>" in seen
    for path in ("/console/find?name=", "/console/find", f"/console/order?id={'x' * 301}", "/console/order?id=%00"):
        assert "characters, none of them NUL" in await text(pages, path, 400)
    assert "unknown" in await text(pages, "/console/order?id=A1000&application=none", 404)
    assert "Nothing has the name" in await text(pages, "/console/order?id=A1000&application=other", 404)
    assert "unknown" in await text(pages, "/console/event?id=evt_1&application=none", 404)
    assert "unknown" in await text(pages, "/console/order?id=A1&application=%00", 404)


# case: G8
async def test_what_an_application_sold_that_is_set_up_no_more_is_still_shown(
    pages: Pages, projections: Projections
) -> None:
    """`find` led to a page that said that there was no such application."""
    await projections.feed(said("order.paid", "evt_o", order_id="A-old", application="gone"))
    for way in ("/console/find?name=A-old", "/console/order?id=A-old&application=gone"):
        shown = await text(pages, way)
        assert "<h1>order <code>A-old</code>" in shown
        assert "act/" not in shown, "whatever button there was, it was refused"
        assert "set up no more" in shown
    assert "evt_o" in await text(pages, "/console/event?id=evt_o&application=gone")


# case: G8
async def test_what_was_found_in_an_application_that_is_set_up_no_more_is_shown_where_pages_lead(
    pages: Pages, projections: Projections
) -> None:
    """The list of what waits led to a page that said that there was no such application; so did what comes next."""
    told = {"session_id": "s1", "order_id": "A-old", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A-old", told, application="gone"))
    at = START + timedelta(minutes=1)
    await projections.feed(said("order.paid", "evt_o", order_id="A-old", amount="9", application="gone", at=at))
    await projections.feed(said("order.paid", "evt_p", order_id="B-old", amount="9", application="gone", at=at))
    (way,) = re.findall(r'href="(findings[^"]+)"', await text(pages, "/console/findings"))
    shown = await text(pages, f"/console/{unescape(way)}")
    assert "A-old" in shown
    assert "set up no more" in shown
    assert "act/" not in shown, "whatever button there was, it was refused"
    for subject in re.findall(r'href="(find\?[^"]+)"', shown):
        assert "A-old" in await text(pages, f"/console/{unescape(subject)}")
    for event in EVENT.findall(await text(pages, "/console/order?id=B-old&application=gone")):
        await text(pages, f"/console/{unescape(event)}")
    assert "unknown" in await text(pages, "/console/findings?application=gome", 404)
    for path in ("event?id=evt_no", "order?id=evt_no", "find?name=evt_no"):
        assert "the application is unknown" in await text(pages, f"/console/{path}&application=gome", 404)


async def test_what_only_events_speak_of_is_shown_and_leads_nowhere(sqlite_ledger: Database, pages: Pages) -> None:
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(1, key="order:a/b c")], facts.NOW)
    for path in ("find?name=a/b+c", "order?id=a%2Fb%20c&application=default", "order?id=a/b+c"):
        seen = await text(pages, f"/console/{path}")
        assert "What has the name" in seen
        assert "order.paid" in seen


async def test_an_event_shows_its_runs_and_their_failures(pages: Pages, three_dead: None) -> None:
    # case: R4
    seen = await text(pages, "/console/event?id=evt_1")
    assert '<strong class="dead">dead</strong>' in seen
    assert '<a href="order?id=1&amp;application=default">order:1</a>' in seen
    assert "Nothing has the name" in await text(pages, "/console/event?id=evt_none", 404)


async def test_who_looks_gets_an_answer_whatever_the_ledger_does(
    sqlite_ledger: Database, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def hangs(*_: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(Database, "reading", hangs)
    monkeypatch.setattr("consumer.console.pages.routes.LOOK_WITHIN_S", 0.05)
    async with asyncio.timeout(20), pages.get("/console/dead") as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        seen = await response.text()
    assert "ledger_slow" in seen
    assert "Nothing was changed" not in seen
    assert "was pressed" not in seen


async def test_no_list_is_lost_where_no_application_is_called_default(open_pages: Open) -> None:
    pages = await open_pages(applications={"shop": True, "other": True})
    for path in ("events", "dead", "quarantine", "handlers", "plans", "audit"):
        await text(pages, f"/console/{path}")
    assert "Nothing is open in shop." in await text(pages, "/console/findings")
    assert "Nothing is open in other." in await text(pages, "/console/findings?application=other")


async def test_each_event_that_a_page_names_has_a_page(projections: Projections, pages: Pages) -> None:
    """What comes next is an event, too, that is not published yet."""
    told = {"session_id": "s1", "order_id": "A1", "customer": "c1"}
    await projections.feed(own("checkout.registered", "order:A1", told))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START + timedelta(minutes=1)))
    named = EVENT.findall(await text(pages, "/console/order?id=A1"))
    assert len(named) > 1
    for path in named:
        await text(pages, f"/console/{unescape(path)}")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("https://wiki.example/?a=1&b", '<a href="https://wiki.example/?a=1&amp;b" rel="noreferrer">'),
        ("Call <Ada>, see https://wiki.example", "Call &lt;Ada&gt;, see https://wiki.example<"),
        ("javascript:alert(1)", "javascript:alert(1)<"),
    ],
)
async def test_a_failed_run_stands_with_its_authors_words(
    sqlite_ledger: Database,
    projections: Projections,
    pages: Pages,
    open_pages: Open,
    three_dead: None,
    told: str,
    shown: str,
) -> None:
    # case: R10
    await projections.feed(own("checkout.registered", "order:1", {"session_id": "s1", "order_id": "1"}))
    async with sqlite_ledger.transaction() as session:
        ship = Handler(name=facts.HANDLER, types=("order.paid",), function=nothing, runbook=told)
        await handlers.register(session, [ship], facts.NOW)
    for path in ("dead", "event?id=evt_1", "handlers", "order?id=1"):
        assert shown in await text(pages, f"/console/{path}"), path

    async def status() -> Mapping[str, Any]:
        return {**await healthy(), "runbooks": {facts.HANDLER: told}}

    assert shown in await text(await open_pages(status=status), "/console/")


async def nothing(event: Event, ctx: Context) -> None:
    return


async def test_dead_runs_stand_by_what_they_died_of(pages: Pages, three_dead: None) -> None:
    # case: R10
    seen = await text(pages, "/console/dead")
    assert "3 run(s), 2 kind(s) of failure" in seen
    assert "2 × shop:ship" in seen
    assert "1 × shop:ship" in seen
    assert "Nothing was given up." in await text(pages, "/console/dead?discarded=1")


async def test_a_flood_of_one_kind_of_failure_hides_no_other(
    sqlite_ledger: Database, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: R10
    rare, more = "c" * 16, "consumer dead list --handler shop:ship --fingerprint "
    flood = enumerate(["a" * 16, "a" * 16, "b" * 16, "b" * 16, rare, "d" * 16, "d" * 16], start=1)
    await die(sqlite_ledger, *flood)
    monkeypatch.setattr(lists, "LOOKED_AT", 2)
    seen = await text(pages, "/console/dead")
    assert "7 run(s), 4 kind(s) of failure" in seen
    assert "3 more kind(s) of failure are not among the runs looked at" in seen
    told = re.findall("<li>([^<]*) × <code>([^<]*)</code>", seen)
    assert told == [("1", more + rare), ("2", more + "b" * 16), ("2", more + "d" * 16)]
    monkeypatch.setattr(lists, "LISTED", 2)
    assert "… 1 more, which are listed here when those are gone" in await text(pages, "/console/dead")
    monkeypatch.setattr(lists, "LOOKED_AT", 7)
    assert "not among the runs looked at" not in await text(pages, "/console/dead")


async def test_a_handler_whose_runs_die_stands_among_what_does_not_run(
    sqlite_ledger: Database, pages: Pages, three_dead: None
) -> None:
    # case: R10
    async with sqlite_ledger.transaction() as session:
        ship = Handler(name=facts.HANDLER, types=("order.paid",), function=nothing)
        await handlers.register(session, [ship, replace(ship, name="shop:other")], facts.NOW)
    seen = await text(pages, "/console/handlers")
    standing, _, running = seen.partition("<table>")
    assert ">3 dead<" in standing
    assert "shop:other" not in standing
    assert "shop:other" in running
    assert facts.HANDLER not in running


async def test_the_lists_say_what_there_is(sqlite_ledger: Database, pages: Pages) -> None:
    # case: F24
    for path, empty in {
        "events": "No event fits.", "dead": "Nothing is dead.", "findings": "Nothing is open in default",
        "quarantine": "Nothing lies in quarantine", "handlers": "No worker has begun yet.",
        "plans": "No plan was made yet.", "audit": "Nothing was noted",
    }.items():  # fmt: skip
        assert empty in await text(pages, f"/console/{path}")
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(number) for number in range(1, 121)], facts.NOW)
        await quarantine.put(session, [(facts.delivery(1), Reason.NOT_CONFIRMED)], facts.NOW)
        audit.note(session, at=facts.NOW, application="default", actor="operator:ada", action="x", subject="order:7")
    seen = await text(pages, "/console/events")
    assert seen.count("<tr>") == 101, "a hundred and the head"
    assert "evt_120" in seen
    everything = await text(pages, "/console/events?limit=1000")
    assert everything.count("<tr>") == 121
    assert "limit=1000" in await text(pages, "/console/events?page_=x&prefix=y&self=z")
    assert (await text(pages, "/console/events?order=7&type=order.paid")).count("<tr>") == 2
    assert "No event fits." in await text(pages, "/console/events?since=2026-01-01T12:01&until=")
    assert (await text(pages, "/console/events?since=2026-01-01T11:59&type=order.*&limit=5")).count("<tr>") == 6
    for odd in ("since=soon", "since=0001-01-01T00:00", "until=9999-12-31T23:59:59-14:00", "status=gone"):
        await text(pages, f"/console/events?{odd}", 400)
    assert "not_confirmed" in await text(pages, "/console/quarantine?reason=not_confirmed")
    await text(pages, "/console/quarantine?reason=none", 400)
    assert "operator:ada" in await text(pages, "/console/audit?subject=order:7")
    assert "Nothing was noted about this" in await text(pages, "/console/audit?subject=order:8")
    assert "unknown_path" in await text(pages, "/console/nothing", 404)


async def test_what_does_not_run_stands_before_what_runs(sqlite_ledger: Database, pages: Pages) -> None:
    # case: H9
    async with sqlite_ledger.transaction() as session:
        names = ("shop:a", "shop:b", "shop:c", "shop:d")
        found = [Handler(name=name, types=("order.paid",), function=nothing) for name in names]
        await handlers.register(session, found[:1], facts.NOW - timedelta(seconds=2 * handlers.LIVE_S))
        await handlers.register(session, found[1:], facts.NOW)
        await handlers.pause(session, "shop:c", by="operator:ann", reason="it ships twice", now=facts.NOW)
        await handlers.set_waiting(session, "shop:d", since=facts.NOW, reason="the carrier is away")
    seen = await text(pages, "/console/handlers")
    standing, running = seen.split("<table>")
    assert [name for name in names if name in standing] == ["shop:a", "shop:c", "shop:d"]
    for why in ("no living worker has it", "it ships twice", "the carrier is away"):
        assert why in standing
    assert [name for name in names if name in running] == ["shop:b"]


async def test_an_event_says_its_application_where_there_is_another(sqlite_ledger: Database, open_pages: Open) -> None:
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(1)], facts.NOW)
    named = '<th scope="col">application</th>'
    assert named not in await text(await open_pages(applications={"default": True}), "/console/events")
    for settings in ({"default": True, "other": True}, {"elsewhere": True}):
        assert named in await text(await open_pages(applications=settings), "/console/events")


async def test_dead_runs_say_whose_they_are_where_there_is_another(open_pages: Open, three_dead: None) -> None:
    # case: R10, G8
    assert "of default (" not in await text(await open_pages(applications={"default": True}), "/console/dead")
    seen = await text(await open_pages(applications={"default": True, "far": True}), "/console/dead")
    assert "<p>of default (2)</p>" in seen
    assert "<p>of default (1)</p>" in seen


async def test_a_list_says_what_became_of_each_event(sqlite_ledger: Database, pages: Pages, three_dead: None) -> None:
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(number) for number in (4, 5, 6)], facts.NOW)
        made = [facts.run(4, status=RunStatus.SUCCEEDED), facts.run(4, handler="shop:mail", status=RunStatus.RETRYING)]
        await runs.add(session, [*made, facts.run(5, status=RunStatus.SUCCEEDED)], facts.NOW)
    seen = await text(pages, "/console/events")
    said_of = dict(re.findall(r'event\?id=(evt_\d+)[^\n]*?<td class="\w+">(\w+)</td>', seen))
    assert said_of == {
        "evt_1": "dead", "evt_2": "dead", "evt_3": "dead", "evt_4": "retrying", "evt_5": "handled",
        "evt_6": "no_handler",
    }  # fmt: skip


async def test_times_in_what_changed_are_times(projections: Projections, pages: Pages) -> None:
    sub = {"id": "S1", "status": "ACTIVE", "customer_reference": "c1", "current_period_end": "2026-02-01T00:00:00Z"}
    await projections.feed(observed("subscription:S1", 1, sub))
    seen = await text(pages, "/console/subscription?id=S1")
    assert 'period end - → <time datetime="2026-02-01T00:00:00+00:00">2026-02-01 00:00:00Z</time>' in seen
    assert re.search(r">[^<]*\d\dT\d\d:", seen) is None
    seen = await text(pages, "/console/audit")
    event = r'<a href="event\?id=(obs_\w+)&amp;application=default">\1</a>'
    assert re.search(rf"<td><time[^>]+>2026-01-01 [\d:]+Z</time>.+access:subscription.+{event}", seen) is not None


async def test_what_waits_is_a_step_away_from_how_things_stand(pages: Pages) -> None:
    assert '<dt>dead runs</dt><dd><a href="dead">3</a></dd>' in await text(pages, "/console/")


# case: A50, G8
async def test_an_address_without_an_application_leads_to_what_another_one_has(
    pages: Pages, projections: Projections
) -> None:
    """It said that nothing has the name. And an order may be called as what it is."""
    await projections.feed(said("order.paid", "evt_1", order_id="A-far", application="other"))
    await projections.feed(said("order.paid", "evt_2", order_id="order", application="other"))
    for way, order_id in (("order?id=A-far", "A-far"), ("order?id=order", "order"), ("find?name=order", "order")):
        assert f"<h1>order <code>{order_id}</code></h1>" in await text(pages, f"/console/{way}")
    assert "evt_1" in await text(pages, "/console/event?id=evt_1", 200)
    assert "Nothing has the name" in await text(pages, "/console/order?id=A-far&application=default", 404)
