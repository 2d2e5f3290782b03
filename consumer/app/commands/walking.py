"""Walking: the stages that read the service, built from Settings for a command that does one walk and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from consumer.app import log_parts, parts
from consumer.app.registering import registering
from consumer.app.sync_parts import sync_policy
from consumer.broker import Broker
from consumer.clock import Clock
from consumer.errors import BrokerUnavailable, UsageError
from consumer.ledger import Database
from consumer.ledger.engine.applied import require_current
from consumer.ledger.engine.database_time import shared_clock
from consumer.ledger.processes import worker_id
from consumer.ledger.reading.budgets import LedgerBudgetStore
from consumer.payments import BudgetStore, CheckoutSession, MemoryBudgetStore
from consumer.settings import Settings
from consumer.sync.api import ApplicationApi
from consumer.sync.publisher import EventPublisher
from consumer.sync.role import ApplicationSync
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.traces import Tracing

CONNECT_S = 15.0


@dataclass(frozen=True)
class Syncing:
    """What a one-shot command works with: the ledger, and the stages of each application that was asked for.
    `unread`: those that were asked for and have no credentials."""

    database: Database
    clock: Clock
    apis: Mapping[str, ApplicationApi]
    applications: Mapping[str, ApplicationSync]
    unread: tuple[str, ...]


@asynccontextmanager
async def open_syncing(
    settings: Settings, *, publishes: bool, application: str | None = None, command: str = "command"
) -> AsyncIterator[Syncing]:
    """The stages of one application, or of all. Without `publishes` the log is not even connected to. `command`, a
    word, is told in the lease to who waits for the lead.

    Raises UsageError (no such application, or none with credentials), DatabaseMissing, LedgerUnavailable,
    SchemaOutdated, BrokerUnavailable, TopicMisconfigured.
    """
    async with AsyncExitStack() as stack:
        database = await opened_ledger(stack, settings)
        clock = await shared_clock(database)
        apis = await opened_apis(stack, settings, database, clock, application)
        broker = log_parts.open_log(settings, clock=clock)
        stack.push_async_callback(broker.stop)
        if publishes:
            await connect(broker, settings)
        publisher = EventPublisher(broker, log_parts.topic(settings, "events"))
        policy = sync_policy(settings)
        holder = f"{worker_id()}/{command}"
        yield Syncing(
            database,
            clock,
            apis,
            {
                name: ApplicationSync(api, database, publisher, clock=clock, holder=holder, policy=policy)
                for name, api in apis.items()
            },
            tuple(one.name for one in settings.applications if application is None and not one.has_credentials),
        )


async def opened_ledger(stack: AsyncExitStack, settings: Settings) -> Database:
    """The ledger, with its schema as it should be. Raises DatabaseMissing, LedgerUnavailable, SchemaOutdated."""
    database = Database(settings.database_url.get_secret_value(), pool_size=3, create=False)
    stack.push_async_callback(database.stop)
    await require_current(database)
    return database


async def opened_apis(
    stack: AsyncExitStack, settings: Settings, database: Database | None, clock: Clock, application: str | None
) -> dict[str, ApplicationApi]:
    """By application: its API, within the budget that all processes share; without a database, within one of this
    process's own, which is for a few reads. Raises UsageError."""
    store: BudgetStore = MemoryBudgetStore(clock) if database is None else LedgerBudgetStore(database, clock)
    metrics = Metrics()
    apis = {}
    for one in settings.applications:
        if application not in (None, one.name):
            continue
        client = parts.payments_client(
            one,
            settings,
            store=store,
            clock=clock,
            metrics=metrics,
            tracing=Tracing(),
            on_session=_unregistered if database is None else registering(database, one.name, clock),
            on_evidence=None,  # one-shot commands look; they create and cancel nothing
        )
        if client is not None:
            await stack.enter_async_context(client)
            apis[one.name] = ApplicationApi(application=one.name, client=client, locators=one.locators)
    if not apis:
        raise UsageError(
            "there is no such application with credentials; set SVC_BASE_URL, SVC_APP_ID and SVC_APP_SECRET",
            application=application,
        )
    return apis


async def _unregistered(_fields: Mapping[str, Any], _session: CheckoutSession) -> None:
    """Without a database nothing is registered; who looks only creates no session."""


async def connect(broker: Broker, settings: Settings) -> None:
    """Connect and see to the topics, within a bound. Raises BrokerUnavailable, TopicMisconfigured."""
    try:
        async with asyncio.timeout(CONNECT_S):
            await broker.start()
            await broker.ensure_topics(log_parts.topics(settings))
    except TimeoutError as error:
        raise BrokerUnavailable("the broker does not answer", within_s=CONNECT_S) from error
