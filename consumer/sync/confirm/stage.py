"""Confirm: hints become events by an authenticated read; what the service does not confirm ends in quarantine.

Few hints are read one by one, at once. Many are settled by walking the newest part of `/v1/events` (a hundred events
a read): what is listed is confirmed, what is neither listed nor in the ledger is denied. So forged ids cost a bounded
share of the budget however many there are, and never hold up real ones for longer than a walk.
Only what the service returned is published, never what a delivery claimed (cases I15-I17, U3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from consumer.clock import Clock
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.tables import HintRow
from consumer.payments import ApiError, PaymentsError, Priority, ResourceNotFound
from consumer.reason import Reason
from consumer.sync.api import ApplicationApi, Cooldown, held_up_s
from consumer.sync.backfill.report import Coverage
from consumer.sync.confirm.decision import (
    PATIENCE_S,
    Confirmed,
    Denied,
    Failed,
    Verdict,
    confirmed,
    other_body,
    say_differences,
)
from consumer.sync.confirm.denials import Denials
from consumer.sync.loop import StageFailure, run_repeatedly, together
from consumer.sync.metrics import StageMetrics
from consumer.sync.publisher import EventPublisher
from consumer.sync.quota import TokenBucket

LOG = structlog.get_logger()

CHUNK: Final = 500
WHOLE: Final = 100  # hints and events with their bodies in memory at once


@dataclass(frozen=True, kw_only=True)
class ConfirmPolicy:
    """`patience_s`: how long an event that the service denies is asked for again. `batch`: hints looked at per round.
    `concurrency`: single reads at once. `idle_s`: how often the ledger is looked at when nothing wakes the stage.
    `single_per_s`, `single_burst`: single reads on average and at once. `walk_every_s`: the least time between two
    walks when the last one confirmed next to nothing. `hidden_per_s`: single reads on average while a long walk has
    yet to come to the newest events."""

    patience_s: float = PATIENCE_S
    batch: int = 20_000
    concurrency: int = 4
    idle_s: float = 1.0
    single_per_s: float = 1.0
    single_burst: int = 20
    hidden_per_s: float = 2.0
    walk_every_s: float = 5.0


class Confirm:
    """Works off the hints of one application. One process at a time does (see Leader).

    `walk` walks the list of events up to now, settles the hints it meets and says how much it saw
    (`Backfill.catch_up`). Without it every hint is read singly. `published` are the ids published a short while ago,
    which the workers may not have recorded yet. `heard` is told when a webhook came that proved to be real, and which
    events were published for such.
    """

    def __init__(
        self,
        api: ApplicationApi,
        database: Database,
        publisher: EventPublisher,
        *,
        clock: Clock,
        metrics: StageMetrics | None = None,
        policy: ConfirmPolicy | None = None,
        walk: Callable[[], Awaitable[Coverage]] | None = None,
        published: Container[str] = (),
        heard: Callable[[datetime, Sequence[str]], None] | None = None,
    ) -> None:
        self.application = api.application
        self._api = api
        self._resources = api.client.with_priority(Priority.CONFIRM)
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self.metrics = metrics or StageMetrics()
        self._policy = policy or ConfirmPolicy()
        self._walk = walk
        self._published = published
        self._heard = heard
        self._cooldown = Cooldown(clock)
        self._singles = TokenBucket(clock, per_s=self._policy.single_per_s, burst=self._policy.single_burst)
        self._hidden = TokenBucket(clock, per_s=self._policy.hidden_per_s, burst=self._policy.single_burst)
        self._walk_at = clock.monotonic()
        self._denials = Denials(api.application, database, clock, self.metrics, self._policy.patience_s)
        self.wake = asyncio.Event()
        self.failure = StageFailure(f"confirm {api.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await run_repeatedly(self._step, stop=stop, wake=self.wake, clock=self._clock, failure=self.failure)

    async def _step(self) -> float:
        return 0.0 if await self.once() else self._policy.idle_s

    async def once(self) -> int:
        """One round over the due hints; returns how many were settled (confirmed, known already, quarantined).

        Raises LedgerError and BrokerError (nothing is lost: the hints stay), and the PaymentsError that holds all
        calls of the application up.
        """
        self._cooldown.check()
        async with self._database.reading() as session:
            due = dict(await hints.due_ids(session, self.application, self._clock.now(), self._policy.batch))
        self.metrics.gauge("hints_due", self.application, len(due))
        settled = await self._drop_known(due)
        if not due:
            return settled
        if self._walk is None or self._singles.covers(len(due)):
            return settled + await self._one_by_one(due)
        if self._clock.monotonic() < self._walk_at:
            return settled
        return settled + await self._by_walking(due, self._walk)

    async def _drop_known(self, due: dict[str, int]) -> int:
        """Forget the hints whose event the ledger has, by webhook or backfill; it costs no read. Shortens `due`.
        What they state is compared first: an id that is known may be forged as well as any other (case I16)."""
        known: list[str] = []
        for chunk in _chunks(list(due)):
            async with self._database.reading() as session:
                recorded = await events.known(session, [(self.application, event_id) for event_id in chunk])
                there = [one for one in chunk if (self.application, one) in recorded or one in self._published]
                heard_at = await hints.newest_at(session, self.application, there) if there else None
            if there:
                await self._compare([one for one in there if (self.application, one) in recorded])
                async with self._database.transaction() as session:
                    await hints.drop(session, [(self.application, event_id) for event_id in sorted(there)])
            if heard_at is not None and self._heard is not None:
                self._heard(heard_at, ())
            known += there
        for event_id in known:
            due.pop(event_id, None)
        self.metrics.count("hints_known", self.application, len(known))
        return len(known)

    async def _compare(self, recorded: Sequence[str]) -> None:
        """Say where the deliveries of recorded events state something else than the record does."""
        for some in _chunks(recorded, WHOLE):
            async with self._database.reading() as session:
                waiting = await hints.of_events(session, self.application, some)
                found = await events.load(session, [(self.application, event_id) for event_id in some])
            pairs = [(hint, found.get((self.application, hint.event_id))) for hint in waiting]
            await self._keep_others([(hint, event) for hint, event in pairs if event is not None])

    async def _keep_others(self, pairs: Sequence[tuple[HintRow, Event]]) -> None:
        """Deliveries that state something else than the service's record does are kept beside it (case I16)."""
        deliveries = [(hints.as_delivery(hint), event) for hint, event in pairs]
        others = [
            other_body(delivery)
            for delivery, event in deliveries
            if say_differences(delivery, event, self._api.locators, self.metrics)
        ]
        if others:
            self.metrics.count(f"quarantined_{Reason.OTHER_BODY}", self.application, len(others))
            async with self._database.transaction() as session:
                kept = [(other, Reason.OTHER_BODY) for other in others]
                await quarantine.put(session, kept, self._clock.now())

    # --- many --------------------------------------------------------------------------------------------------

    async def _by_walking(self, due: Mapping[str, int], walk: Callable[[], Awaitable[Coverage]]) -> int:
        """Walk, then deny what was due before the walk began and did not turn up in it. What no walk can see for now
        is read singly, as far as the share goes: those first that were never looked at."""
        try:
            coverage = await walk()
        except PaymentsError as error:
            self._walk_at = self._clock.monotonic() + self._policy.walk_every_s
            if self._cooldown.take(error):
                raise
            # The list itself is in trouble: single reads may still work, as far as the share goes.
            LOG.warning("hints cannot be settled by walking", application=self.application, code=error.code)
            some = list(due)[: self._singles.grant(len(due))]
            return await self._one_by_one({event_id: due[event_id] for event_id in some}, granted=True)
        left: dict[str, int] = {}
        for chunk in _chunks(list(due)):
            async with self._database.reading() as session:
                rows = await hints.ids_of(session, self.application, chunk)
            left |= {event_id: due[event_id] for event_id in rows}
        confirmed_now = len(due) - len(left)
        if coverage is Coverage.NOTHING:
            some = [one for one in due if one in left][: self._hidden.grant(len(left))]
            return confirmed_now + await self._one_by_one({one: left[one] for one in some}, granted=True)
        over = await self._deny(left) if coverage is Coverage.ALL else 0
        useful = confirmed_now >= self._policy.single_burst
        self._walk_at = self._clock.monotonic() + (0.0 if useful else self._policy.walk_every_s)
        return confirmed_now + over

    async def _deny(self, unlisted: Mapping[str, int]) -> int:
        """Count a denial; who would go to quarantine is read singly before, as far as the share goes: a list may be
        behind, and an event may be readable without being listed."""
        last = [event_id for event_id in unlisted if self._denials.is_last(unlisted[event_id])]
        asked = last[: self._singles.grant(len(last))]
        settled = await self._one_by_one({event_id: unlisted[event_id] for event_id in asked}, granted=True)
        rest = {event_id: attempts for event_id, attempts in unlisted.items() if event_id not in set(asked)}
        return settled + await self._denials.store(rest)

    # --- few ---------------------------------------------------------------------------------------------------

    async def _one_by_one(self, due: Mapping[str, int], *, granted: bool = False) -> int:
        if not granted and self._walk is not None:
            self._singles.grant(len(due))
        settled = 0
        for chunk in _chunks(list(due)):
            async with self._database.reading() as session:
                waiting = await hints.of_events(session, self.application, chunk)
            verdicts, held_up = await self._ask(waiting)
            settled += await self._settle(verdicts)
            if held_up is not None:
                if settled:
                    return settled
                raise held_up
        return settled

    async def _ask(self, asked: Sequence[HintRow]) -> tuple[list[tuple[HintRow, Verdict]], PaymentsError | None]:
        """Read every hint's event, a few at once; the first failure that concerns all calls ends the round."""
        verdicts: list[tuple[HintRow, Verdict]] = []
        held_up: list[PaymentsError] = []
        waiting = iter(asked)

        async def ask_next() -> None:
            for hint in waiting:
                if held_up:
                    return
                try:
                    verdicts.append((hint, await self._verdict(hint)))
                except PaymentsError as error:
                    self._cooldown.take(error)
                    held_up.append(error)

        await together(*(ask_next() for _ in range(min(self._policy.concurrency, len(asked)))))
        return verdicts, held_up[0] if held_up else None

    async def _verdict(self, hint: HintRow) -> Verdict:
        try:
            record = await self._resources.events.retrieve(hint.event_id)
        except ResourceNotFound:
            return Denied()
        except ApiError as error:
            if held_up_s(error) is not None:
                raise
            # A refusal of this very id (4xx) is an answer; a failure (5xx, unreadable) is none.
            return Failed(error.code) if error.retryable else Denied()
        return confirmed(hints.as_delivery(hint), record.raw_bytes, self._api.locators)

    async def _settle(self, verdicts: Sequence[tuple[HintRow, Verdict]]) -> int:
        """Publish first, then forget: after a crash in between the event is published again, which changes nothing."""
        good: list[HintRow] = []
        publish = []
        denied: dict[str, int] = {}
        reasons: dict[str, Reason] = {}
        failed: list[str] = []
        for hint, verdict in verdicts:
            match verdict:
                case Confirmed(event=event):
                    good.append(hint)
                    publish.append(event)
                case Denied(reason=reason):
                    denied[hint.event_id] = hint.attempts
                    reasons[hint.event_id] = reason
                case Failed():
                    failed.append(hint.event_id)
        for refused in await self._publisher.publish(publish):
            [hint] = [one for one in good if one.event_id == refused.id]
            good.remove(hint)
            denied[refused.id], reasons[refused.id] = hint.attempts, Reason.TOO_LARGE
        told = {event.id: event for event in publish}
        await self._keep_others([(hint, told[hint.event_id]) for hint in good])
        async with self._database.transaction() as session:
            await hints.drop(session, [(self.application, hint.event_id) for hint in good])
        if good and self._heard is not None:
            self._heard(
                max(hint.received_at for hint in good), [event.id for event in publish if event.id not in denied]
            )
        self.metrics.count("hints_confirmed", self.application, len(good))
        await self._denials.failed(failed)
        return len(good) + await self._denials.store(denied, reasons)


def _chunks(ids: Sequence[str], size: int = CHUNK) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
