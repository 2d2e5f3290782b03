"""ApplicationSync: all stages that read the service for one application, led by one process at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog

from consumer.broker import Broker
from consumer.clock import Clock, rest
from consumer.errors import AnotherLeads, ConsumerError, SecretFileBroken
from consumer.ledger import Database
from consumer.ledger.leases import LEASE_S, READER
from consumer.lists.progress import Progress
from consumer.payments import Priority
from consumer.runtime.leader import Leader
from consumer.runtime.loop import REFUSED, StageFailure
from consumer.sync.api import ApplicationApi
from consumer.sync.application import Application
from consumer.sync.backfill import silence
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.backfill.report import BackfillOptions, BackfillReport
from consumer.sync.backfill.stage import Backfill
from consumer.sync.canary.stage import EVERY_S, Canary
from consumer.sync.confirm.hints import GROUP, HintConsumer
from consumer.sync.confirm.policy import MAX_BYTES, ConfirmPolicy
from consumer.sync.confirm.stage import Confirm
from consumer.sync.health.gauges import LeaderGauges
from consumer.sync.health.giving_way import GivingWay
from consumer.sync.health.stalled import STAGES, Watch
from consumer.sync.identity import Identity
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile import state as reconcile_state
from consumer.sync.reconcile.drift import DriftReport
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.reconcile.stage import Reconcile
from consumer.sync.refresh.policy import RefreshPolicy
from consumer.sync.refresh.stage import Refresh
from consumer.sync.settlement import Settlement
from consumer.telemetry.metrics import Metrics

LOG = structlog.get_logger()

LEAST_SHARE: Final = RefreshPolicy(per_s=0.3, burst=6, order_per_s=0.2, order_burst=2)


@dataclass(frozen=True, kw_only=True)
class SyncPolicy:
    """How the stages of an application behave. `lease_s` bounds a takeover (see Leader); `unproved_max_bytes` what is
    kept of strangers' deliveries (see HintConsumer)."""

    lease_s: float = LEASE_S
    confirm: ConfirmPolicy = field(default_factory=ConfirmPolicy)
    refresh: RefreshPolicy = field(default_factory=RefreshPolicy)
    backfill: BackfillPolicy = field(default_factory=BackfillPolicy)
    reconcile: ReconcilePolicy = field(default_factory=ReconcilePolicy)
    unproved_max_bytes: int = MAX_BYTES
    canary_every_s: float = EVERY_S

    def among(self, applications: int) -> SyncPolicy:
        """The same for one of so many at one API address: they share its limit, and so what the reads that handlers
        asked for may take of it (cases B23, C15). Each keeps `LEAST_SHARE`, where it had that much."""

        def share(whole: float, least: float) -> float:
            return min(whole, max(least, whole / applications))

        one, least = self.refresh, LEAST_SHARE
        shared = replace(
            one,
            per_s=share(one.per_s, least.per_s),
            burst=int(share(one.burst, least.burst)),
            order_per_s=share(one.order_per_s, least.order_per_s),
            order_burst=int(share(one.order_burst, least.order_burst)),
        )
        return replace(self, refresh=shared)


class ApplicationSync:
    """One application's stages. `holder` is unique per process and start.

    `run` is the role; `backfill_once` and `reconcile_once` are the one-shot commands.
    """

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        publisher: EventPublisher,
        *,
        clock: Clock,
        holder: str,
        metrics: Metrics | None = None,
        policy: SyncPolicy | None = None,
    ) -> None:
        policy = policy or SyncPolicy()
        self.leader = Leader(
            database, role=f"{READER}{api.application}", holder=holder, clock=clock, lease_s=policy.lease_s
        )
        self.app = app = Application(
            api=api,
            database=database,
            clock=clock,
            token=lambda: self.leader.token,
            metrics=metrics or Metrics(),
        )
        self.identity = Identity(app)
        publisher = publisher.vouched_by(self.identity.vouch)
        self.reconcile = Reconcile(app, publisher, policy=policy.reconcile)
        settlement = Settlement(app, publisher)
        self.backfill = Backfill(app, settlement, policy=policy.backfill, reconcile_due=self.reconcile.wake)
        self.confirm = Confirm(app, settlement, policy=policy.confirm, catch_up=CatchUp(self.backfill))
        self.refresh = Refresh(app, publisher, policy=policy.refresh)
        self.canary = Canary(app, settlement, first_walk=self.backfill.first_walk, every_s=policy.canary_every_s)
        self._stages = (self.confirm, self.refresh, self.backfill, self.reconcile, self.canary)
        self._leader_gauges = LeaderGauges(app, self.backfill.first_walk)
        self._failure = StageFailure(f"identity {app.name}")
        self._credentials = StageFailure(f"credentials {app.name}")
        self.giving_way = GivingWay(app, holder=holder)
        self._watch = Watch(app, self._look, took_s=self._took_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Compete for the lead, and read the service while this process has it; until `stop`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.leader.run(stop, self._lead))
            group.create_task(self.giving_way.ask_again(stop))

    async def note_lost_log(self, at: datetime) -> None:
        """A topic was made anew, noticed then: what lay there unread is gone, as in a retention gap. Where this process
        leads, state is reconciled, unless it was since. Raises LedgerError, LeaseLost."""
        if not self.leader.leads:
            return
        async with self.app.database.transaction() as session:
            began = (await reconcile_state.load_state(session, self.app.name)).began
            if began is not None and began >= at:
                return
            await silence.note_gap(session, self.app.name, at=at, token=self.leader.token)
        self.reconcile.wake.set()

    # --- one-shot commands -------------------------------------------------------------------------------------

    async def backfill_once(
        self,
        options: BackfillOptions,
        on_progress: Callable[[Progress], None] | None = None,
        begins: Callable[[], Awaitable[None]] | None = None,
    ) -> BackfillReport:
        """`consumer backfill`: one walk; `begins` is awaited as soon as nothing keeps it from beginning. A walk that
        moves the bookmark, and a seed before the first walk, need the lead: raises AnotherLeads when another process
        has it (case B26). The others run beside it."""

        async def walk(*, leads: bool = True) -> BackfillReport:
            await self.identity.check(remember=leads and not options.dry_run, priority=Priority.BACKFILL)
            return await self.backfill.once(options, on_progress, begins)

        try:
            return await self.leader.once(walk)
        except AnotherLeads:
            sets_cut_over = options.seed and not options.dry_run and await self.backfill.first_walk.began() is None
            if options.follows_bookmark or sets_cut_over:
                raise
        return await walk(leads=False)

    async def reconcile_once(self, *, dry_run: bool = False, max_changes: int | None = None) -> DriftReport:
        """`consumer reconcile`: one walk, beside the leader's own if there is one."""
        once = partial(self.reconcile.once, dry_run=dry_run, max_changes=max_changes)
        with suppress(AnotherLeads):
            return await self.leader.once(once)
        return await once(leads=False)

    @property
    def failures(self) -> Mapping[str, str]:
        """Stage to the code of what holds it up now; empty while all is well. A stage that waits for its next try
        after credentials were refused is not held up any more once they are taken again."""
        over = frozenset[str]() if self.app.client.circuit.is_open else REFUSED
        return {name: one.code for name, one in self._all_failures() if one.code is not None and one.code not in over}

    def _took_s(self) -> Mapping[str, float]:
        """Stage to how long its first failing step had tried."""
        return {name: one.took_s for name, one in self._all_failures()}

    def _all_failures(self) -> Iterable[tuple[str, StageFailure]]:
        return zip(STAGES, (self._failure, self._credentials, *(one.failure for one in self._stages)), strict=True)

    def _look(self) -> Mapping[str, str]:
        """The troubles after a look at the secret file: it may break while nothing is asked (case S4)."""
        if problem := self.app.client.credentials.look():
            self._credentials.failed(SecretFileBroken(problem=problem))
        else:
            self._credentials.well()
        return self.failures

    async def _lead(self, stop: asyncio.Event) -> None:
        self.app.metrics.leader.labels(self.leader.role).set(1)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run(stop))
                group.create_task(self._give_way(stop))
                # What the last leader knew is shown before anything fails; then whose credentials these are (B32).
                if await self._through(self._leader_gauges.take_up, stop) and await self._through(
                    self.identity.check, stop
                ):
                    for stage in self._stages:
                        group.create_task(stage.run(stop))
        finally:
            self._leader_gauges.drop()
            self.app.metrics.leader.labels(self.leader.role).set(0)

    @property
    def has_given_way(self) -> bool:
        """Whether it gave the lead back, as its credentials are refused, and does not lead again."""
        return self.giving_way.has_given_way and not self.leader.leads

    async def _give_way(self, stop: asyncio.Event) -> None:
        if await self.giving_way.run(stop):
            self.leader.stand_aside()

    async def _through(self, step: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event) -> bool:
        """Try until it went through; False when told to stop before."""
        while not stop.is_set():
            try:
                await step()
            except ConsumerError as error:
                self._failure.failed(error)
                await rest(self.app.clock, self._failure.wait_s(), stop)
            else:
                self._failure.well()
                return True
        return False


class Sync:
    """The role `sync`: the reading of deliveries, which every process does, and the stages of each application.

    `applications` are all that are received for. One without an API (no API credentials) keeps nobody from the
    others: its deliveries are taken in and wait, and its lack of credentials is said and gauged.
    """

    def __init__(
        self,
        apis: Sequence[ApplicationApi],
        broker: Broker,
        database: Database,
        *,
        deliveries_topic: str,
        events_topic: str,
        group: str = GROUP,
        applications: Collection[str],
        clock: Clock,
        holder: str,
        metrics: Metrics | None = None,
        policy: SyncPolicy | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self.unread = tuple(sorted(set(applications) - {api.application for api in apis}))
        publisher, policy = EventPublisher(broker, events_topic), policy or SyncPolicy()
        sharing = Counter(api.address for api in apis)
        self.applications = {
            api.application: ApplicationSync(
                api,
                database,
                publisher,
                clock=clock,
                holder=holder,
                metrics=self.metrics,
                policy=policy.among(sharing[api.address]),
            )
            for api in apis
        }
        self.hint_consumer = HintConsumer(
            broker,
            database,
            topic=deliveries_topic,
            group=group,
            applications=applications,
            clock=clock,
            metrics=self.metrics,
            wakes={name: one.confirm.wake for name, one in self.applications.items()},
            max_bytes=policy.unproved_max_bytes,
        )

    @property
    def gave_way(self) -> list[str]:
        """The applications of which this process gave the lead back, and is refused."""
        return [name for name, one in sorted(self.applications.items()) if one.has_given_way]

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        for name in self.unread:
            LOG.warning("application_without_credentials", application=name, code="no_credentials")
        for name in (*self.applications, *self.unread):
            self.metrics.credentials_missing.labels(name).set(int(name in self.unread))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hint_consumer.run(stop))
            for one in self.applications.values():
                group.create_task(one.run(stop))
