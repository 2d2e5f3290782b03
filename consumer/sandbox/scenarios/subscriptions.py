"""Stories of subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consumer.sandbox.scenarios.stage import MONTH_S, Stage


async def past_due_recovered(stage: Stage) -> None:
    """The renewal fails once and is retried with success."""
    subscription = stage.by_hand(stage.subscribe())
    await stage.advance(MONTH_S)
    stage.engine.subscriptions.fail(stage.again(subscription))
    await stage.advance(86400)
    stage.engine.subscriptions.renew(stage.again(subscription))


async def past_due_lost(stage: Stage) -> None:
    """Four counted failures end it with PAYMENT_FAILED."""
    subscription = stage.by_hand(stage.subscribe())
    await stage.advance(MONTH_S)
    for _ in range(4):
        stage.engine.subscriptions.fail(stage.again(subscription))
        await stage.advance(86400)


async def payer_cancel(stage: Stage) -> None:
    """The payer cancels in the portal; it ends with the period."""
    subscription = stage.subscribe()
    stage.engine.subscriptions.payer_cancel(subscription)
    await stage.advance(MONTH_S + 1)


async def payer_withdraws(stage: Stage) -> None:
    """The payer cancels, takes it back, and is renewed."""
    subscription = stage.by_hand(stage.subscribe())
    stage.engine.subscriptions.payer_cancel(subscription)
    await stage.advance(86400)
    stage.engine.subscriptions.payer_withdraw(stage.again(subscription))
    await stage.advance(MONTH_S)
    stage.engine.subscriptions.renew(stage.again(subscription))


async def merchant_cancel_stands(stage: Stage) -> None:
    """The payer schedules a cancel, the merchant too, the payer withdraws: it ends all the same."""
    subscription = stage.subscribe()
    subscriptions = stage.engine.subscriptions
    subscriptions.payer_cancel(subscription)
    subscriptions.cancel(stage.again(subscription), "period_end")
    subscriptions.payer_withdraw(stage.again(subscription))
    await stage.advance(MONTH_S + 1)


async def cancel_then_renewal_lands(stage: Stage) -> None:
    """The merchant cancels now, but a renewal charge in flight lands after the end."""
    subscription = stage.subscribe()
    stage.engine.subscriptions.cancel(subscription, "now")
    stage.engine.subscriptions.renew(stage.again(subscription))


async def resubscribe(stage: Stage) -> None:
    """The payer subscribes again: the old subscription ends, the new one goes on."""
    first = stage.subscribe()
    await stage.advance(86400)
    stage.subscribe(first.customer_reference)


async def missed_period(stage: Stage) -> None:
    """Two periods pass without a charge; the next one pays for its own period only."""
    subscription = stage.by_hand(stage.subscribe())
    await stage.advance(2 * MONTH_S + 3600)
    stage.engine.subscriptions.renew(stage.again(subscription))


STORIES: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "past-due-recovered": past_due_recovered,
    "past-due-lost": past_due_lost,
    "payer-cancel": payer_cancel,
    "payer-withdraws": payer_withdraws,
    "merchant-cancel-stands": merchant_cancel_stands,
    "cancel-then-renewal-lands": cancel_then_renewal_lands,
    "resubscribe": resubscribe,
    "missed-period": missed_period,
}
