"""`handlers try` shows what a handler would do on a recorded event, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from consumer.cli.developing import authoring
from consumer.cli.developing.simulator import running_at, tell_running
from consumer.cli.developing.trying import Tried, attempt, event_named
from consumer.cli.output import Output
from consumer.errors import NotFound, UsageError
from consumer.events import Trust
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.tables import OutboxRow, ReadRow
from consumer.plugin import Context, Event, declared, handles
from consumer.testing import Workbench
from handlers.fulfilment.handler import order_paid
from handlers.fulfilment.tables import ORDERS
from tests.support.desk import Desk
from tests.testing import wrong_handlers


async def tried(database: Database, function: Any, event: Event, options: dict[str, Any] | None = None) -> Tried:
    handler = declared(function)
    assert handler is not None
    return await attempt(database, handler, event, {handler.plugin: options or {}})


def event(event_type: str) -> Event:
    with Workbench() as bench:
        return bench.event(event_type, order_id="A-1")


# case: H11
async def test_a_projection_shows_what_it_would_write_and_leaves_nothing(database: Database) -> None:
    found = await tried(database, order_paid, event("order.paid"), {"matching": "off"})
    assert found.transition.code is None
    assert {one["table"] for one in found.wrote} >= {"fulfilment_order"}
    assert [one["type"] for one in found.emitted] == ["fulfilment.requested"]
    async with database.reading() as session:
        for table in (ORDERS, OutboxRow.__table__, ReadRow.__table__):
            assert await session.scalar(select(func.count()).select_from(table)) == 0


async def test_an_effect_shows_what_it_would_call_and_calls_nobody(database: Database) -> None:
    @handles("fulfilment.requested", name="test:tells")
    async def tells(given: Event, ctx: Context) -> None:
        async with ctx.http.post("https://shop.example", json={"order": given.order_id}) as answer:
            answer.raise_for_status()

    found = await tried(database, tells, event("fulfilment.requested"))
    assert [(one["method"], one["body"]) for one in found.called] == [("POST", {"order": "A-1"})]
    own = await tried(database, wrong_handlers.own_aiohttp, event("fulfilment.requested"))
    assert own.transition.code == "network_refused"
    assert "by a client of its own" in own.refused[0]


# case: H11
async def test_what_is_asked_of_the_service_is_shown_and_not_done(database: Database) -> None:
    """On PostgreSQL too, where looking a snapshot up would be a connection of its own."""
    with Workbench() as bench:
        record = {"id": "ord_1", "order_id": "A-1", "status": "PAID"}
        observed = bench.event("order.observed", order_id="A-1", data={"record": record})
        requested = bench.event("fulfilment.requested", order_id="A-1")
    async with database.transaction() as session:
        await events.record(session, [replace(observed, trust=Trust.READ)], observed.received_at)
    seen: list[Any] = []

    @handles("fulfilment.requested", name="test:asks")
    async def asks(given: Event, ctx: Context) -> None:
        snapshot, again = await asyncio.gather(ctx.snapshot(), ctx.snapshot("order", "A-1"))
        order = await ctx.payments.orders.lookup("A-1")
        seen.extend([snapshot, again, order.is_paid])
        await ctx.payments.checkout_sessions.create(
            mode="payment", order_id="A-2", amount="1.00", description="More", success_url="https://shop.example/ok",
            cancel_url="https://shop.example/no", idempotency_key=ctx.idempotency_key,
        )  # fmt: skip

    found = await tried(database, asks, requested)
    assert found.transition.code is None, found.transition
    assert found.refused == []
    assert (seen[0].status, seen[1], seen[2]) == ("PAID", seen[0], True)
    looked, created = found.called
    assert (looked["method"], looked["url"]) == ("GET", "payments:/v1/orders/lookup")
    assert (created["method"], created["url"]) == ("POST", "payments:/v1/checkout-sessions")
    assert created["body"]["order_id"] == "A-2"
    assert created["idempotency_key"]


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_it_cannot_undo_it_does_not_deny(
    sqlite_ledger: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], transactional: bool
) -> None:
    """An effect by a file, or by a database's client in C, is done: it was said that nothing was written."""
    users = tmp_path / "users.db"

    @handles("fulfilment.requested", name="test:lets_in", transactional=transactional)
    async def lets_in(given: Event, ctx: Context) -> None:
        if not transactional:
            await asyncio.to_thread(users.write_text, "ada")

    authoring._print(Output(False), await tried(sqlite_ledger, lets_in, event("fulfilment.requested")))
    said = capsys.readouterr().out
    assert "nothing was written, emitted or sent" in said
    assert ("was done, and is not shown" in said) is users.exists() is not transactional


async def test_a_failure_names_the_line(database: Database) -> None:
    @handles("fulfilment.requested", name="test:fails")
    async def fails(given: Event, ctx: Context) -> None:
        raise KeyError("color")

    found = await tried(database, fails, event("fulfilment.requested"))
    assert found.transition.code == "handler_failed"
    line = fails.__code__.co_firstlineno + 2
    assert f"{Path(__file__).name}:{line} in " in (found.transition.trace or "")


@pytest.mark.usefixtures("upgraded")
def test_the_commands_say_what_is_not_there(desk: Desk) -> None:
    nobody = desk.call("handlers", "try", "shop:nobody", "--event", "evt_1")
    assert (nobody.returncode, NotFound.code in nobody.stderr) == (1, True)
    nothing = desk.call("handlers", "try", "fulfilment:order_paid", "--event", "evt_1")
    assert "there is no file of that name" in nothing.stderr
    assert "cannot be imported" in desk.call("handlers", "simulate", "no_such_module").stderr


async def test_an_event_is_found_by_file_or_id(database: Database, tmp_path: Path) -> None:
    wrong = tmp_path / "fixture.json"
    wrong.write_text("{}")
    with pytest.raises(UsageError, match="is not a file that `consumer events show ID --json` wrote"):
        await event_named(database, str(wrong), "default")


async def test_an_event_is_found_in_whichever_application_has_it(database: Database) -> None:
    one = replace(event("order.paid"), application="shop")
    await kept(database, one)
    assert await event_named(database, one.id, None) == await event_named(database, one.id, "shop")
    with pytest.raises(NotFound):
        await event_named(database, one.id, "default")
    with pytest.raises(NotFound):
        await event_named(database, "evt_of_nobody", None)
    await kept(database, replace(one, application="other"))
    with pytest.raises(UsageError, match="several applications have an event of this id"):
        await event_named(database, one.id, None)


async def kept(database: Database, one: Event) -> None:
    async with database.transaction() as session:
        await events.record(session, [one], one.received_at)


def test_the_running_sandbox_is_found_on_this_machine_only(tmp_path: Path) -> None:
    assert running_at(tmp_path) is None
    tell_running(tmp_path, "http://127.0.0.1:4711")
    assert running_at(tmp_path) == "http://127.0.0.1:4711"
    tell_running(tmp_path, "http://shop.example")
    assert running_at(tmp_path) is None
