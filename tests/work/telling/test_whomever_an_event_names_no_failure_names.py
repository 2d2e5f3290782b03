"""Whomever an event names, and wherever in it, no failure of its handlers names: not its attempt, its dead run, its
letter, or a line of the log (case S9)."""

from __future__ import annotations

import io
from typing import Any

import pytest
from sqlalchemy import select

from consumer.broker import Broker
from consumer.clock import SystemClock
from consumer.events import Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.tables import AttemptRow
from consumer.plugin import Context, Event, RetryLater, handles
from consumer.telemetry.redaction import NAMED_MIN_CHARS, customers_in
from consumer.wire import own_event
from consumer.work.outcome import REASON_MAX_CHARS, failed
from tests.support.ports import eventually
from tests.work.outbound.test_a_dead_run_is_copied_to_its_topic import letters_on
from tests.work.workshop import AT, Workshop

JANE = "jane-77"


def own(event_type: str, key: str, data: dict[str, Any]) -> Event:
    """One of our own events, as the relay publishes it."""
    return own_event(application="default", id=f"drv_{event_type}", type=event_type, key=key, source=Source.RELAY,
                     at=SystemClock().now(), data=data)  # fmt: skip


NAMING = [
    own("fulfilment.requested", "order:A-1", {"order_id": "A-1", "customer": JANE, "amount": "25.00"}),
    own("order.observed", "order:A-2", {"record": {"order": {"customer_reference": JANE}}}),
    own("access.revoked", f"customer:{JANE}", {"customer": JANE, "entitlement": "default"}),
    own("shop.reminder_due", "order:A-3", {"people": [{"customer": {"reference": JANE}}]}),
]


# case: S9
@pytest.mark.parametrize("transactional", [False, True])
async def test_nothing_that_is_kept_or_told_of_it(
    database: Database, broker: Broker, stream: io.StringIO, transactional: bool
) -> None:
    types = [event.type for event in NAMING]

    @handles(*types, attempts=2, first_wait_s=0.01, name="test:ship", transactional=transactional)
    async def ship(event: Event, ctx: Context) -> None:
        raise ValueError(f"no address for {JANE}")

    shop = Workshop(database, broker, [ship])
    await shop.publish(*NAMING)
    async with shop.working():
        await eventually(lambda: shop.count("test:ship", "dead", len(NAMING)))
        letters = await letters_on(broker, len(NAMING))
    async with database.reading() as session:
        attempts = (await session.execute(select(AttemptRow))).scalars().all()
    said = [one.reason for one in attempts] + [one.reason for one in await shop.runs()]
    said += [one.headers["dead_reason"].decode() + one.headers["dead_history"].decode() for one in letters]
    assert len(said) == len(NAMING) * 4
    assert all("no address for [redacted]" in one and JANE not in one for one in map(str, said)), said
    lines = stream.getvalue()
    assert lines.count('"run_dead"') == len(NAMING)
    assert JANE not in lines


def test_of_many_events_at_once_none_is_named() -> None:
    found = failed(ValueError(f"{JANE} and bob-78 and A-1"), about=[*NAMING[:1], own("x.y", "customer:bob-78", {})])
    assert found.failure.reason == "ValueError: [redacted] and [redacted] and A-1"


@pytest.mark.parametrize(
    ("customer", "text"),
    [
        ("Jane Doe", "customer: Jane Doe is unknown"),
        ("Jane Doe", "404 for https://crm.example/people/Jane%20Doe"),
        ("Jane\nDoe", "KeyError: 'Jane\\nDoe'"),
        (JANE, "x" * (REASON_MAX_CHARS - 4) + JANE),
        ("jan", f"jan, not {JANE}"),
    ],
    ids=["in two words", "in an address", "as a repr", "where it is cut", "beside another"],
)
def test_however_it_is_spelled(customer: str, text: str) -> None:
    event = own("fulfilment.requested", "order:A-1", {"customers": [customer, JANE]})
    reason = failed(RetryLater(1, text), about=[event]).failure.reason
    assert "[red" in reason
    assert not [part for part in ("Jane", "Doe", "jan") if part in reason], reason


def test_a_locators_find_counts_too_and_what_is_no_name_stays() -> None:
    at_odds = Locators(customer=("/who",))
    raw = b'{"id":"evt_1","type":"order.paid","who":"jane-77","customer":7}'
    event = build_event(raw, at_odds, application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT)
    assert failed(ValueError(f"{JANE}: 7 of 77"), about=[event]).failure.reason == "ValueError: [redacted]: 7 of 77"
    assert len("7") < NAMED_MIN_CHARS


def test_what_a_body_says_of_its_customer() -> None:
    said = {
        "customer": {"id": 4711, "is_new": True, "since": None},
        "data": [{"payer": "P"}, {"customer_email": "m"}, {"order_id": "A-1"}],
        "metadata": {"color": "blue"},
    }
    assert sorted(customers_in(said)) == ["4711", "P", "m"]


def test_of_a_customers_record_only_what_names_them_is_masked() -> None:
    """A status word or a number of it is not whom an operator must not read of."""
    said = {
        "customer": {
            "id": "cus_1",
            "email": "jane@shop.example",
            "status": "active",
            "limit": 503,
            "object": "customer",
        }
    }
    assert sorted(customers_in(said)) == ["cus_1", "jane@shop.example"]
