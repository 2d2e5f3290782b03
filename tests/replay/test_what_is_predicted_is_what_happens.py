"""The oracle: histories of orders and subscriptions, in which runs died at random; then a plan, mended handlers, and
`apply`, which is killed and begun again at random. What was predicted is what came: each derived event, each call of an
effect handler, each run's end. Where webhooks come in meanwhile, what came otherwise is named."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from consumer.app.commands.replaying import Trier
from consumer.broker.base import Message
from consumer.clock import SystemClock
from consumer.errors import PlanMoved
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import handlers as known_handlers
from consumer.ledger.plans import plans
from consumer.ledger.plans.candidates import PlanFilter
from consumer.ledger.plans.tables import PlanStatus
from consumer.plugin import Context, Handler, RetryPolicy, declared, handles
from consumer.replay.apply import Applied, Apply
from consumer.replay.plan import Planner
from consumer.replay.prediction import Predictor
from consumer.work.execution.contexts import Contexts
from tests.access.history import Service, denials, services, webhooks
from tests.access.test_rebuild import handlers_of, order_facts
from tests.support.handling.live import Live

HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "10"))
"""Half of them of orders, half of subscriptions; 1,000 take a quarter of an hour."""
pytestmark = pytest.mark.timeout(300 + HISTORIES * 5)
PLUGINS: dict[str, dict[str, Any]] = {"fulfilment": {}, "access": {}}
OVER = Applied(
    plan="", status=PlanStatus.APPLIED.value, items={}, runs={}, otherwise=[], moved=[], timers={}, by_timers=[]
)
"""It was killed when all was done, and before it could say so."""
_names = count()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def ledger(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("oracle")
    database = Database(f"sqlite+aiosqlite:///{folder}/ledger.db")
    runner.run(schema.upgrade(database))
    yield database
    runner.run(database.stop())


class Outside:
    """Effect handlers of a merchant, and what replays called them with while `broken` was not set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.broken = False

    def handlers(self) -> list[Handler]:
        @handles("fulfilment.requested", "access.granted", "access.revoked", name="shop:act")
        async def act(event: Event, ctx: Context) -> None:
            if self.broken:
                raise ValueError("the shop is broken")
            self._called(ctx, "shop:act")

        @handles("order.paid", "subscription.*", name="shop:hear", on_dead="continue")
        async def hear(event: Event, ctx: Context) -> None:
            if self.broken:
                raise ValueError("the shop is broken")
            self._called(ctx, "shop:hear")

        found = [declared(act), declared(hear)]
        return [replace(one, retry=RetryPolicy(attempts=1), breaker_after=0) for one in found if one is not None]

    def _called(self, ctx: Context, name: str) -> None:
        if ctx.is_replay:  # a timer of the history may go off meanwhile: that is live work
            self.calls.append((name, ctx.idempotency_key))


class Loop:
    """A log that ends in the workers of the same process: what is published is there, whoever is killed then."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._published: list[Message] = []

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        self._published += messages

    async def deliver(self) -> int:
        """The workers take what was published; how much."""
        taken, self._published = self._published, []
        if taken:
            await self._live.take(*taken)
        return len(taken)


class DrivenTime(SystemClock):
    """The workers' time; what waits, waits really."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def now(self) -> datetime:
        return self._live.clock.now()


@dataclass(frozen=True)
class Meanwhile:
    """What happens while a plan is applied: after so many rounds of the workers it is killed (and begun again), or a
    webhook comes."""

    kills: frozenset[int]
    webhooks: Mapping[int, Event]


async def applied(live: Live, planner: Planner, plan: dict[str, Any], meanwhile: Meanwhile) -> Applied:
    """The plan, applied while the workers work."""
    loop = Loop(live)
    going = begun(loop, live, planner, plan)
    for number in count():
        if going.done():
            return going.result()
        if number in meanwhile.kills:
            going.cancel()  # at whatever it waits for; SIGKILL on processes: test_a_killed_apply_goes_on_where_it_was
            await asyncio.gather(going, return_exceptions=True)
            async with live.database.transaction():
                pass  # a commit that was on its way is over, as it would be when the process is gone
            if await is_over(live, plan):
                return OVER
            going = begun(loop, live, planner, plan)
        if number in meanwhile.webhooks:
            await live.arrive(meanwhile.webhooks[number])
        if not await loop.deliver() + await live.relay() + await live.make_up():
            await asyncio.sleep(0.005)
    raise AssertionError("it has no end")


async def is_over(live: Live, plan: dict[str, Any]) -> bool:
    async with live.database.reading() as session:
        row = await plans.get(session, plan["id"])
    return row is not None and row.status == PlanStatus.APPLIED


def begun(loop: Loop, live: Live, planner: Planner, plan: dict[str, Any]) -> asyncio.Task[Applied]:
    apply = Apply(
        planner=planner, broker=loop, topic="events", clock=DrivenTime(live), holder="test", rate_per_s=1e6,  # type: ignore[arg-type]  # all of a broker that it uses
    )  # fmt: skip
    return asyncio.create_task(apply.run(plan["id"], by="ann", reason="mended", max_age=timedelta(hours=1)))


async def planned_and_applied(
    live: Live, planner: Planner, wanted: PlanFilter, meanwhile: Meanwhile
) -> tuple[dict[str, Any], Applied]:
    """As a person does it: when a timer of the history went off in between, and the plan is refused, a new one."""
    for _ in range(5):
        await live.pass_time(1, steps=2)
        plan = await planner.make(wanted, by="ann", reason="oracle")
        try:
            return plan, await applied(live, planner, plan, meanwhile)
        except PlanMoved:
            continue
    raise AssertionError("the world moves all the time")


async def play(
    ledger: Database, data: Any, facts: list[Event], batches: list[list[Event]], broken: dict[tuple[str, str], int]
) -> None:
    """A history in which some runs die; a plan; mended; applied; held against the plan."""
    application = batches[0][0].application
    outside = Outside()
    live = Live(ledger, PLUGINS, application=application, stumbles=broken, attempts=1, more=outside.handlers())
    try:
        for batch in batches:
            outside.broken = data.draw(st.booleans())
            await live.arrive(*batch)
            await live.pass_time(data.draw(st.sampled_from([0.01, 2, 30])), steps=2)
        broken.clear()
        outside.broken = False
        outside.calls.clear()
        predictor = Predictor(database=ledger, handlers=live.registry, attempt=Trier(Contexts(live.clock, PLUGINS)))
        planner = Planner(database=ledger, predictor=predictor, clock=live.clock)
        handler = data.draw(st.sampled_from([None, None, "shop:act", "fulfilment:order_paid", "access:subscription"]))
        forced = handler is not None and data.draw(st.booleans())
        live.clock.advance(1)
        async with ledger.transaction() as session:
            await known_handlers.register(session, live.registry.handlers, live.clock.now())
        wanted = PlanFilter(application=application, handler=handler, forced=forced)
        meanwhile = data.draw(st.one_of(st.just(Meanwhile(frozenset(), {})), _meanwhiles(facts)))
        plan, done = await planned_and_applied(live, planner, wanted, meanwhile)
        if meanwhile.webhooks and (done is OVER or not done.is_as_planned):
            return  # what moved is named
        assert (done.otherwise, done.moved) == ([], [])
        calls = Counter(name for name, _ in outside.calls)
        predicted = {name: plan["effects"].get(name, {}).get("calls", 0) for name in ("shop:act", "shop:hear")}
        assert {name: calls[name] for name in predicted} == predicted, (plan, done)
        keys = [key for name in predicted for key in plan["effects"].get(name, {}).get("idempotency_keys", [])]
        assert set(keys) <= {key for _, key in outside.calls}
    finally:
        await live.close()


def _meanwhiles(facts: list[Event]) -> st.SearchStrategy[Meanwhile]:
    rounds = st.integers(0, 12)
    return st.builds(
        Meanwhile,
        kills=st.frozensets(rounds, max_size=3),
        webhooks=st.dictionaries(rounds, st.sampled_from(facts), max_size=3),
    )


def _histories(data: Any, facts: list[Event]) -> tuple[list[list[Event]], dict[tuple[str, str], int]]:
    batches = data.draw(st.lists(st.lists(st.sampled_from(facts), min_size=1, max_size=4), min_size=1, max_size=4))
    candidates = [(event.id, name) for event in facts for name in handlers_of(event)]
    return batches, data.draw(st.dictionaries(st.sampled_from(candidates), st.just(9), max_size=5))


SETTINGS: dict[str, Any] = {
    "max_examples": max(1, HISTORIES // 2),
    "derandomize": "CONSUMER_TEST_HISTORIES" not in os.environ,
    "deadline": None,
    "phases": (Phase.explicit, Phase.generate),  # an example takes seconds: the first that fails is told as it is
    "suppress_health_check": list(HealthCheck),
}


# case: R2, R3
@settings(**SETTINGS)
@given(data=st.data())
def test_of_orders(runner: asyncio.Runner, ledger: Database, data: Any) -> None:
    facts = order_facts(f"app{next(_names)}")
    runner.run(play(ledger, data, facts, *_histories(data, facts)))


# case: R2, R3
@settings(**SETTINGS)
@given(service=services(), data=st.data())
def test_of_subscriptions(runner: asyncio.Runner, ledger: Database, service: Service, data: Any) -> None:
    application = f"app{next(_names)}"
    facts = webhooks(service, application, thin=data.draw(st.booleans())) + denials(service, application)
    if facts:
        runner.run(play(ledger, data, facts, *_histories(data, facts)))
