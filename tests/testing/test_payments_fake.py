"""`ctx.payments` on the workbench: the real client on a service in memory, which the test fills and reads."""

from __future__ import annotations

import pytest

from consumer.payments import PaymentsClient
from consumer.plugin import Context, Event, FulfilmentRequested, PaymentsApi, handles
from consumer.testing import PaymentsFake, Refusal, Workbench, assert_idempotent


def as_promised(fake: PaymentsFake, client: PaymentsClient) -> tuple[PaymentsApi, PaymentsApi]:
    """mypy holds both against the face."""
    return fake, client


@handles("fulfilment.requested", name="test:sells")
async def sells(event: Event[FulfilmentRequested], ctx: Context) -> None:
    """The second half of a sale: a session of its own, once."""
    await ctx.payments.checkout_sessions.create(
        mode="payment",
        order_id=f"{event.payload.order_id}-2",
        amount="12.50",
        description="The second half",
        success_url="https://shop.example/ok",
        cancel_url="https://shop.example/no",
        idempotency_key=ctx.idempotency_key,
    )


@handles("fulfilment.requested", name="test:sells_without_a_key")
async def sells_without_a_key(event: Event[FulfilmentRequested], ctx: Context) -> None:
    found = await ctx.payments.checkout_sessions.create(
        mode="subscription",
        order_id=f"{event.payload.order_id}-2",
        price_id="svc_price_monthly",
        success_url="https://shop.example/ok",
        cancel_url="https://shop.example/no",
    )
    assert found.url is not None


@handles("access.revoked", name="test:ends")
async def ends(event: Event, ctx: Context) -> None:
    for order_id in ("A-1", "A-2"):
        order = await ctx.payments.orders.lookup(order_id)
        assert order.is_paid == (order_id == "A-2")
    async for subscription in ctx.payments.subscriptions.iterate():
        if not subscription.will_end and subscription.id is not None:
            key = f"{ctx.idempotency_key}:{subscription.id}"
            await ctx.payments.subscriptions.cancel(subscription.id, at="period_end", idempotency_key=key)


# case: H11, C3
def test_a_session_is_created_and_the_test_sees_it(workbench: Workbench) -> None:
    event = workbench.event("fulfilment.requested", order_id="A-1")
    assert workbench.run(sells, event).succeeded
    assert workbench.payments.changes == [("create", "A-1-2")]
    [call] = workbench.payments.calls
    assert (call.method, call.path) == ("POST", "/v1/checkout-sessions")
    assert call.body is not None
    assert call.body["amount"] == "12.50"
    assert call.idempotency_key


def test_what_is_there_is_read_and_changed(workbench: Workbench) -> None:
    workbench.payments.add_order("A-1")
    workbench.payments.pay("A-2")
    workbench.payments.add_subscription("sub_1")
    workbench.payments.add_subscription("sub_2", cancel_at_period_end=True)
    assert workbench.run(ends, workbench.event("access.revoked", customer="ada")).succeeded
    assert workbench.payments.changes == [("cancel period_end", "sub_1")]


# case: B15
@pytest.mark.parametrize("count", [100, 250])
def test_a_long_list_is_read_to_its_end(workbench: Workbench, count: int) -> None:
    """It ended with its first page, and the cursor that a full page has was not there."""
    names = [f"one_{number}" for number in range(count)]
    for name in names:
        workbench.payments.add_subscription(name)
        workbench.payments.add("events", {"id": f"evt_{name}", "type": "order.paid"})
    seen: list[str | None] = []

    @handles("access.revoked", name="test:reads_all")
    async def reads_all(event: Event, ctx: Context) -> None:
        seen.extend([one.id async for one in ctx.payments.subscriptions.iterate()])
        seen.extend([one.id async for one in ctx.payments.events.iterate()])

    assert workbench.run(reads_all, workbench.event("access.revoked")).succeeded
    assert seen == [*names, *(f"evt_{name}" for name in names)]
    pages = {"/v1/subscriptions": count // 100 + 1, "/v1/events": -(-count // 100)}
    assert {path: [call.path for call in workbench.payments.calls].count(path) for path in pages} == pages


def test_refusals_are_the_documented_errors(workbench: Workbench) -> None:
    workbench.payments.pay("A-1-2")
    ran = workbench.run(sells, workbench.event("fulfilment.requested", order_id="A-1"))
    assert (ran.status, ran.code) == ("retrying", "order_already_paid")
    workbench.payments.refuse = lambda _: Refusal(code="merchant_token_account_missing", status=422)
    ran = workbench.run(sells, workbench.event("fulfilment.requested", order_id="A-3"))
    assert ran.code == "merchant_token_account_missing"


def test_bad_fields_are_refused_as_by_the_client(workbench: Workbench) -> None:
    @handles("fulfilment.requested", name="test:too_little")
    async def too_little(event: Event, ctx: Context) -> None:
        await ctx.payments.checkout_sessions.create(
            mode="payment", order_id="A", success_url="http://shop.example", cancel_url="https://shop.example"
        )

    ran = workbench.run(too_little, workbench.event("fulfilment.requested"))
    assert ran.code == "amount_or_price_required"
    assert workbench.payments.calls == []


def test_a_key_makes_it_once_and_without_one_the_link_changes() -> None:
    assert_idempotent(sells)
    with pytest.raises(AssertionError, match="reissue"):
        assert_idempotent(sells_without_a_key)


def test_each_play_begins_with_what_the_test_gave() -> None:
    fake = PaymentsFake()
    fake.add_order("A-1")
    fake.pay("A-2")
    fake.add_subscription("sub_1")
    assert_idempotent(ends, payments=fake)
    assert fake.changes == []
