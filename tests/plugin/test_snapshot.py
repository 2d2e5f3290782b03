"""ctx.snapshot(): the newest read of what the event is about, in both kinds of handlers, when it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.events import Event, Source
from consumer.plugin import Context, Snapshot, handles
from consumer.plugin.snapshot import subject_of
from consumer.testing import Workbench, assert_idempotent, assert_order_independent
from consumer.wire import own_event

KINDS = pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "effect"])


class Looking:
    """A handler that keeps what it saw."""

    def __init__(self, transactional: bool, *types: str, named: tuple[Any, ...] = ()) -> None:
        self.seen: list[Snapshot | None] = []

        @handles(*(types or ("order.paid",)), transactional=transactional, name="test:looks")
        async def looks(event: Event, ctx: Context) -> None:
            self.seen.append(await ctx.snapshot(*named))

        self.handler = looks

    def statuses(self) -> set[str | None]:
        return {one.status if one else None for one in self.seen}


# case: H2
@KINDS
def test_it_is_the_newest_read_at_the_time_of_the_call(workbench: Workbench, transactional: bool) -> None:
    look = Looking(transactional)
    workbench.run(look.handler, workbench.event("order.paid", order_id="A-1"))
    workbench.observe("order", "A-1", {"status": "EXPIRED", "amount": "5.00"})
    workbench.observe("order", "A-2", {"status": "OPEN"})
    workbench.run(look.handler, workbench.event("order.paid", order_id="A-1"))
    workbench.clock.advance(60)
    workbench.observe("order", "A-1", {"status": "PAID"})
    workbench.run(look.handler, workbench.event("order.paid", order_id="A-1"))
    nothing, expired, paid = look.seen
    assert nothing is None
    assert expired is not None
    assert paid is not None
    assert (expired.kind, expired.id, expired.status, expired.find("/amount")) == ("order", "A-1", "EXPIRED", "5.00")
    assert (paid.status, paid.read_at) == ("PAID", workbench.clock.now())
    assert paid.version > expired.version


# case: H2
@KINDS
def test_an_observation_sees_itself(workbench: Workbench, transactional: bool) -> None:
    """Transactional: in the very transaction that stores it."""
    look = Looking(transactional, "subscription.observed")
    event = workbench.event(
        "subscription.observed", subscription_id="sub_1", data={"version": 7, "record": {"status": "ACTIVE"}}
    )
    assert workbench.run(look.handler, event).succeeded
    (seen,) = look.seen
    assert seen is not None
    assert (seen.kind, seen.id, seen.version, seen.status) == ("subscription", "sub_1", 7, "ACTIVE")


# case: H2, G8
@KINDS
def test_one_may_be_named_and_applications_are_apart(workbench: Workbench, transactional: bool) -> None:
    look = Looking(transactional, "access.granted", named=("subscription", "sub_1"))
    own = Looking(transactional, "access.granted")
    event = workbench.event("access.granted", customer="c-1")
    workbench.observe("subscription", "sub_1", {"status": "ACTIVE"}, application="other")
    workbench.run(look.handler, event)
    workbench.observe("subscription", "sub_1", {"status": "PAST_DUE"})
    workbench.run(look.handler, workbench.event("access.granted", customer="c-1"))
    workbench.run(own.handler, workbench.event("access.granted", customer="c-1"))
    assert [one and one.status for one in look.seen] == [None, "PAST_DUE"]
    assert own.seen == [None], "a customer has no record to be read"


@KINDS
@pytest.mark.parametrize("named", [("payment", "p1"), ("order", ""), ("order",), (None, "A-1")])
def test_naming_what_cannot_be_is_a_clear_error(workbench: Workbench, transactional: bool, named: Any) -> None:
    ran = workbench.run(Looking(transactional, named=named).handler, workbench.event("order.paid", order_id="A-1"))
    assert (ran.status, ran.code) == ("dead", "handler_misuse")
    assert "snapshot takes" in (ran.reason or "")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("order:A-1", ("order", "A-1")),
        ("order:a:b", ("order", "a:b")),
        ("subscription:sub_1", ("subscription", "sub_1")),
        ("customer:c-1", None),
        ("payment:p1", None),
        ("event:evt_1", None),
        ("order:", None),
    ],
)
def test_what_an_event_is_about(workbench: Workbench, key: str, expected: tuple[str, str] | None) -> None:
    event = own_event(application="default", id="drv_1", type="shop.seen", key=key, source=Source.RELAY,
                      at=workbench.clock.now(), data={})  # fmt: skip
    assert subject_of(event) == expected


def test_an_event_without_a_key_of_its_own_is_about_what_was_found_in_it(workbench: Workbench) -> None:
    session = workbench.event("checkout.session.completed", order_id="A-1")
    assert subject_of(session) == ("order", "A-1")
    assert subject_of(workbench.event("access.unresolved", subscription_id="sub_1")) == ("subscription", "sub_1")


# case: H2
def test_a_look_leaves_what_a_handler_has_not_flushed_alone(workbench: Workbench) -> None:
    flushed: list[bool] = []

    @handles("order.paid", transactional=True, name="test:adds")
    async def adds(event: Event, ctx: Context) -> None:
        from consumer.ledger.base_tables import BudgetRow

        ctx.session.add(BudgetRow(name="test:budget", value="1"))
        await ctx.snapshot()
        flushed.append(not ctx.session.new)

    assert workbench.run(adds, workbench.event("order.paid", order_id="A-1")).succeeded
    assert flushed == [False]


# case: H11
def test_a_handler_that_looks_passes_through_the_kit(workbench: Workbench) -> None:
    paid = workbench.observe("order", "A-1", {"status": "PAID"})
    event = workbench.event("fulfilment.requested", order_id="A-1")
    for transactional in (True, False):
        look = Looking(transactional, "fulfilment.requested")
        seen = look.statuses  # it tells nobody, so what is compared is what it saw
        assert_idempotent(look.handler, [event], observed=[paid], state=seen, reset=look.seen.clear)
        assert_order_independent(look.handler, [event, workbench.event("fulfilment.requested", order_id="A-2")],
                                 observed=[paid], state=seen)  # fmt: skip
        assert look.statuses() == {"PAID", None}


# case: H11, H2
def test_a_handler_that_lets_the_newest_read_decide_is_found_out(workbench: Workbench) -> None:
    @handles("order.expired", name="test:decides")
    async def decides(event: Event, ctx: Context) -> None:
        snapshot = await ctx.snapshot()
        if snapshot is None:
            headers = {"Idempotency-Key": ctx.idempotency_key}
            async with ctx.http.post("https://shop.example/remind", headers=headers) as answer:
                answer.raise_for_status()

    history = [workbench.event("order.expired", order_id="A-1"), workbench.observe("order", "A-1", {"status": "PAID"})]
    with pytest.raises(AssertionError, match=r"in the order order\.observed"):
        assert_order_independent(decides, history)
