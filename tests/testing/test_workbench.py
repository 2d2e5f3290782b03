"""The workbench runs handlers as the worker does, and shows what came of it."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType
from typing import Any, ClassVar

import pytest
from sqlalchemy import Table
from sqlmodel import Field, SQLModel

from consumer.plugin import Context, Event, Payload, Reject, RetryLater, handles
from consumer.testing import Answer, Workbench, ground


class KitTally(SQLModel, table=True):
    """A plugin's own table."""

    __tablename__ = "kit_tally"
    __table__: ClassVar[Table]

    event_id: str = Field(primary_key=True)
    order_id: str


class KitRequested(Payload, event="kit.requested"):
    """What the projection below says."""

    order_id: str


@handles("order.paid", transactional=True, name="kit:project")
async def project(event: Event, ctx: Context) -> None:
    ctx.session.add(KitTally(event_id=event.id, order_id=event.order_id or ""))
    ctx.emit("kit.requested", event.key, {"order_id": event.order_id}, once="order")
    ctx.request_read("order", event.order_id or "")


@handles("fulfilment.requested", "kit.requested", name="kit:ship", attempts=3, first_wait_s=10, wait_factor=1)
async def ship(event: Event, ctx: Context) -> None:
    async with ctx.http.post(
        ctx.options["url"], json={"order": event.order_id}, headers={"Idempotency-Key": ctx.idempotency_key}
    ) as answer:
        answer.raise_for_status()


def test_a_projection_and_what_follows_from_it(workbench: Workbench) -> None:
    workbench.options["url"] = "https://warehouse.example/ship"
    ran = workbench.run(project, workbench.event("order.paid", order_id="A-1"))
    assert ran.succeeded
    assert [row.order_id for row in workbench.rows(KitTally)] == ["A-1"]
    assert workbench.reads == [("order", "A-1")]
    (requested,) = workbench.emitted
    assert (requested.type, requested.key, requested.order_id) == ("kit.requested", "order:A-1", "A-1")

    assert workbench.run(ship, requested).succeeded
    (request,) = workbench.outside.requests
    assert (request.method, request.body) == ("POST", {"order": "A-1"})
    assert request.idempotency_key is not None
    assert request.idempotency_key.startswith("ik_")


def test_time_is_driven(workbench: Workbench) -> None:
    workbench.options["url"] = "https://warehouse.example/ship"
    workbench.outside.answer = lambda _: Answer(status=422)
    event = workbench.event("fulfilment.requested", order_id="A-1")
    assert workbench.run(ship, event).status == "retrying"
    workbench.advance(5, ship)
    assert len(workbench.outside.requests) == 1
    workbench.advance(5, ship)
    assert len(workbench.outside.requests) == 2
    workbench.outside.answer = lambda _: Answer()
    workbench.advance(10, ship)
    assert workbench.runs[-1].succeeded
    assert workbench.runs[-1].attempts == 3


# case: R11
def test_an_outage_on_the_bench_costs_no_attempt_for_ever(workbench: Workbench) -> None:
    workbench.options["url"] = "https://warehouse.example/ship"
    workbench.outside.answer = lambda _: Answer(error=ConnectionRefusedError("away"))
    workbench.run(ship, workbench.event("fulfilment.requested", order_id="A-1"))
    for _ in range(10):
        workbench.advance(100, ship)
    assert workbench.runs[-1].status == "retrying"


# case: H11
def test_a_loop_that_does_not_end_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test hung for two minutes, and said TimeoutError."""
    monkeypatch.setattr(ground, "LIMIT_S", 2.0)
    is_over = threading.Event()

    @handles("order.paid", transactional=True, name="kit:endless")
    async def endless(event: Event, ctx: Context) -> None:
        while not is_over.is_set():
            pass

    begun = time.monotonic()
    try:
        with Workbench() as bench, pytest.raises(AssertionError, match=r"endless: it holds its event loop .*bench\.py"):
            bench.run(endless, bench.event("order.paid", order_id="A-1"))
        assert time.monotonic() - begun < 10
    finally:
        is_over.set()


def test_refusing_and_asking_for_later(workbench: Workbench) -> None:
    @handles("order.paid", name="kit:picky")
    async def picky(event: Event, ctx: Context) -> None:
        if event.order_id == "bad":
            raise Reject("no such product")
        if ctx.now < later:
            raise RetryLater(60, "not open yet")

    later = workbench.clock.now().replace(hour=1)
    assert workbench.run(picky, workbench.event("order.paid", order_id="bad")).status == "dead"
    assert workbench.run(picky, workbench.event("order.paid", order_id="good")).attempts == 0
    workbench.advance(3600, picky)
    assert workbench.runs[-1].succeeded


async def test_it_works_from_an_async_test_too(workbench: Workbench) -> None:
    workbench.options["url"] = "https://warehouse.example/ship"
    assert workbench.run(ship, workbench.event("fulfilment.requested", order_id="A-1")).succeeded


def test_an_event_of_the_service_has_what_was_given(workbench: Workbench) -> None:
    event = workbench.event("subscription.created", subscription_id="sub_1", customer="c-1", data={"status": "ACTIVE"})
    assert (event.key, event.customer, event.find("/data/object/status")) == ("subscription:sub_1", "c-1", "ACTIVE")


@pytest.mark.parametrize(
    ("event_type", "given", "key"),
    [
        ("order.paid", {}, "order:order-1"),
        ("order.paid", {"customer": "c-1"}, "order:order-1"),
        ("subscription.renewed", {"order_id": "A-1"}, "subscription:subscription-1"),
        ("subscription.created", {"data": {"id": "sub_9"}}, "subscription:sub_9"),
        ("fulfilment.requested", {"customer": "c-1"}, "order:order-1"),
        ("fulfilment.requested", {"data": {"order_id": "A-9"}}, "order:A-9"),
        ("access.granted", {"order_id": "A-1"}, "customer:customer-1"),
        ("access.unresolved", {"order_id": "A-1", "subscription_id": "sub_1"}, "subscription:sub_1"),
        ("subscription.observed", {}, "subscription:subscription-1"),
        ("session.observed", {"order_id": "A-1"}, "session:session_1"),
        ("kit.requested", {"customer": "c-1"}, "customer:c-1"),
    ],
)
def test_an_event_is_about_what_its_type_is_about(
    workbench: Workbench, event_type: str, given: dict[str, Any], key: str
) -> None:
    """A handler that goes by `event.key`, or by what the event is about, was tested on what never comes."""
    event = workbench.event(event_type, **given)
    assert event.key == key
    kind, _, name = key.partition(":")
    found = {"order": event.order_id, "subscription": event.subscription_id, "customer": event.customer}
    assert found.get(kind, name) == name


def module_with(name: str, option: str, type_: str) -> Any:
    """A plugin's module: its OPTIONS take one name, and its handler tells the value."""
    made = ModuleType(name)
    sys.modules[name] = made
    source = f"""
from pydantic import BaseModel, ConfigDict
from consumer.plugin import handles
class OPTIONS(BaseModel):
    model_config = ConfigDict(extra="forbid")
    {option}: str
@handles("{type_}", transactional=True, name="{name}:tells")
async def tells(event, ctx):
    ctx.emit("kit.told", event.key, {{"said": ctx.options.{option}}}, once="{name}")
"""
    exec(source, made.__dict__)
    return made


def test_two_plugins_on_one_bench_have_options_of_their_own(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one emits and another handles is tested together: each refused the other's options."""
    for name in ("kit_one", "kit_two"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    one, two = module_with("kit_one", "url", "order.paid"), module_with("kit_two", "token", "order.paid")
    workbench.options.update({"url": "here", "token": "secret"})
    workbench.run([one.tells, two.tells], workbench.event("order.paid", order_id="A-1"))
    assert {event.find("/data/said") for event in workbench.emitted} == {"here", "secret"}
    workbench.options["tokn"] = "mistyped"
    assert workbench.run([one.tells, two.tells], workbench.event("order.paid", order_id="A-2")).code == "handler_misuse"
