"""Whatever a handler raises or asks for, however odd, is its own failure: it is stored, its place is free again, and
who shares the event, the transaction and the worker notices nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal, getcontext
from functools import partial
from types import ModuleType
from typing import Any

import orjson
import pytest
import structlog
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from structlog.testing import capture_logs

from consumer.broker import Broker
from consumer.errors import HandlerInvalid
from consumer.ledger import Database
from consumer.ledger.tables import OutboxRow
from consumer.plugin import Context, Event, Reject, RetryLater, handles
from consumer.work.registry import load_registry
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 3
LONG = 1e15


class Base(DeclarativeBase):
    """Tables of these tests alone."""


class Seat(Base):
    """Which the database has otherwise: there somebody must have locked it."""

    __tablename__ = "test_seat"
    id: Mapped[str] = mapped_column(primary_key=True)
    locked_by: Mapped[str | None]


class NoText(Exception):
    """It cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class HalfMade(RetryLater):
    """A subclass that forgot its base."""

    def __init__(self) -> None:
        Exception.__init__(self)


class Own(BaseException):
    """Not even an Exception."""


class OddCode(RetryLater):
    """A code of the author's own, longer than a column."""

    code = "o\0dd\ud800" * 40


class Endless(RetryLater):
    """Says something else afterwards."""

    def __init__(self) -> None:
        super().__init__(1)
        self.after_s = float("inf")


LAST_IN_NEW_YORK = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))

RAISED: dict[str, Callable[[], BaseException]] = {
    "exits": lambda: SystemExit(3),
    "interrupted": KeyboardInterrupt,
    "own": lambda: Own("x"),
    "generator": GeneratorExit,
    "half_a_character": lambda: ValueError("bad \ud800 text"),
    "no_text": NoText,
    "reject_nothing": lambda: Reject(None),  # type: ignore[arg-type]  # what it is about
    "reject_half": lambda: Reject("\ud800\0"),
    "later_for_ever": lambda: RetryLater(float("inf")),
    "later_never": lambda: RetryLater(float("nan")),
    "later_long": lambda: RetryLater(LONG),
    "later_half_made": HalfMade,
}
WAITING: dict[str, Callable[[], BaseException]] = {"odd_code": lambda: OddCode(3600), "endless": Endless}

ASKED: dict[str, Callable[[Event, Context], object]] = {
    "note_decimal": lambda event, ctx: ctx.note(event.key, "said", {}, {"amount": Decimal(1)}),
    "note_subject": lambda _, ctx: ctx.note("s" * 601, "said", {}, {}),
    "note_action": lambda event, ctx: ctx.note(event.key, "a" * 61, {}, {}),
    "note_nul": lambda _, ctx: ctx.note("s\0", "said", {}, {}),
    "emit_no_zone": lambda event, ctx: ctx.emit("shop.said", event.key, {}, not_before=datetime(2026, 1, 1)),  # noqa: DTZ001 - it is about that
    "emit_no_utc": lambda event, ctx: ctx.emit("shop.said", event.key, {}, not_before=LAST_IN_NEW_YORK),
    "emit_decimal": lambda event, ctx: ctx.emit("shop.said", event.key, {"amount": Decimal(1)}),
    "emit_half": lambda _, ctx: ctx.emit("shop.said", "order:\ud800", {}),
    "emit_nul": lambda _, ctx: ctx.emit("shop.said", "order:\0", {}),
    "emit_key": lambda _, ctx: ctx.emit("shop.said", "k" * 601, {}),
    "emit_type": lambda event, ctx: ctx.emit("shop." + "x" * 100, event.key, {}),
    "emit_number": lambda _, ctx: ctx.emit("shop.said", 5, {}),  # type: ignore[arg-type]  # what it is about
    "read_id": lambda _, ctx: ctx.request_read("order", "x" * 256),
    "read_nul": lambda _, ctx: ctx.request_read("order", "x\0"),
    "read_number": lambda _, ctx: ctx.request_read("order", 5),  # type: ignore[arg-type]  # what it is about
    "read_no_utc": lambda _, ctx: ctx.request_read("order", "A-1", not_before=LAST_IN_NEW_YORK),
    "read_no_zone": lambda _, ctx: ctx.request_read("order", "A-1", not_before=datetime(2026, 1, 1)),  # noqa: DTZ001 - it is about that
}


def odd(name: str, act: Callable[[Event, Context], object], *, transactional: bool) -> Any:
    """A handler with one attempt and room for one run at a time: a run that is never settled would be seen."""

    @handles("order.paid", name=f"test:{name}", attempts=1, concurrency=1, transactional=transactional, pause_after=0)
    async def function(event: Event, ctx: Context) -> None:
        act(event, ctx)

    return function


def raising(make: Callable[[], BaseException]) -> Callable[[Event, Context], object]:
    def act(event: Event, ctx: Context) -> object:
        raise make()

    return act


async def assert_alone(
    shop: Workshop, dead: list[str], waiting: list[str] | None = None, *, code: str | None = None
) -> None:
    """Each of the odd ones came to its end with every event; the innocent one succeeded at its first attempt."""
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: shop.count("test:innocent", "succeeded", EVENTS), within_s=30)
        for name in dead:
            await eventually(partial(shop.count, f"test:{name}", "dead", EVENTS), within_s=30, what=name)
        for name in waiting or []:
            await eventually(partial(told, shop, name), within_s=30, what=name)
    assert {row.attempts for row in await shop.runs("test:innocent")} == {1}
    assert code is None or {row.code for row in await shop.runs() if row.status == "dead"} == {code}


async def told(shop: Workshop, name: str) -> bool:
    return {(row.status, bool(row.code)) for row in await shop.runs(f"test:{name}")} == {("retrying", True)}


# case: H3, H4, R10
@pytest.mark.parametrize("transactional", [True, False])
async def test_what_it_raises(database: Database, broker: Broker, transactional: bool) -> None:
    shop = Workshop(
        database,
        broker,
        [
            odd("innocent", lambda _, __: None, transactional=transactional),
            *[odd(name, raising(make), transactional=transactional) for name, make in (RAISED | WAITING).items()],
        ],
    )
    await assert_alone(shop, list(RAISED), list(WAITING))


# case: H3, H4, R10
async def test_what_it_asks_for(database: Database, broker: Broker) -> None:
    shop = Workshop(
        database,
        broker,
        [
            odd("innocent", lambda _, __: None, transactional=True),
            *[odd(name, act, transactional=True) for name, act in ASKED.items()],
        ],
    )
    await assert_alone(shop, list(ASKED), code="handler_misuse")


# case: H3, G2
async def test_a_broken_statement_that_it_keeps_to_itself(database: Database, broker: Broker) -> None:
    """On PostgreSQL nothing of a transaction can be kept after one: neither may it be the others' end."""

    @handles("order.paid", name="test:swallows", attempts=1, transactional=True, pause_after=0)
    async def swallows(event: Event, ctx: Context) -> None:
        try:
            await ctx.session.execute(text("SELECT * FROM no_such_table"))
        except DBAPIError:
            return

    shop = Workshop(database, broker, [odd("innocent", lambda _, __: None, transactional=True), swallows])
    on_postgresql = database.dialect == "postgresql"
    await assert_alone(shop, ["swallows"] if on_postgresql else [])


# case: H3, G2
async def test_what_it_adds_and_the_database_refuses(database: Database, broker: Broker) -> None:
    """It is sent after the handler, and by what the database says of it (`locked`) no ledger is taken for locked."""

    @handles("order.paid", name="test:adds", attempts=1, transactional=True, pause_after=0)
    async def adds(event: Event, ctx: Context) -> None:
        ctx.session.add(Seat(id=event.id))

    async with database.transaction() as session:
        await session.execute(text("CREATE TABLE test_seat (id TEXT PRIMARY KEY, locked_by TEXT NOT NULL)"))
    shop = Workshop(database, broker, [odd("innocent", lambda _, __: None, transactional=True), adds])
    await assert_alone(shop, ["adds"], code="handler_failed")


# case: H3, G2
async def test_what_the_database_refuses_at_the_commit(database: Database, broker: Broker) -> None:
    """A constraint that is deferred names nobody: each handler is tried in a transaction of its own."""
    async with database.transaction() as session:
        await session.execute(text("CREATE TABLE test_seat (id TEXT PRIMARY KEY)"))
        await session.execute(
            text("CREATE TABLE test_guest (seat TEXT REFERENCES test_seat (id) DEFERRABLE INITIALLY DEFERRED)")
        )

    @handles("order.paid", name="test:seats", attempts=1, transactional=True, pause_after=0)
    async def seats(event: Event, ctx: Context) -> None:
        await ctx.session.execute(text("INSERT INTO test_guest VALUES ('nowhere')"))

    shop = Workshop(database, broker, [odd("innocent", lambda _, __: None, transactional=True), seats])
    with capture_logs():  # to show each failure in full takes longer than all the rest
        await assert_alone(shop, ["seats"], code="handler_failed")


# case: H3, G2
async def test_what_it_goes_on_to_fill_after_it_asked(database: Database, broker: Broker) -> None:
    """It is sent as it was when it was asked for, and what JSON cannot hold harms nobody."""

    @handles("order.paid", name="test:fills", attempts=1, transactional=True, pause_after=0)
    async def fills(event: Event, ctx: Context) -> None:
        data: dict[str, Any] = {"lines": [{"amount": "1.00"}]}
        ctx.emit("shop.said", event.key, data)
        ctx.note(event.key, "said", {}, data)
        data["lines"][0]["amount"] = Decimal(1)

    shop = Workshop(database, broker, [odd("innocent", lambda _, __: None, transactional=True), fills])
    await assert_alone(shop, [])
    assert await shop.statuses("test:fills") == ["succeeded"] * EVENTS
    async with database.reading() as session:
        sent = (await session.execute(select(OutboxRow.__table__.c.data))).scalars().all()
    assert [orjson.loads(one) for one in sent] == [{"lines": [{"amount": "1.00"}]}] * EVENTS


# case: H4, S9
async def test_what_it_does_to_what_it_is_given(sqlite_ledger: Database, broker: Broker) -> None:
    """To the body, to how Python reckons, to the log's context: who follows in the task, and who gets the event next,
    find all as it was."""
    seen: list[tuple[object, str, dict[str, Any]]] = []

    def look(event: Event, _: Context) -> None:
        seen.append(
            (event.data["data"]["object"], str(Decimal(1) / Decimal(3)), structlog.contextvars.get_contextvars())
        )

    def spoil(event: Event, _: Context) -> None:
        event.data["data"]["object"].clear()
        getcontext().prec = 2
        structlog.contextvars.bind_contextvars(customer="ada")

    spoils, looks, ships = (
        odd(name, act, transactional=transactional)
        for name, act, transactional in (("spoils", spoil, True), ("innocent", look, True), ("ships", look, False))
    )
    shop = Workshop(sqlite_ledger, broker, [spoils, looks, ships])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(3 * EVENTS), within_s=30)
    third = str(Decimal(1) / Decimal(3))
    assert sorted(seen, key=str) == [({"order_id": f"order-{one}"}, third, {}) for one in range(EVENTS) for _ in "12"]


# case: H8
@pytest.mark.parametrize("name", ["n" * 201, "shop:\0", "shop:\ud800"])
def test_a_name_that_the_ledger_cannot_hold_breaks_its_plugin_only(name: str) -> None:
    found = load_registry(
        ["good", "bad"],
        extra={"bad": module("bad", odd_name(name)), "good": module("good", odd_name("good:one"))},
    )
    assert [handler.name for handler in found.handlers] == ["good:one"]
    (broken,) = [one for one in found.broken if one.plugin == "bad"]
    assert broken.reason.startswith("HandlerInvalid: the name of a handler has")


# case: H8
def test_whatever_is_raised_at_import_breaks_its_plugin_only() -> None:
    class Raises(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                raise Own("at import")
            return super().__getattribute__(name)

    found = load_registry(["good", "bad"], extra={"bad": Raises("bad"), "good": module("good", odd_name("good:one"))})
    assert [handler.name for handler in found.handlers] == ["good:one"]
    assert "Own: at import" in {one.reason for one in found.broken}


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": float("nan")}, {"timeout_s": float("inf")}, {"timeout_s": LONG}, {"concurrency": 0.5},
        {"first_wait_s": float("nan")}, {"max_wait_s": LONG}, {"wait_factor": 1e6}, {"wait_factor": float("nan")},
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    async def ship(event: Event, ctx: Context) -> None:
        return None

    with pytest.raises(HandlerInvalid):
        handles("order.paid", **options)(ship)  # type: ignore[no-untyped-call]  # any of the overloads


def odd_name(name: str) -> Any:
    @handles("order.paid", name=name)
    async def function(event: Event, ctx: Context) -> None:
        return None

    return function


def module(name: str, function: object) -> ModuleType:
    found = ModuleType(name)
    found.handler = function  # type: ignore[attr-defined]  # as an import would
    return found
