"""Any permutation, any duplication: the same order, and one fulfilment (cases G1, G2, G4)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer.events import Event
from consumer.ledger import Database, schema
from handlers.fulfilment import rules
from handlers.fulfilment.order import Matching, Order, Proof, Reading, Registration
from handlers.fulfilment.tables import CHECKOUTS, ORDERS
from tests.support.projections import START, Projections, observed, own, said

MODULE = "handlers.fulfilment.handler"


@dataclass(frozen=True)
class Fact:
    """One thing that can happen to the rules' order."""

    kind: str
    number: int
    status: str = ""


def facts() -> st.SearchStrategy[list[Fact]]:
    """Reads have distinct versions, as their sequence gives them."""
    kinds = st.lists(st.sampled_from(["paid", "expired", "registered", "read"]), min_size=1, max_size=7)
    words = st.sampled_from(["PENDING", "PAID", "EXPIRED", "NEW_WORD"])
    numbered = kinds.flatmap(
        lambda chosen: st.tuples(*[st.tuples(st.just(kind), st.just(n + 1), words) for n, kind in enumerate(chosen)])
    )
    return numbered.map(lambda items: [Fact(kind, number, word) for kind, number, word in items])


def applied(order: Order, fact: Fact, matching: Matching) -> Order:
    """One fact through the rules."""
    at = START + timedelta(seconds=fact.number)
    proof = Proof(event_id=f"e{fact.number}", type=fact.kind, at=at)
    match fact.kind:
        case "paid":
            return rules.paid(order, proof, matching)
        case "expired":
            return rules.expired(order, at)
        case "registered":
            return rules.registered(order, Registration(session_id="s", customer="c"), at, matching)
        case _:
            return rules.observed(order, Reading(version=fact.number, status=fact.status), proof, matching)


def folded(given_: Sequence[Fact], matching: Matching) -> tuple[Order, int]:
    """The order at the end, and how often fulfilment was requested on the way."""
    order, requests = Order(), 0
    for fact in given_:
        after = applied(order, fact, matching)
        requests += order.requested_at is None and after.requested_at is not None
        assert order.requested_at is None or after.requested_at == order.requested_at
        assert order.paid_at is None or after.paid_at == order.paid_at
        order = after
    return order, requests


def state(order: Order) -> Order:
    """What must not depend on the order of arrival: not which proof came first, nor when."""
    return replace(
        order,
        paid_at=START if order.paid_at else None,
        requested_at=START if order.requested_at else None,
        registered_at=START if order.registered_at else None,
        proof_event_id=None,
        proof_type=None,
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data(), matching=st.sampled_from(["off", "on", "read"]))
def test_the_rules_end_the_same_in_any_order(data: Any, matching: Matching) -> None:
    # case: G1, G2, G4
    chosen = data.draw(facts())
    shuffled = data.draw(st.permutations(chosen + data.draw(st.lists(st.sampled_from(chosen), max_size=4))))
    straight, requests = folded(chosen, matching)
    other, other_requests = folded(shuffled, matching)
    assert state(other) == state(straight)
    assert requests == other_requests == (straight.requested_at is not None)


def history(paid: bool, lapsed: bool, read: str | None, registered: bool) -> list[Event]:
    """What the service and the merchant say about one order."""
    happened = [said("checkout.session.completed", "evt_c", id="s1", order_id="A1")] if paid else []
    if paid:
        happened += [said("order.paid", f"evt_p{n}", id="so1", order_id="A1", amount="10") for n in (1, 2)]
    if lapsed:
        happened += [
            said("order.expired", "evt_e", id="so1", order_id="A1"),
            said("checkout.session.expired", "evt_x", id="s0", order_id="A1"),
        ]
    if read is not None:
        happened.append(observed("order:A1", 3, {"id": "so1", "order_id": "A1", "status": read, "amount": "10"}))
    if registered:
        happened.append(own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1", "customer": "c"}))
    return happened


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), lapsed=st.booleans(), registered=st.booleans(), read=st.sampled_from([None, "PENDING", "PAID"]))
def test_the_handlers_end_the_same_in_any_order(data: Any, lapsed: bool, registered: bool, read: str | None) -> None:
    # case: G1, G2, G4, F3, F6, F8, F9
    happened = history(True, lapsed, read, registered)
    again = data.draw(st.lists(st.sampled_from(happened), max_size=4))
    shuffled = data.draw(st.permutations(happened + again))
    together = data.draw(st.booleans())

    async def end(events: Sequence[Event]) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory() as folder:
            database = Database(f"sqlite+aiosqlite:///{Path(folder)}/ledger.db")
            try:
                await schema.upgrade(database)
                orders = Projections(database, MODULE)
                await (orders.feed_together(events) if together else orders.feed(*events))
                rows = [{**row, "proof_event_id": "", "proof_type": ""} for row in await orders.rows(ORDERS)]
                sessions = await orders.rows(CHECKOUTS)
                return rows, sessions, len(orders.of_type("fulfilment.requested")), len(orders.emitted)
            finally:
                await database.stop()

    straight = asyncio.run(end(happened))
    assert asyncio.run(end(shuffled)) == straight
    assert straight[2:] == (1, 1)
