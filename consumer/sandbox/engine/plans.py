"""Plans: a recurring price put on chain by its first subscription session (spec, Plan creation; cases X45-X47)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal
from consumer.sandbox.faults import Faults

RETRIES_S = (30, 120, 600, 3600)
MAX_NEW = 50
WINDOW = timedelta(hours=24)
TIMER = "plan"


class Plans:
    """One plan per price, receiving wallet and fee."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults

    def ensure(self, price: r.Price, merchant: r.Merchant) -> r.Plan:
        """The plan for that price as the merchant is now; a missing one is started, a failed one tried anew.

        Raises plan_limit_reached at the 51st new plan of the merchant in 24 hours.
        """
        world = self._world
        for plan in world.plans:
            if (plan.price_id, plan.wallet, plan.fee_bps) == (price.id, merchant.wallet, merchant.fee_bps):
                if plan.status is not r.PlanStatus.FAILED:
                    return plan
                fresh = replace(plan, status=r.PlanStatus.PREPARING, attempts=0, waiting=False)
                return self._attempt(world.put(world.plans, fresh))
        horizon = world.now() - WINDOW
        recent = sum(1 for p in world.plans if p.merchant_id == merchant.id and p.started_at > horizon)
        if recent >= MAX_NEW:
            raise Refusal("plan_limit_reached")
        plan = r.Plan(
            id=world.new_id("plan"), seq=world.next_seq(), merchant_id=merchant.id, price_id=price.id,
            wallet=merchant.wallet, fee_bps=merchant.fee_bps, status=r.PlanStatus.PREPARING, started_at=world.now(),
        )  # fmt: skip
        return self._attempt(world.put(world.plans, plan))

    def get(self, plan_id: str | None) -> r.Plan | None:
        """The plan, or None."""
        return self._world.plans.get(plan_id) if plan_id else None

    def arm(self) -> None:
        """Set the timers again after loading."""
        for plan in self._world.plans:
            if plan.status is r.PlanStatus.PREPARING and plan.due_at is not None:
                self._world.timers.at(plan.due_at, TIMER, plan.id)

    def due(self, plan_id: str, now: datetime) -> None:
        """A plan's timer rang: the wait is over, or the attempt is."""
        plan = self._world.plans.get(plan_id)
        if plan is None or plan.status is not r.PlanStatus.PREPARING or plan.due_at is None or plan.due_at > now:
            return
        if plan.waiting:
            self._attempt(replace(plan, waiting=False))
        else:
            self._resolve(plan)

    def _attempt(self, plan: r.Plan) -> r.Plan:
        takes_s = self._world.assumptions.number("plan_creation_s")
        if not takes_s:
            return self._resolve(plan)
        return self._wait(plan, takes_s)

    def _resolve(self, plan: r.Plan) -> r.Plan:
        world = self._world
        if not self._faults.take("plan_failures"):
            return world.put(world.plans, replace(plan, status=r.PlanStatus.READY, due_at=None))
        attempts = plan.attempts + 1
        if attempts > len(RETRIES_S):
            return world.put(
                world.plans, replace(plan, status=r.PlanStatus.FAILED, attempts=attempts, due_at=None, waiting=False)
            )
        return self._wait(replace(plan, attempts=attempts, waiting=True), RETRIES_S[attempts - 1])

    def _wait(self, plan: r.Plan, seconds: float) -> r.Plan:
        world = self._world
        due_at = world.in_seconds(seconds)
        world.timers.at(due_at, TIMER, plan.id)
        return world.put(world.plans, replace(plan, due_at=due_at))
