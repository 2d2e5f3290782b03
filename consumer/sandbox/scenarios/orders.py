"""Stories of one-time orders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumer.sandbox.scenarios.stage import Stage


async def happy(stage: Stage) -> None:
    """A session is created and paid."""
    stage.pay(stage.order("happy"))


async def late_payment_after_expiry(stage: Stage) -> None:
    """The session expires, then its payment finalizes: `order.paid` without `checkout.session.completed`."""
    session = stage.order("late-expiry")
    await stage.expire(session)
    stage.pay(session)


async def late_payment_after_cancel(stage: Stage) -> None:
    """The payer cancels, then a payment sent before finalizes all the same."""
    session = stage.order("late-cancel")
    stage.engine.sessions.cancel(session)
    stage.pay(session)


async def replaced_session(stage: Stage) -> None:
    """A lapsed session is replaced before the expiry check saw it; the new one is paid."""
    first = stage.order("replaced", expires_at=stage.just_after_tick())
    await stage.advance((first.expires_at - stage.engine.clock.now()).total_seconds())
    second = stage.order(order_id=first.order_id)
    stage.pay(second)


async def double_pay(stage: Stage) -> None:
    """Two payments for one order: a newer session is paid, then the cancelled one's payment lands too."""
    first = stage.order("double")
    stage.engine.sessions.cancel(first)
    second = stage.order(order_id=first.order_id)
    stage.pay(second)
    stage.pay(first)
    stage.notes["payments_succeeded"] = 2


async def confirmed_never_finalized(stage: Stage) -> None:
    """The page shows success, but the transaction never becomes final: the session expires unpaid."""
    session = stage.order("confirmed")
    payment = stage.pay(session, until="confirmed")
    await stage.expire(session)
    stage.engine.payments.fail(payment)
    await stage.advance(31)


STORIES: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "happy": happy,
    "late-payment-after-expiry": late_payment_after_expiry,
    "late-payment-after-cancel": late_payment_after_cancel,
    "replaced-session": replaced_session,
    "double-pay": double_pay,
    "confirmed-never-finalized": confirmed_never_finalized,
}
