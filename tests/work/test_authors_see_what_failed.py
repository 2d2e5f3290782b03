"""What an author sees: the lines of the own code that failed, the payload as a fixture, what is wrong with a plugin."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
import structlog
from sqlalchemy import select, update

from consumer.broker import Broker
from consumer.clock import SystemClock
from consumer.console.event_view import event_view
from consumer.errors import NotFound
from consumer.events import Source
from consumer.ledger import Database
from consumer.ledger.tables import AuditRow, EventRow
from consumer.plugin import Context, Event, OrderEvent, handles
from consumer.telemetry.logs import configure_logging
from consumer.testing import Workbench
from consumer.wire import own_event
from tests.support.desk import Desk
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import command
from tests.work.workshop import Workshop

FILE = "tests/work/test_authors_see_what_failed.py"


def too_small(amount: str) -> None:
    raise ValueError("too small")


@handles("fulfilment.requested", attempts=1, name="test:picky")
async def picky(event: Event, ctx: Context) -> None:
    too_small(event.data["data"]["amount"])


@pytest.fixture
async def desk(sqlite_ledger: Database, broker: Broker, tmp_path: Path) -> Desk:
    """A ledger with a run that died."""
    shop = Workshop(sqlite_ledger, broker, [picky])
    data = {"order_id": "A-1", "amount": "25.00", "customer": "jane@example.org", "record": {"metadata": {"x": "Jane"}}}
    await shop.publish(
        own_event(application="default", id="drv_1", type="fulfilment.requested", key="order:A-1",
                  source=Source.RELAY, at=SystemClock().now(), data=data)
    )  # fmt: skip
    async with shop.working():
        await eventually(lambda: shop.count("test:picky", "dead", 1))
    return Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})


# case: R4
async def test_the_log_and_the_list_of_the_dead_name_the_authors_lines(
    sqlite_ledger: Database, broker: Broker, tmp_path: Path
) -> None:
    line, stream = too_small.__code__.co_firstlineno + 1, io.StringIO()
    configure_logging("info", "json", stream)
    try:
        shop = Workshop(sqlite_ledger, broker, [picky])
        for number in range(2):
            data = {"order_id": f"A-{number}", "amount": "25.00"}
            await shop.publish(
                own_event(application="default", id=f"drv_{number}", type="fulfilment.requested", key=f"order:{number}",
                          source=Source.RELAY, at=SystemClock().now(), data=data)
            )  # fmt: skip
        async with shop.working():
            await eventually(lambda: shop.count("test:picky", "dead", 2))
    finally:
        structlog.reset_defaults()
    lines = [json.loads(one) for one in stream.getvalue().splitlines()]
    died = [one for one in lines if one["event"] == "run_dead"]
    assert [str(one["where"]).startswith(f"{FILE}:{line} in too_small") for one in died] == [True, True]
    assert all(str(one["at"]).endswith("Z") for one in died), "when it was written"
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    [group] = (await asyncio.to_thread(desk.ask, "dead", "list"))["groups"]
    assert (group["count"], group["place"]) == (2, f"{FILE}:{line} in too_small")
    told = (await asyncio.to_thread(desk.call, "dead", "list")).stdout
    assert f"at {FILE}:{line} in too_small" in told


# case: R4
async def test_the_query_api_names_the_authors_lines(desk: Desk, sqlite_ledger: Database) -> None:
    line = too_small.__code__.co_firstlineno + 1
    async with sqlite_ledger.reading() as session:
        seen = await event_view(session, "default", "drv_1")
        with pytest.raises(NotFound):
            await event_view(session, "default", "drv_2")
    (attempt,) = seen["attempts"]
    assert attempt["trace"].startswith(f"{FILE}:{line} in too_small < ")
    assert [(one["handler"], one["status"]) for one in seen["runs"]] == [("test:picky", "dead")]
    assert "jane" not in str(seen)


# case: R4
async def test_a_failed_run_names_the_authors_lines(desk: Desk) -> None:
    await asyncio.to_thread(_names_the_lines, desk)


def _names_the_lines(desk: Desk) -> None:
    line = too_small.__code__.co_firstlineno + 1
    inner, outer = f"{FILE}:{line} in too_small", f"{FILE}:{picky.__code__.co_firstlineno + 2} in picky"
    (attempt,) = desk.ask("events", "show", "drv_1")["attempts"]
    assert attempt["trace"] == f"{inner} < {outer}"
    assert desk.ask("dead", "list")["dead"][0]["trace"] == attempt["trace"]
    told = desk.call("events", "show", "drv_1").stdout
    assert f"  at {inner}\n  at {outer}\n" in told
    assert "25.00" not in attempt["trace"]
    (listed,) = desk.ask("events", "list", "--handler", "test:picky")["events"]
    assert (listed["run"], listed["attempts"], listed["code"]) == ("dead", 1, "handler_failed")
    assert {one["id"]: one["outcome"] for one in desk.ask("events", "list")["events"]}["drv_1"] == "dead"


# case: S9
async def test_the_payload_is_masked_and_raw_is_audited(desk: Desk, sqlite_ledger: Database) -> None:
    masked = await asyncio.to_thread(desk.ask, "events", "show", "drv_1")
    assert masked["payload"]["data"]["amount"] == "25.00"
    assert "jane" not in json.dumps(masked).lower()
    raw = await asyncio.to_thread(desk.ask, "events", "show", "drv_1", "--raw")
    assert raw["payload"]["data"]["customer"] == "jane@example.org"
    async with sqlite_ledger.reading() as session:
        actions = [(row.action, row.subject) for row in (await session.execute(select(AuditRow))).scalars()]
    assert actions.count(("event.shown_raw", "event:drv_1")) == 1


# case: S9
@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        (b'{"id":"drv_1","data":{"customer":"Jane","note":"\\ud83d","metadata":{"to":"Jane"}}}', True),
        (b'{"id":"drv_1","data":{"customer":"Jane","metadata":{"to":"Jane"}', False),
    ],
    ids=["half a character", "cut short"],
)
async def test_a_body_that_is_odd_is_masked_as_any_other(
    desk: Desk, sqlite_ledger: Database, body: bytes, is_read: bool
) -> None:
    async with sqlite_ledger.transaction() as session:
        await session.execute(update(EventRow).where(EventRow.__table__.c.id == "drv_1").values(raw=body))
    shown = await asyncio.to_thread(desk.ask, "events", "show", "drv_1")
    assert "Jane" not in json.dumps(shown)
    assert isinstance(shown["payload"], dict) == is_read
    raw = await asyncio.to_thread(desk.ask, "events", "show", "drv_1", "--raw")
    assert raw["payload"] == body.decode()


async def test_a_shown_event_is_a_fixture(desk: Desk, tmp_path: Path) -> None:
    shown = await asyncio.to_thread(desk.call, "events", "show", "drv_1", "--json")
    fixture = tmp_path / "fixture.json"
    fixture.write_text(shown.stdout)
    with Workbench() as bench:
        event = bench.event_from(fixture)
        assert (event.key, event.order_id, event.payload.order_id) == ("order:A-1", "A-1", "A-1")  # type: ignore[attr-defined]  # of no certain type
        ran = bench.run(picky, event)
        assert ran.status == "dead"
        assert (ran.trace or "").startswith(FILE)


def test_a_service_event_read_back_has_its_payload() -> None:
    with Workbench() as bench:
        paid: Event[OrderEvent] = bench.event("order.paid", order_id="A-1", data={"color": "red"})  # type: ignore[assignment]  # narrowed by the test
        assert (paid.payload.order_id, paid.payload.status, paid.payload.more) == ("A-1", "PAID", {"color": "red"})


# case: H8
def test_check_names_file_and_line_of_what_is_wrong(tmp_path: Path) -> None:
    install_plugin(tmp_path, "shopbroken", "import os\n\nVALUE = os.environ['NOT_THERE']\n")
    install_plugin(tmp_path, "shopsyntax", "def ship(:\n    pass\n")
    handler = "@handles('{type}', name='shop:ship')\nasync def ship(event: Event, ctx: Context) -> None: ...\n"
    head = "from consumer.plugin import Context, Event, handles\n\n"
    install_plugin(tmp_path, "shopa", head + handler.format(type="order.payed"))
    environ = install_plugin(tmp_path, "shopb", head + handler.format(type="order.paid"))
    told = command("handlers", "check", environ=environ | {"CONSUMER_LOG_LEVEL": "error"})
    assert told.returncode == 1
    assert "shopbroken.py:3" in told.stdout
    assert "shopsyntax.py:1" in told.stdout
    assert "two handlers are called 'shop:ship': plugin 'shopa'" in told.stdout
    assert "plugin 'shopb'" in told.stdout
    assert (
        "warning: shopa: shop:ship: no event of type 'order.payed' is known; did you mean 'order.paid'?" in told.stdout
    )
