"""App: builds the parts of a role from Settings, and runs them in one `Lifetime`.

What serves others starts first and stops last: what takes in stops before what works it off, and the log and the
ledger close at the end. A part that fails ends the process: its supervisor starts it anew. What only one role is made
of is imported where it is built: a process has in memory, and waits at its start for, no other role's parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from consumer import __version__
from consumer.app import log_parts
from consumer.app.heartbeat import Heartbeat
from consumer.app.lifetime import LOOK_AGAIN_S, Lifetime, Stoppable, first_of, persist
from consumer.app.measured_broker import MeasuredBroker
from consumer.broker import Broker
from consumer.clock import Clock, SharedClock, SystemClock
from consumer.errors import ConsumerError, SettingsError, again
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.engine.applied import require_current
from consumer.ledger.engine.database import user_of
from consumer.ledger.engine.database_time import drive
from consumer.ledger.processes import (
    BROKEN,
    GAVE_WAY,
    HANDLERS,
    INSTALLED,
    LOG,
    MISADDRESSED,
    PREFIX,
    READS,
    SIGNATURES,
    UNACCOUNTED,
    UNPROVED,
    USER,
    worker_id,
)
from consumer.settings import Role, Settings
from consumer.telemetry.descriptors import Descriptors
from consumer.telemetry.internal import Check, Readiness, internal_app
from consumer.telemetry.logs import Condition
from consumer.telemetry.loop_watch import LoopWatch
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.port import InternalRunner
from consumer.telemetry.traces import Tracing, start_tracing

if TYPE_CHECKING:
    from consumer.app.alarms.log_watch import LogWatch
    from consumer.app.upkeep.retention import Retention
    from consumer.console.pages.desk import Status
    from consumer.payments import PaymentsClient
    from consumer.receive.web import Receiver
    from consumer.sync.role import Sync
    from consumer.work.registry import Registry
    from consumer.work.worker import Worker

AGREE_WITHIN_S = 2.0
STOP_SLACK_S = 10.0
HANG_UP_S = 1.0
"""How long a public connection may take to end, after its request was waited for."""

_log = structlog.get_logger(__name__)

PLAYED = frozenset({Role.SERVE, Role.WORK, Role.SYNC, Role.CONSOLE})


class App:
    """One process. Use as `async with`; ask for parts (`receive`, `work`, ...), then `run` until told to stop.

    `plugins` are modules with handlers that are not installed (the demo's and tests' own), by plugin name.
    """

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, plugins: Mapping[str, ModuleType] | None = None
    ) -> None:
        self.settings = settings
        self.machine: Clock = clock or SystemClock()
        self.clock: Clock = clock or SharedClock(self.machine)
        self.metrics = Metrics()
        self.connected = asyncio.Event()
        self._ledger_away = Condition("ledger_not_ready")
        self._broker_away = Condition("broker_not_ready")
        self._log_identity: Callable[[], str | None] = lambda: None
        self._schema_seen = asyncio.Lock()
        self._schema_is_current = False
        self.public_url: str | None = None
        self.internal_url: str | None = None
        self.console_url: str | None = None
        self.worker: Worker | None = None
        self._has_run = False
        self._plugins = plugins or {}
        self._lifetime = Lifetime()
        self._clients: Mapping[str, PaymentsClient] | None = None
        self._readiness = Readiness(self.clock, {"descriptors": Descriptors(self.clock.monotonic).check})
        self._watch = LoopWatch(self.metrics)
        self._process = worker_id()
        self._heartbeat = Heartbeat(
            settings.database_url.get_secret_value(),
            readiness=self._readiness,
            metrics=self.metrics,
            clock=self.clock,
            process=self._process,
        )
        self._heartbeat.told["loop"] = self._watch.slow

    async def __aenter__(self) -> Self:
        self._watch.start()
        self._lifetime.stack.push_async_callback(self._watch.stop)
        self.metrics.build.info({"version": __version__, "role": self.settings.role.value})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readiness.drain()
        if isinstance(error, ConsumerError) and not self._has_run and self.settings.role in PLAYED:
            self._heartbeat.roles |= {self.settings.role.value} if not self._heartbeat.roles else set()
            await self._heartbeat.say_that_it_died(error)
        await self._lifetime.stack.aclose()

    async def ready(self) -> bool:
        """Whether every part can do its work now; one that says why it cannot, cannot."""
        try:
            return all([await check() for check in self._readiness.checks.values()])
        except ConsumerError:
            return False

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set or a part fails (then: raises what it raised). Leaving the block stops everything."""
        self._has_run = True
        self._readiness.started()
        self._lifetime.run(self._heartbeat.run, "heartbeat", STOP_SLACK_S)
        try:
            ended = await self._lifetime.ended(stop)
        finally:
            self._readiness.drain()
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._heartbeat.dies(error)
            task.result()

    # --- what parts share --------------------------------------------------------------------------------------

    @cached_property
    def database(self) -> Database:
        """The ledger's database; it connects when first used."""
        database = Database(self.settings.database_url.get_secret_value())
        self._lifetime.stack.push_async_callback(database.stop)
        self._readiness.add("database", database.check)
        self._readiness.add("ledger_write", self._heartbeat.check)
        return database

    @cached_property
    def broker(self) -> MeasuredBroker:
        """The log. Connecting goes on in the background until it works; `connected` is set then."""
        found = log_parts.open_log(self.settings, clock=self.clock, client_id=self._process)
        broker = MeasuredBroker(found, self.metrics)
        self._log_identity = lambda: broker.identity
        self._lifetime.stack.push_async_callback(broker.stop)
        self._readiness.add("broker", broker.check)
        self._heartbeat.told["log_write"] = lambda: broker.refusal
        self._lifetime.run(lambda stop: self._connect(broker, stop), "broker", LOOK_AGAIN_S + STOP_SLACK_S)
        return broker

    @cached_property
    def tracing(self) -> Tracing:
        """Traces, sent if an address is configured."""
        exporter = None
        if self.settings.traces_endpoint:
            from consumer.telemetry.otlp import OtlpExporter

            exporter = OtlpExporter(self.settings.traces_endpoint)
        tracing = start_tracing(
            exporter,
            role=self.settings.role.value,
            version=__version__,
            ratio=self.settings.traces_ratio,
        )
        self._lifetime.stack.push_async_callback(asyncio.to_thread, tracing.stop)
        return tracing

    @cached_property
    def registry(self) -> Registry:
        """The handlers of this deployment."""
        from consumer.work.registry import load_registry

        renamed = {new: old for old, new in self.settings.renamed_handlers.items()}
        registry = load_registry(self.settings.handlers, renamed, extra=self._plugins)
        for name in dict.fromkeys(handler.plugin for handler in registry.handlers):
            named = [handler.name for handler in registry.handlers if handler.plugin == name]
            _log.info("plugin_loaded", plugin=name, handlers=named)
        for plugin in registry.broken:
            _log.error("plugin_broken", plugin=plugin.plugin, reason=plugin.reason)
        return registry

    @cached_property
    def locators(self) -> Mapping[str, Locators]:
        """Where facts lie in each application's bodies."""
        return {application.name: application.locators for application in self.settings.applications}

    async def payments(self) -> Mapping[str, PaymentsClient]:
        """The API client of each application that has credentials; all share one budget, in the ledger."""
        if self._clients is None:
            from consumer.app import parts
            from consumer.app.read_after_write import asking
            from consumer.app.registering import registering
            from consumer.ledger.reading.budgets import LedgerBudgetStore

            store = LedgerBudgetStore(self.database, self.clock)
            built = {
                one.name: parts.payments_client(
                    one,
                    self.settings,
                    store=store,
                    clock=self.clock,
                    metrics=self.metrics,
                    tracing=self.tracing,
                    on_session=registering(self.database, one.name, self.clock),
                    on_evidence=asking(self.database, one.name, self.clock),
                )
                for one in self.settings.applications
            }
            self._clients = {name: client for name, client in built.items() if client is not None}
            for client in self._clients.values():
                await self._lifetime.stack.enter_async_context(client)
        return self._clients

    async def upgrade(self) -> None:
        """Bring the schema up to date; `demo` and `dev` only, elsewhere it is an operator's step. Raises as
        `schema.require`."""
        from consumer.ledger.engine import schema

        schema.require(await schema.upgrade(self.database))

    async def drive(self, ahead_s: float) -> None:
        """The ledger's time is so much ahead of its database's, for all who use it; `demo` and `dev` only. This process
        says at once that it lives by then, too. Raises LedgerError."""
        async with self.database.transaction() as session:
            await drive(session, ahead_s)
        await self._heartbeat.beat()

    async def _connect(self, broker: Broker, stop: asyncio.Event) -> None:
        """Connect and see to the topics, for as long as it takes; then keep still."""

        async def connect() -> None:
            await broker.start()
            await broker.ensure_topics(log_parts.topics(self.settings))

        if await persist(connect, self._broker_away, stop):
            self.connected.set()
        await stop.wait()

    async def _ready_to_work(self, stop: asyncio.Event) -> bool:
        """Wait for the ledger's schema and the log; False when told to stop first. Raises SchemaOutdated."""
        if not await self._has_schema(stop):
            return False
        if not await persist(self._heartbeat.agree_on_time, self._ledger_away, stop):
            return False
        return await first_of(self.connected, stop)

    async def _has_schema(self, stop: asyncio.Event) -> bool:
        """Wait for the ledger's schema; False when told to stop first. Raises SchemaOutdated."""
        return await persist(self._require_schema, self._ledger_away, stop)

    async def _require_schema(self) -> None:
        """The schema is as this version needs it; looked at once, for all parts. Raises LedgerError."""
        async with self._schema_seen:
            if not self._schema_is_current:
                await require_current(self.database)
                self._schema_is_current = True

    # --- parts -------------------------------------------------------------------------------------------------

    async def internal(self, *, console: bool = False, status: Status | None = None) -> None:
        """`/healthz`, `/readyz`, `/metrics` on the internal port; with `console`, the query API and the operator's
        pages too. `status`: what `consumer status` says. Raises SettingsError for users that are none, and for
        options of the built-in plugins that do not fit."""
        app = internal_app(metrics=self.metrics, readiness=self._readiness, watch=self._watch)
        if console:
            from consumer.app.options import require_built_in
            from consumer.console.pages.desk import desk_of
            from consumer.console.pages.routes import page_routes
            from consumer.console.pages.users import Users
            from consumer.console.query import query_routes

            require_built_in(self.settings.handler_options)
            self._heartbeat.roles.add(Role.CONSOLE.value)
            token = self.settings.api_token
            self._lifetime.run(self._watch_business, "unfulfilled", STOP_SLACK_S, after=self._has_schema)
            query_routes(
                app,
                database=self.database,
                clock=self.clock,
                token=token.get_secret_value() if token else None,
                applications=[application.name for application in self.settings.applications],
                options=self.settings.handler_options,
            )
            users = Users(self.settings.console_users) if self.settings.console_users is not None else None
            page_routes(app, desk_of(self.settings, self.database, self.clock, status), users)
        runner = InternalRunner(app)
        self.internal_url = await self._lifetime.listen(
            runner, self.settings.internal_host, self.settings.internal_port
        )
        self.console_url = f"{self.internal_url}/console/" if console else None

    async def _watch_business(self, stop: asyncio.Event) -> None:
        from consumer.app.alarms.accounting import Accounting
        from consumer.app.alarms.ledger_figures import watch_ledger_figures

        names = [application.name for application in self.settings.applications]
        room = self.settings.unproved_max_bytes
        accounting = Accounting(self.database, self.metrics, self.clock, names, self.settings.handler_options)
        self._heartbeat.said["console", UNACCOUNTED] = lambda: accounting.unaccounted
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_ledger_figures(self.database, self.metrics, self.clock, stop, room, names))
            group.create_task(accounting.run(stop))

    async def receive(self, *, shares_port: bool = False) -> None:
        """The role `serve`: the public webhook port; `shares_port`: beside other processes of the same kind."""
        from consumer.app import receive_parts
        from consumer.receive.web import Receiver, receive_runner

        self._plays(Role.SERVE)
        receiver = Receiver(
            broker=self.broker,
            endpoints=[
                receive_parts.endpoint(application, self.settings) for application in self.settings.applications
            ],
            clock=self.machine,  # a signature's age is between the sender and this machine; no ledger has a say in it
            shared=self.clock,
            metrics=self.metrics,
            tracing=self.tracing,
            topic_prefix=self.settings.topic_prefix,
            limits=receive_parts.receive_limits(self.settings),
        )
        self.broker.writes |= log_parts.written(self.settings, Role.SERVE)
        self._heartbeat.said["serve", SIGNATURES] = receiver.refusals.told
        self._heartbeat.said["serve", UNPROVED] = receiver.stored_lately.told
        self._heartbeat.said["serve", MISADDRESSED] = receiver.misaddressed.told
        self._heartbeat.looks.append(receiver.look)
        self._readiness.add("receive", receiver.has_room)
        await self._agree_soon()
        runner = receive_runner(receiver, shutdown_timeout_s=HANG_UP_S)
        self.public_url = await self._lifetime.listen(
            runner, self.settings.host, self.settings.port, shares_port=shares_port
        )
        # Ended from the last to the first. While requests are waited for, their connections are still read from: the
        # runner's end drops what comes then, and a webhook that was half in would be refused for its missing half.
        self._lifetime.stack.push_async_callback(receiver.stop, self.settings.drain_s)
        for site in runner.sites:
            self._lifetime.stack.push_async_callback(site.stop)
        self._lifetime.stack.push_async_callback(self._linger, receiver)

    def _plays(self, role: Role) -> None:
        """A role that uses the log, and says which, by which topics, and as whom it writes to the ledger."""
        self._heartbeat.roles.add(role.value)
        self._heartbeat.said[role.value, USER] = lambda: user_of(self.settings.database_url.get_secret_value())
        self._heartbeat.said[role.value, PREFIX] = lambda: self.settings.topic_prefix
        self._heartbeat.said[role.value, LOG] = lambda: self._log_identity()

    async def _agree_soon(self) -> None:
        """Ask the ledger what time it is, so that the first webhook, too, is received by the time that all agree on;
        later each heartbeat does. A `serve` without a ledger goes by its machine's, and nobody waits for long."""
        with suppress(ConsumerError, TimeoutError, OSError):
            async with asyncio.timeout(AGREE_WITHIN_S):
                await self._heartbeat.agree_on_time()

    async def _linger(self, receiver: Receiver) -> None:
        """Not ready any more, but still answering: until the load balancer has noticed, no request is refused (O8)."""
        receiver.begin_closing()
        if self.settings.role is Role.SERVE:
            await self.clock.sleep(self.settings.linger_s)

    async def work(self) -> None:
        """The role `work`. Raises SettingsError when a plugin refuses its options, or a handler does not exist."""
        from consumer.app.give_up import leave
        from consumer.app.options import BUILT_IN
        from consumer.app.upkeep.care import Care
        from consumer.app.upkeep.taking import note_taken
        from consumer.ledger.archiving import derivation
        from consumer.ledger.engine.grants import Grants
        from consumer.work.build import build_worker
        from consumer.work.execution.contexts import Contexts
        from consumer.work.observer import Observer
        from consumer.work.worker import WorkerConfig

        self._plays(Role.WORK)
        self.check_plugins()
        runs = " ".join(sorted(handler.name for handler in self.registry.handlers))
        broken = " ".join(sorted(plugin.plugin for plugin in self.registry.broken))
        installed = " ".join(sorted(handler.name for handler in self.registry.installed))
        self._heartbeat.said |= {("work", HANDLERS): lambda: runs, ("work", BROKEN): lambda: broken}
        self._heartbeat.said["work", INSTALLED] = lambda: installed
        contexts = Contexts(self.clock, self.settings.handler_options, await self.payments(), ledger=self.database)
        database, broker, settings, tracing = self.database, self.broker, self.settings, self.tracing
        broker.writes |= log_parts.written(settings, Role.WORK)
        config = WorkerConfig(
            topic=log_parts.topic(settings, "events"),
            dead_topic=log_parts.topic(settings, "events.dead"),
            group=log_parts.topic(settings, "work"),
            batch=settings.work_batch,
            concurrency=settings.work_concurrency,
            drain_s=settings.drain_s,
            cutoff_s=settings.work_cutoff_s,
        )

        async def work(stop: asyncio.Event) -> None:
            await self._heartbeat.beat()  # an import that begins from here on finds this worker
            async with database.reading() as session:
                if owed := await derivation.require_derived(session):
                    _log.error("not_derived", applications=sorted(owed))
            self.worker = build_worker(
                database=database,
                broker=broker,
                registry=self.registry,
                contexts=contexts,
                locators=self.locators,
                clock=self.clock,
                observer=Observer(self.metrics, tracing),
                config=config,
                watch=self._watch,
                give_up=leave if settings.role is Role.WORK else None,
                process=self._process,
            )
            care = Care(self.worker, database, self.clock)
            await care.look()
            caring = asyncio.create_task(care.run(stop), name="app:care")
            try:
                await self.worker.run(stop)
            finally:
                caring.cancel()

        async def polls() -> bool:
            return self.worker is not None and self.worker.check()

        self._readiness.add("group", polls)
        self._readiness.add("grants", Grants(database, BUILT_IN, self.clock).check)
        note = partial(note_taken, database, self.clock)
        self._lifetime.run(note, "taking", STOP_SLACK_S, after=self._has_schema)
        self._lifetime.run(work, "work", settings.drain_s + STOP_SLACK_S, after=self._ready_to_work)

    def check_plugins(self) -> None:
        """Say which built-ins are left out. Raises SettingsError for options that do not fit, unknown handlers, and
        folders of plugins that cannot be read."""
        from consumer.app.options import BUILT_IN, built_ins_left_out, left_out, option_problems, unknown_handlers
        from consumer.work.registry import NOT_READABLE, unreadable

        problems = option_problems(self.registry, self.settings.handler_options)
        renamed = {new: old for old, new in self.settings.renamed_handlers.items()}
        problems += unknown_handlers(self.registry, self.settings.handlers, renamed)
        problems += [f"{path}: {NOT_READABLE}" for path in unreadable()]
        if problems:
            raise SettingsError(problems)
        for plugin in left_out(self.registry, self.settings.handlers):
            _log.error("built_in_left_out", setting="CONSUMER_HANDLERS", plugin=plugin)
        gone = built_ins_left_out(self.registry, self.settings.handlers)
        for name in BUILT_IN:
            self.metrics.status_code.labels("built_in_left_out", name).set(name in gone)
        for broken in self.registry.broken:
            self.metrics.status_code.labels("plugins_broken", broken.plugin).set(1)

    async def sync(self) -> None:
        """The role `sync`: everything that reads the service; one process at a time leads per application."""
        from consumer.app.options import BUILT_IN
        from consumer.app.upkeep.sealing import seal_trail
        from consumer.ledger.engine.grants import Grants

        self._plays(Role.SYNC)
        self.broker.writes |= log_parts.written(self.settings, Role.SYNC)
        clients = await self.payments()
        read = " ".join(sorted(clients))
        self._heartbeat.said["sync", READS] = lambda: read
        sync = self._built_sync(clients)
        self._heartbeat.said["sync", GAVE_WAY] = lambda: " ".join(sync.gave_way) or None

        async def takes_deliveries() -> bool:
            if sync.hint_consumer.failure.error is not None:
                raise again(sync.hint_consumer.failure.error)
            return True

        self._readiness.add("deliveries", takes_deliveries)
        self._readiness.add("grants", Grants(self.database, BUILT_IN, self.clock).check)
        if self.settings.retention is not None and self.settings.archive_dir is not None:
            retention = self._retention(self.settings.archive_dir, self.settings.retention)
            self._lifetime.run(retention.run, "archiving", STOP_SLACK_S, after=self._ready_to_work)
        seal = partial(seal_trail, self.database, self.clock)
        self._lifetime.run(seal, "sealing", STOP_SLACK_S, after=self._has_schema)
        self._lifetime.run(self._log_watch(sync).run, "log_watch", STOP_SLACK_S, after=self._ready_to_work)
        self._lifetime.run(sync.run, "sync", STOP_SLACK_S, after=self._ready_to_work)

    def _built_sync(self, clients: Mapping[str, PaymentsClient]) -> Sync:
        from consumer.app.sync_parts import sync_policy
        from consumer.sync.api import ApplicationApi
        from consumer.sync.role import Sync

        return Sync(
            [
                ApplicationApi(application=name, client=one, locators=self.locators[name])
                for name, one in clients.items()
            ],
            self.broker,
            self.database,
            deliveries_topic=log_parts.topic(self.settings, "deliveries"),
            events_topic=log_parts.topic(self.settings, "events"),
            group=log_parts.topic(self.settings, "confirm"),
            applications=list(self.locators),
            clock=self.clock,
            holder=self._process,
            metrics=self.metrics,
            policy=sync_policy(self.settings),
        )

    def _log_watch(self, sync: Sync) -> LogWatch:
        """Looks at the log as a whole; a log that was made anew is told to all who read for one that is lost."""
        from consumer.app.alarms.log_watch import LogWatch

        async def lost(at: datetime) -> None:
            for one in sync.applications.values():
                await one.note_lost_log(at)

        return LogWatch(
            self.broker,
            self.database,
            log_parts.groups(self.settings),
            metrics=self.metrics,
            clock=self.clock,
            on_replaced=lost,
            topics=log_parts.topics(self.settings),
            size=lambda: log_parts.log_bytes(self.settings),
        )

    def _retention(self, folder: Path, age: timedelta) -> Retention:
        from consumer.app.upkeep.retention import Retention

        return Retention(
            self.database, folder=folder, age=age, holder=worker_id(), clock=self.clock, metrics=self.metrics
        )

    # --- how parts run -----------------------------------------------------------------------------------------

    def beside(self, run: Stoppable, name: str, limit_s: float, *, check: Check) -> None:
        """A part that somebody else brings, ended like every other; the process is ready when `check` says so, too."""
        self._readiness.add(name, check)
        self._lifetime.run(run, name, limit_s)
