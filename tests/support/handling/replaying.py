"""Replaying in a test: plans and applies with the handlers of a workshop, on its ledger and log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from consumer.app.commands.replaying import Trier
from consumer.clock import Clock
from consumer.ledger.plans import plans
from consumer.ledger.plans.candidates import PlanFilter
from consumer.ledger.plans.tables import PlanRow
from consumer.replay.apply import Applied, Apply, ReplayProgress
from consumer.replay.plan import Planner
from consumer.replay.prediction import Predictor
from consumer.work.execution.contexts import Contexts
from consumer.work.registry import Registry
from tests.work.workshop import TOPIC, Workshop

HOUR = timedelta(hours=1)


class Replaying:
    """What an operator does, without a terminal. `registry`: the handlers as of now, by default the workshop's."""

    def __init__(self, shop: Workshop, registry: Registry) -> None:
        self.shop = shop
        self.planner = Planner(
            database=shop.database,
            predictor=Predictor(
                database=shop.database,
                handlers=registry,
                attempt=Trier(shop.contexts or Contexts(clock=shop.clock)),
            ),
            clock=shop.clock,
        )

    async def plan(self, *, reason: str | None = None, renews_keys: bool = False, **filters: Any) -> dict[str, Any]:
        """`consumer replay plan`."""
        return await self.planner.make(PlanFilter(**filters), by="ann", reason=reason, renews_keys=renews_keys)

    def applying(self, holder: str = "ann/1", clock: Clock | None = None) -> Apply:
        """A process that applies; `clock`: its own."""
        return Apply(
            planner=self.planner,
            broker=self.shop.broker,
            topic=TOPIC,
            clock=clock or self.shop.clock,
            holder=holder,
            rate_per_s=10_000,
        )

    async def apply(
        self,
        plan: dict[str, Any],
        *,
        max_age: timedelta = HOUR,
        told: Callable[[ReplayProgress], None] = lambda _: None,
    ) -> Applied:
        """`consumer replay apply`."""
        return await self.applying().run(plan["id"], by="ann", reason="why", max_age=max_age, told=told)

    async def row(self, plan: dict[str, Any]) -> PlanRow:
        """The plan as it is stored."""
        async with self.shop.database.reading() as session:
            found = await plans.get(session, plan["id"])
        assert found is not None
        return found
