"""Any permutation, any duplication: the same order, and one fulfilment (cases G1, G2, G4)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer.events import Event
from consumer.ledger import Database
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


class Bench:
    """One database for many histories: each is an application of its own."""

    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner()
        self.database = Database(f"sqlite+aiosqlite:///{path}")
        self.names = (f"app{number}" for number in count())

    def close(self) -> None:
        self.runner.run(self.database.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def bench(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("fulfilment") / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    made = Bench(path)
    yield made
    made.close()


def history(application: str, lapsed: bool, read: str | None, registered: bool) -> list[Event]:
    """What the service and the merchant say about one order that is paid."""
    of: dict[str, Any] = {"order_id": "A1", "application": application}
    happened = [said("checkout.session.completed", "evt_c", id="s1", **of)]
    happened += [said("order.paid", f"evt_p{n}", id="so1", amount="10", **of) for n in (1, 2)]
    if lapsed:
        happened += [
            said("order.expired", "evt_e", id="so1", **of),
            said("checkout.session.expired", "evt_x", id="s0", **of),
        ]
    if read is not None:
        record = {"id": "so1", "order_id": "A1", "status": read, "amount": "10"}
        happened.append(observed("order:A1", 3, record, application=application))
    if registered:
        data = {"session_id": "s1", "order_id": "A1", "customer": "c"}
        happened.append(own("checkout.registered", "order:A1", data, application=application))
    return happened


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), lapsed=st.booleans(), registered=st.booleans(), read=st.sampled_from([None, "PENDING", "PAID"]))
def test_the_handlers_end_the_same_in_any_order(
    bench: Bench, data: Any, lapsed: bool, registered: bool, read: str | None
) -> None:
    # case: G1, G2, G4, F3, F6, F8, F9
    together = data.draw(st.booleans())
    positions = list(range(len(history("", lapsed, read, registered))))
    again = data.draw(st.lists(st.sampled_from(positions), max_size=4))
    shuffled = data.draw(st.permutations(positions + again))

    async def end(order: Sequence[int]) -> tuple[Any, ...]:
        application = next(bench.names)
        happened = history(application, lapsed, read, registered)
        orders = Projections(bench.database, MODULE, application=application)
        events = [happened[position] for position in order]
        await (orders.feed_together(events) if together else orders.feed(*events))
        hidden = {"application": "", "proof_event_id": "", "proof_type": ""}
        rows = [row | hidden for row in await orders.rows(ORDERS, application=application)]
        sessions = [row | {"application": ""} for row in await orders.rows(CHECKOUTS, application=application)]
        return rows, sessions, len(orders.of_type("fulfilment.requested")), len(orders.emitted)

    straight = bench.runner.run(end(positions))
    assert bench.runner.run(end(shuffled)) == straight
    assert straight[2:] == (1, 1)
