"""Roles: the processes of a play, built as the commands build them, without a watch on the loop's real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

from consumer.broker.base import Broker
from consumer.clock import Clock
from consumer.events import Locators
from consumer.ledger import Database
from consumer.lists.policy import WalkPolicy
from consumer.payments import Credentials, PaymentsClient
from consumer.plugin import declared
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.role import Sync, SyncPolicy
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.traces import Tracing
from consumer.work import build
from consumer.work.execution.contexts import Contexts
from consumer.work.observer import Observer
from consumer.work.registry import Registry
from consumer.work.worker import WorkerConfig
from handlers.access import handler as access
from handlers.fulfilment import handler as fulfilment
from tests.simulation import shop
from tests.simulation.loop import Process
from tests.simulation.service import Service

EVENTS, DELIVERIES, APPLICATION = "payments.events", "payments.deliveries", "shop"
WORK_GROUP, CONFIRM_GROUP = "work", "confirm"
PLUGINS = {"fulfilment": fulfilment, "access": access, "shop": shop}
OPTIONS: dict[str, dict[str, Any]] = {
    "fulfilment": {"read_within_s": 1.0},
    "access": {"resubscribe": "5s", "settle": "1s", "provisional_after": "1s"},
}
NEVER_S = 1e9
SYNC = SyncPolicy(
    confirm=ConfirmPolicy(patience_s=30.0, single_burst=3),
    backfill=BackfillPolicy(
        interval_s=10.0,
        silent_interval_s=5.0,
        history=timedelta(days=4000),
        walk=WalkPolicy(limit=2, overlap_pages=0, overlap_s=0.0, overlap_every_s=NEVER_S),
    ),
    reconcile=ReconcilePolicy(every=timedelta(seconds=30), look_s=5.0),
    canary_every_s=5.0,
)
"""All that is far apart in time comes soon, and lists have several pages. What a walk has passed by it does not read
again, nor does a sweep, but for the first: the service lists nothing late, and that would hide what a walk lost."""

Work = Callable[[Database, asyncio.Event], Awaitable[None]]


class Role:
    """A process, from its start until it ends by itself."""

    def __init__(self, process: Process, work: Work, database_url: str) -> None:
        self.process, self.stop = process, asyncio.Event()
        self.running = process.start(self._run(work, database_url))

    async def _run(self, work: Work, database_url: str) -> None:
        database = Database(database_url, durable=False)
        await work(database, self.stop)
        await database.stop()


def worker(name: str, broker: Broker, clock: Clock) -> Work:
    """`work`."""

    async def work(database: Database, stop: asyncio.Event) -> None:
        found = [(plugin, declared(one)) for plugin, module in PLUGINS.items() for one in vars(module).values()]
        handlers = [replace(handler, plugin=plugin) for plugin, handler in found if handler is not None]
        with mock.patch.object(build, "worker_id", return_value=name):
            built = build.build_worker(
                database=database,
                broker=broker,
                registry=Registry(handlers),
                contexts=Contexts(clock, options=OPTIONS, ledger=database),
                locators={APPLICATION: Locators()},
                clock=clock,
                observer=Observer(Metrics(), Tracing()),
                config=WorkerConfig(topic=EVENTS, group=WORK_GROUP, batch=20, drain_s=5, cutoff_s=0),
            )
        await built.run(stop)

    return work


def reader(name: str, broker: Broker, clock: Clock, service: Service) -> Work:
    """`sync`."""

    async def work(database: Database, stop: asyncio.Event) -> None:
        app_id, secret = service.credentials
        session: Any = service
        client = PaymentsClient(
            "http://127.0.0.1:1", Credentials(app_id, [secret]), application=APPLICATION, clock=clock, session=session
        )
        built = Sync(
            [ApplicationApi(application=APPLICATION, client=client)],
            broker,
            database,
            deliveries_topic=DELIVERIES,
            events_topic=EVENTS,
            group=CONFIRM_GROUP,
            applications=[APPLICATION],
            clock=clock,
            holder=name,
            policy=SYNC,
        )
        await built.run(stop)

    return work
