"""Any permutation, any duplication: the same order, and one fulfilment (cases G1, G2, G4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer.events import Event, Trust
from handlers.fulfilment import rules
from handlers.fulfilment.order import Matching, Order, Proof, Reading, Registration
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS
from tests.support.handling.projections import START, Projections, observed, own, said, unreadable
from tests.support.ledger.shared import SharedLedger

MODULE = "handlers.fulfilment.handler"


@dataclass(frozen=True)
class Fact:
    """One thing that can happen to the rules' order."""

    kind: str
    number: int
    status: str = ""


def facts() -> st.SearchStrategy[list[Fact]]:
    """Reads have distinct versions, as their sequence gives them. `event`: order.paid; `paid`: an operator's word."""
    kinds = st.lists(st.sampled_from(["event", "paid", "expired", "registered", "read"]), min_size=1, max_size=7)
    words = st.sampled_from(["PENDING", "PAID", "EXPIRED", "NEW_WORD"])
    numbered = kinds.flatmap(
        lambda chosen: st.tuples(*[st.tuples(st.just(kind), st.just(n + 1), words) for n, kind in enumerate(chosen)])
    )
    return numbered.map(lambda items: [Fact(kind, number, word) for kind, number, word in items])


def applied(order: Order, fact: Fact, matching: Matching) -> Order:
    """One fact through the rules."""
    at = START + timedelta(seconds=fact.number)
    proof = Proof(event_id=f"e{fact.number}", type=fact.kind, at=at, by_event=fact.kind == "event")
    match fact.kind:
        case "unreadable":
            return rules.unreadable(order, fact.number, at, matching)
        case "unanswered":
            return rules.unanswered(order, at, matching)
        case "paid" | "event":
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


def proven(given_: Sequence[Fact], matching: Matching) -> bool:
    """Whether the facts prove, in whatever order, an order that is to be fulfilled."""
    kinds = {fact.kind for fact in given_}
    paid_by_read = any(fact.kind == "read" and fact.status == "PAID" for fact in given_)
    if not (kinds & {"paid", "event"} or paid_by_read):
        return False
    match matching:
        case "on":
            return "registered" in kinds
        case "read":
            return bool(kinds & {"registered", "read"})
        case "auto":
            return bool(kinds & {"registered", "read", "paid"})
    return True


def state(order: Order) -> Order:
    """What must not depend on the order of arrival: not which proof came first, nor when."""
    return order._replace(
        paid_at=START if order.paid_at else None,
        requested_at=START if order.requested_at else None,
        registered_at=START if order.registered_at else None,
        proof_event_id=None,
        proof_type=None,
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data(), matching=st.sampled_from(["auto", "off", "on", "read"]))
def test_the_rules_end_the_same_in_any_order(data: Any, matching: Matching) -> None:
    # case: G1, G2, G4
    chosen = data.draw(facts())
    shuffled = data.draw(st.permutations(chosen + data.draw(st.lists(st.sampled_from(chosen), max_size=4))))
    straight, requests = folded(chosen, matching)
    other, other_requests = folded(shuffled, matching)
    assert state(other) == state(straight)
    assert requests == other_requests == (straight.requested_at is not None) == proven(chosen, matching)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), matching=st.sampled_from(["auto", "off", "on", "read"]))
def test_answers_that_are_none_cost_no_order_its_fulfilment_and_double_none(data: Any, matching: Matching) -> None:
    # case: G1, G2, G4, G7, F20, F24
    # What is promised of `*.unreadable` and of the timer, mixed in anywhere and however often: an order that the other
    # facts prove is requested, once. What they alone decide does depend on which of them came first, on purpose: no
    # answer in time and then "no such order" has been fulfilled and stays so; the other way round it is held.
    chosen = data.draw(facts())
    doubts = data.draw(st.lists(st.sampled_from(["unreadable", "unanswered"]), max_size=4))
    mixed = data.draw(st.permutations(chosen + [Fact(kind, 50 + number) for number, kind in enumerate(doubts)]))
    order, requests = folded(mixed, matching)
    assert requests == (order.requested_at is not None)
    assert requests <= bool({"paid", "event", "read"} & {fact.kind for fact in chosen})
    if proven(chosen, matching):
        assert requests == 1
    elif matching in ("on", "read"):
        assert requests == 0, "these wait, whatever the time"
    known, _ = folded([*mixed, Fact("registered", 90)], matching)
    assert (known.requested_at is not None) == (known.paid_at is not None), "registering it later lets it go"


@pytest.mark.parametrize(
    ("doubts", "hold"), [(["unanswered", "unreadable"], None), (["unreadable", "unanswered"], "unmatched")]
)
def test_which_of_no_answer_and_no_such_order_came_first_decides(doubts: list[str], hold: str | None) -> None:
    # case: F20, F24, G7
    told = [Fact("event", 1), *(Fact(kind, 2 + number) for number, kind in enumerate(doubts))]
    order, requests = folded(told, "auto")
    assert (order.hold, requests) == (hold, 1 if hold is None else 0)


def history(application: str, lapsed: bool, read: str | None, registered: bool, trust: Trust) -> list[Event]:
    """What the service and the merchant say about one order that is paid."""
    of: dict[str, Any] = {"order_id": "A1", "application": application, "trust": trust}
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
    happened.append(unreadable("order:A1", 2, application=application))
    if registered:
        data = {"session_id": "s1", "order_id": "A1", "customer": "c"}
        happened.append(own("checkout.registered", "order:A1", data, application=application))
    return happened


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), lapsed=st.booleans(), registered=st.booleans(), read=st.sampled_from([None, "PENDING", "PAID"]),
       trust=st.sampled_from([Trust.SIGNED, Trust.READ]))  # fmt: skip
def test_the_handlers_end_the_same_in_any_order(
    shared_ledger: SharedLedger, data: Any, lapsed: bool, registered: bool, read: str | None, trust: Trust
) -> None:
    # case: G1, G2, G4, F3, F6, F8, F9, F20, F24
    together = data.draw(st.booleans())
    positions = list(range(len(history("", lapsed, read, registered, trust))))
    again = data.draw(st.lists(st.sampled_from(positions), max_size=4))
    shuffled = data.draw(st.permutations(positions + again))

    async def end(order: Sequence[int]) -> tuple[Any, ...]:
        application = next(shared_ledger.names)
        happened = history(application, lapsed, read, registered, trust)
        orders = Projections(shared_ledger.database, MODULE, application=application)
        events = [happened[position] for position in order]
        await (orders.feed_together(events) if together else orders.feed(*events))
        await orders.pass_time(minutes=1)
        # The first answer may find the order known already, or not there yet.
        hidden = {"application": "", "proof_event_id": "", "proof_type": "", "unreadable_version": ""}
        rows = [row | hidden for row in await orders.rows(ORDERS, application=application)]
        sessions = [row | {"application": ""} for row in await orders.rows(CHECKOUTS, application=application)]
        requested = [one for one in orders.emitted if one.type == "fulfilment.requested"]
        return rows, sessions, len(requested)

    straight = shared_ledger.runner.run(end(positions))
    other = shared_ledger.runner.run(end(shuffled))
    assert straight[2] <= 1
    assert other[2] <= 1
    if registered or read is not None:
        assert other == straight
        assert straight[2] == 1
    elif trust is Trust.READ:
        assert straight[2] == other[2] == 0, "what was read is not let go by the time alone"


def shows(what: tuple[str, str | None], number: int, application: str) -> Event:
    """What shows by which payment order A1 was paid, or does not show it: a kind, and the payment."""
    kind, payment_id = what
    of: dict[str, Any] = {"application": application}
    shown: dict[str, Any] = {"payment_id": payment_id} if payment_id else {}
    match kind:
        case "event":
            return said("order.paid", f"evt_{number}", id="so1", order_id="A1", **shown, **of)
        case "event by the service's id":
            return said("order.paid", f"evt_{number}", id="so1", **shown, **of)
        case "read":
            record = {"id": "so1", "order_id": "A1", "status": "PAID", "payment": {"id": payment_id}}
            return observed("order:A1", number, record, **of)
        case "read of the payment":
            money = {"id": payment_id, "status": "SUCCEEDED", "order": {"id": "so1"}}
            return observed(f"payment:{payment_id}", number, money, **of)
        case "read of the payment as if so1 was ours":
            money = {"id": payment_id, "status": "SUCCEEDED", "order_id": "so1"}
            return observed(f"payment:{payment_id}", number, money, **of)
        case "read of the payment by its session":
            money = {"id": payment_id, "status": "SUCCEEDED", "session_id": "s1"}
            return observed(f"payment:{payment_id}", number, money, **of)
        case "read of the session":
            session = {"id": "s1", "status": "COMPLETED", "order": {"id": "so1", "order_id": "A1"}}
            return observed("session:s1", number, session, **of)
    return own("fulfilment.marked_paid", "order:A1", {"by": "op"}, id_=f"drv_{number}", **of)


OF_MONEY = ["read of the payment", "read of the payment as if so1 was ours", "read of the payment by its session"]
KINDS = ["event", "event by the service's id", "read", "read of the session", "word", *OF_MONEY]
SHOWN = st.tuples(st.sampled_from(KINDS), st.sampled_from([None, "p1", "p2", "p3"]))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), shown=st.lists(SHOWN, max_size=6), together=st.booleans())
def test_a_second_payment_is_found_once_whichever_came_first(
    shared_ledger: SharedLedger, data: Any, shown: list[tuple[str, str | None]], together: bool
) -> None:
    # case: F4, F29, G1, G2
    shown = [one for one in shown if one[0] not in OF_MONEY or one[1] is not None]
    shown.append(("read", "p1"))  # by it the service's id of the order is known, in the end
    shown.append(("read of the session", None))
    positions = list(range(len(shown)))
    again = data.draw(st.lists(st.sampled_from(positions), max_size=4))
    order = data.draw(st.permutations(positions + again))

    async def found() -> list[tuple[Any, Any]]:
        application = next(shared_ledger.names)
        orders = Projections(shared_ledger.database, MODULE, application=application)
        events = [shows(shown[position], position + 1, application) for position in order]
        await (orders.feed_together(events) if together else orders.feed(*events))
        rows = await orders.rows(FINDINGS, application=application, closed_at=None)
        return [(row["kind"], row["detail"]) for row in rows if row["kind"].endswith("_payment")]

    tells_none = ("word", "read of the session")
    paid_by = sorted({payment_id for kind, payment_id in shown if payment_id and kind not in tells_none})
    expected = [("duplicate_payment", {"payments": paid_by})] if len(paid_by) > 1 else []
    assert shared_ledger.runner.run(found()) == expected
