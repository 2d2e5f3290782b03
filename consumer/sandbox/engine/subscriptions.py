"""Subscriptions: renewals, failures, the three ways to end (spec, States, Subscription; cases X32-X44, X48)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.events import Events
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import PageRefusal, Refusal

MAX_FAILURES = 4
CHARGES = ("ok", "fail", "uncounted", "skip")
RENEWAL_TIMER, RETRY_TIMER, END_TIMER, CHAIN_TIMER = "renewal", "retry", "end", "onchain_end"
ENDED = r.SubscriptionStatus.ENDED
ACTIVE = r.SubscriptionStatus.ACTIVE
PAST_DUE = r.SubscriptionStatus.PAST_DUE


class Subscriptions:
    """ENDED is final: nothing here leaves it."""

    def __init__(self, world: World, events: Events) -> None:
        self._world = world
        self._events = events

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, app_id: str, subscription_id: str) -> r.Subscription:
        """An application's own subscription; not_found otherwise."""
        subscription = self._world.subscriptions.get(subscription_id)
        if subscription is None or subscription.app_id != app_id:
            raise Refusal("not_found")
        return subscription

    def any(self, subscription_id: str) -> r.Subscription:
        """Any subscription, for the chain's side."""
        subscription = self._world.subscriptions.get(subscription_id)
        if subscription is None:
            raise Refusal("not_found")
        return subscription

    def check_wallet(self, wallet: str, plan_id: str | None) -> None:
        """After a merchant cancel the same wallet and plan wait for "Cancel on Solana" and the rent (case X43)."""
        for one in self._world.subscriptions:
            merchant_stopped = one.merchant_cancel_requested or one.end_reason == "MERCHANT_CANCELED"
            if one.wallet == wallet and one.plan_id == plan_id and merchant_stopped and one.onchain != "reclaimed":
                raise PageRefusal("wallet_still_subscribed")

    # --- starting ----------------------------------------------------------------------------------------------

    def start(self, session: r.Session, plan: r.Plan, price: r.Price, wallet: str) -> r.Subscription:
        """The subscribe transaction is final: ACTIVE, first period charged, `subscription.created` (case X32).

        The same wallet's live subscription to the same price ends with PAYER_CANCELED (re-subscribe, case X42).
        """
        world = self._world
        now = world.now()
        for old in world.subscriptions:
            if old.wallet == wallet and old.price_id == price.id and old.status is not ENDED:
                # The subscribe transaction itself closes the old one on chain.
                closed = self._put(old, onchain="reclaimed")
                self._end(closed, "PAYER_CANCELED", event=world.assumptions.flag("ended_on_resubscribe"))
        interval_days = price.interval_days or 30
        subscription = r.Subscription(
            id=world.new_id("subscription"),
            seq=world.next_seq(),
            app_id=session.app_id,
            merchant_id=session.merchant_id,
            status=ACTIVE,
            plan_id=plan.id,
            price_id=price.id,
            product_id=price.product_id,
            session_id=session.id,
            wallet=wallet,
            to_wallet=plan.wallet,
            amount=price.amount,
            fee=session.fee,
            interval_days=interval_days,
            customer_email=session.customer_email,
            customer_reference=session.customer_reference,
            metadata=session.metadata,
            started_at=now,
            period_start=now,
            period_end=now + timedelta(days=interval_days),
        )
        world.put(world.subscriptions, subscription)
        self._arm(subscription)
        self._events.subscription("created", subscription)
        return subscription

    # --- charging ----------------------------------------------------------------------------------------------

    def renew(self, subscription: r.Subscription) -> r.Subscription:
        """A renewal charge is final: `subscription.renewed`; PAST_DUE becomes ACTIVE (cases X33, X36).

        After a merchant cancel it is the charge that was in flight: it lands, ENDED stays (case X39).
        Missed periods are never billed: one charge pays the period that contains now (case X48). None is charged that
        would begin where a scheduled cancel ends it (cases X38, X40).
        """
        world = self._world
        if subscription.status is ENDED:
            if subscription.end_reason != "MERCHANT_CANCELED" or subscription.charge == "landed":
                raise Refusal("subscription_already_ended")
            self._payment(subscription)
            return self._change(subscription, "renewed", charge="landed")
        now = world.now()
        start, end = subscription.period_end, subscription.period_end + self._interval(subscription)
        while end <= now:
            start, end = end, end + self._interval(subscription)
        if subscription.end_at is not None and end > subscription.end_at:
            raise Refusal("conflict", "a cancel is scheduled: it ends before the period to be paid begins")
        reset = world.assumptions.flag("failure_count_resets")
        self._payment(subscription)
        renewed = self._change(
            subscription,
            "renewed",
            status=ACTIVE,
            period_start=start,
            period_end=end,
            failures=0 if reset else subscription.failures,
            retry_at=None,
            by_hand=False,
        )
        self._arm(renewed)
        return renewed

    def fail(self, subscription: r.Subscription, *, by_hand: bool = True) -> r.Subscription:
        """A counted failure of a renewal charge (cases X34, X35, X37).

        One made by hand is retried by hand; an automatic one after the assumption `renewal_retry_s`.
        """
        if subscription.status is ENDED:
            raise Refusal("subscription_already_ended")
        world = self._world
        failures = subscription.failures + 1
        if failures >= MAX_FAILURES:
            subscription = self._put(subscription, failures=failures, retry_at=None)
            if world.assumptions.flag("fourth_payment_failed"):
                self._events.subscription("payment_failed", subscription)
            return self._end(subscription, "PAYMENT_FAILED")
        first = subscription.status is ACTIVE
        retry_at = None if by_hand else world.in_seconds(world.assumptions.number("renewal_retry_s"))
        failed = self._put(subscription, status=PAST_DUE, failures=failures, retry_at=retry_at, by_hand=by_hand)
        self._arm(failed)
        self._events.subscription("payment_failed", failed)
        if first:
            self._events.subscription("past_due", failed)
        return failed

    def set_charge(self, subscription: r.Subscription, charge: str) -> r.Subscription:
        """What the next automatic renewals meet: ok, fail, uncounted or skip."""
        if charge not in CHARGES:
            raise Refusal("validation_failed", f"charge must be one of {', '.join(CHARGES)}", field="charge")
        if subscription.status is ENDED:
            raise Refusal("subscription_already_ended")
        return self._put(subscription, charge=charge)

    # --- ending ------------------------------------------------------------------------------------------------

    def cancel(self, subscription: r.Subscription, at: str) -> r.Subscription:
        """The merchant's cancel, `now` or `period_end` (cases X39, X40, X44). It is final."""
        if subscription.status is ENDED:
            raise Refusal("subscription_already_ended")
        if at == "now":
            return self._end(subscription, "MERCHANT_CANCELED")
        if subscription.end_at is not None:
            return self._put(subscription, merchant_cancel_requested=True)
        return self._schedule(subscription, "MERCHANT_CANCELED", merchant_cancel_requested=True)

    def payer_cancel(self, subscription: r.Subscription) -> r.Subscription:
        """The payer cancels in the portal: ends at the period end (case X38).

        After a merchant cancel the portal offers only "Cancel on Solana", see `cancel_on_solana`.
        """
        if subscription.status is ENDED:
            raise Refusal("subscription_already_ended")
        if subscription.merchant_cancel_requested:
            raise Refusal("conflict", "a merchant cancel is pending: the portal offers no cancel of its own")
        if subscription.payer_scheduled:
            raise Refusal("conflict", "the payer has scheduled the cancel already")
        return self._schedule(subscription, "PAYER_CANCELED", payer_scheduled=True, onchain="ending")

    def payer_withdraw(self, subscription: r.Subscription) -> r.Subscription:
        """The payer takes the cancel back; a merchant cancel stands (cases X38, X41)."""
        if subscription.status is ENDED:
            raise Refusal("subscription_already_ended")
        if not subscription.payer_scheduled:
            raise Refusal("conflict", "the payer has not scheduled a cancel")
        if not subscription.merchant_cancel_requested:
            changes: dict[str, Any] = {"payer_scheduled": False, "cancel_reason": None, "end_at": None}
            resumed = self._change(subscription, "cancel_withdrawn", onchain="live", **changes)
            self._arm(resumed)
            return resumed
        stands = self._put(
            subscription,
            payer_scheduled=False,
            payer_withdrew=True,
            cancel_reason="MERCHANT_CANCELED",
            onchain="live",
        )
        if self._world.assumptions.flag("withdraw_event_when_merchant_stands"):
            self._events.subscription("cancel_withdrawn", stands)
        return stands

    def cancel_on_solana(self, subscription: r.Subscription) -> r.Subscription:
        """The payer ends the on-chain subscription that a merchant cancel left live (spec, Subscription rule 2)."""
        if subscription.status is not ENDED or subscription.onchain != "live":
            raise Refusal("conflict", "there is nothing to cancel on Solana")
        ends = self._boundary(subscription)
        self._world.timers.at(ends, CHAIN_TIMER, subscription.id)
        return self._put(subscription, onchain="ending", onchain_end_at=ends)

    def reclaim_rent(self, subscription: r.Subscription) -> r.Subscription:
        """The payer takes the rent back, which frees the wallet for the plan; needs the on-chain end."""
        if subscription.onchain != "ended":
            raise Refusal("conflict", "the on-chain subscription has not ended")
        return self._put(subscription, onchain="reclaimed")

    # --- time --------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Set the timers again after loading, or when automatic renewal is switched on."""
        for subscription in self._world.subscriptions:
            self._arm(subscription)

    def due(self, kind: str, subscription_id: str, now: datetime) -> None:
        """A subscription's timer rang."""
        subscription = self._world.subscriptions.get(subscription_id)
        if subscription is None:
            return
        if kind == CHAIN_TIMER:
            ends = subscription.onchain_end_at
            if subscription.onchain == "ending" and ends is not None and ends <= now:
                self._put(subscription, onchain="ended")
            return
        if subscription.status is ENDED:
            return
        if subscription.end_at is not None and subscription.end_at <= now:
            self._end(subscription, self._scheduled_reason(subscription))
            return
        renewal = kind == RENEWAL_TIMER and subscription.period_end <= now and subscription.status is ACTIVE
        retry = kind == RETRY_TIMER and subscription.retry_at is not None and subscription.retry_at <= now
        if renewal or retry:
            self._charge(subscription)

    def _charge(self, subscription: r.Subscription) -> None:
        """One automatic renewal, if they are on."""
        world = self._world
        if not world.assumptions.flag("auto_renew"):
            return
        if subscription.charge == "ok":
            self.renew(subscription)
        elif subscription.charge == "fail":
            self.fail(subscription, by_hand=False)
        elif subscription.charge == "uncounted":
            retry_at = world.in_seconds(world.assumptions.number("renewal_retry_s"))
            self._arm(self._put(subscription, retry_at=retry_at))
        else:
            world.timers.at(self._boundary(subscription), RENEWAL_TIMER, subscription.id)

    def _arm(self, subscription: r.Subscription) -> None:
        timers = self._world.timers
        if subscription.onchain == "ending" and subscription.onchain_end_at is not None:
            timers.at(subscription.onchain_end_at, CHAIN_TIMER, subscription.id)
        if subscription.status is ENDED:
            return
        if subscription.end_at is not None:
            timers.at(subscription.end_at, END_TIMER, subscription.id)
        if subscription.retry_at is not None:
            timers.at(subscription.retry_at, RETRY_TIMER, subscription.id)
        elif subscription.status is ACTIVE:
            timers.at(max(subscription.period_end, self._world.now()), RENEWAL_TIMER, subscription.id)

    # --- parts -------------------------------------------------------------------------------------------------

    def _interval(self, subscription: r.Subscription) -> timedelta:
        return timedelta(days=subscription.interval_days)

    def _boundary(self, subscription: r.Subscription) -> datetime:
        """The end of the period that contains now."""
        end, now = subscription.period_end, self._world.now()
        while end <= now:
            end += self._interval(subscription)
        return end

    def _scheduled_reason(self, subscription: r.Subscription) -> str:
        if subscription.payer_scheduled:
            return "PAYER_CANCELED"
        if subscription.payer_withdrew:
            return self._world.assumptions.text("end_reason_when_merchant_stands")
        return "MERCHANT_CANCELED"

    def _schedule(self, subscription: r.Subscription, reason: str, **changes: Any) -> r.Subscription:
        end_at = self._boundary(subscription)
        scheduled = self._change(subscription, "cancel_scheduled", end_at=end_at, cancel_reason=reason, **changes)
        self._arm(scheduled)
        return scheduled

    def _end(self, subscription: r.Subscription, reason: str, *, event: bool = True) -> r.Subscription:
        onchain = "ended" if subscription.onchain == "ending" else subscription.onchain
        ended = self._put(
            subscription,
            status=ENDED,
            end_reason=reason,
            ended_at=self._world.now(),
            retry_at=None,
            onchain=onchain,
        )
        if event:
            self._events.subscription("ended", ended)
        return ended

    def _payment(self, subscription: r.Subscription) -> None:
        world = self._world
        payment = r.Payment(
            id=world.new_id("payment"),
            seq=world.next_seq(),
            app_id=subscription.app_id,
            status=r.PaymentStatus.SUCCEEDED,
            amount=subscription.amount,
            fee=subscription.fee,
            to_wallet=subscription.to_wallet,
            wallet=subscription.wallet,
            signature=world.opaque(64),
            created_at=world.now(),
            subscription_id=subscription.id,
            succeeded_at=world.now(),
        )
        world.put(world.payments, payment)

    def _put(self, subscription: r.Subscription, **changes: Any) -> r.Subscription:
        return self._world.put(self._world.subscriptions, replace(subscription, **changes))

    def _change(self, subscription: r.Subscription, event: str, **changes: Any) -> r.Subscription:
        changed = self._put(subscription, **changes)
        self._events.subscription(event, changed)
        return changed
