"""The warehouse is told once per order, whatever happens on the way."""

from __future__ import annotations

from consumer.testing import Answer, Workbench, assert_idempotent, assert_order_independent
from handlers.template.handler import ship

OPTIONS = {"url": "https://warehouse.example/parcels"}


def test_it_tells_the_warehouse(workbench: Workbench) -> None:
    workbench.options.update(OPTIONS)
    assert workbench.run(ship, workbench.event("fulfilment.requested", order_id="A-1")).succeeded
    (request,) = workbench.outside.requests
    assert request.body == {"order_id": "A-1"}
    assert request.idempotency_key


def test_it_tries_again_when_the_warehouse_is_down(workbench: Workbench) -> None:
    workbench.options.update(OPTIONS)
    workbench.outside.answer = lambda _: Answer(status=503)
    assert workbench.run(ship, workbench.event("fulfilment.requested", order_id="A-1")).status == "retrying"
    workbench.outside.answer = lambda _: Answer(status=200)
    workbench.advance(3600, ship)
    assert workbench.runs[-1].succeeded


def test_without_an_address_the_order_waits_and_reads_as_shipped_by_nobody(workbench: Workbench) -> None:
    ran = workbench.run(ship, workbench.event("fulfilment.requested", order_id="A-1"))
    assert (ran.status, ran.attempts, ran.code) == ("retrying", 0, "retry_later")
    assert "set url" in (ran.reason or "")
    workbench.options.update(OPTIONS)
    workbench.advance(3600, ship)
    assert workbench.runs[-1].succeeded
    assert len(workbench.outside.requests) == 1


def test_repetition_changes_nothing() -> None:
    assert_idempotent(ship, options=OPTIONS)


def test_order_changes_nothing(workbench: Workbench) -> None:
    events = [workbench.event("fulfilment.requested", order_id=order) for order in ("A-1", "A-2", "A-3")]
    assert_order_independent(ship, events, options=OPTIONS)
