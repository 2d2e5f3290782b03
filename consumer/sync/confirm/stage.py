"""Confirm: hints become events by an authenticated read; what the service does not confirm ends in quarantine.

Few hints are read one by one, at once. Many are settled by walking the newest part of `/v1/events` (a hundred events
a read): what is listed is confirmed, what is neither listed nor in the ledger is denied. So forged ids cost a bounded
share of the budget however many there are, and never hold up real ones for longer than a walk.
Only what the service returned is published, never what a delivery claimed (cases I15-I17, U3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from consumer.errors import again
from consumer.events import Event
from consumer.ledger.engine.chunks import portions
from consumer.ledger.handling import events
from consumer.ledger.reading import hints
from consumer.ledger.tables import HintRow
from consumer.payments import PaymentsError, Priority
from consumer.reason import Reason
from consumer.runtime.loop import WokenStage, together
from consumer.sync.answering import Answering
from consumer.sync.api import Cooldown, shown
from consumer.sync.application import Application
from consumer.sync.backfill.catch_up import CatchUp, Coverage
from consumer.sync.confirm.decision import Verdict, confirmed
from consumer.sync.confirm.denials import Denials
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.quota import TokenBucket
from consumer.sync.settlement import Settlement
from consumer.telemetry.logs import Condition

CHUNK: Final = 500
WHOLE: Final = 100  # hints and events with their bodies in memory at once


class Confirm(WokenStage):
    """Works off the hints of one application. One process at a time does (see Leader).

    `catch_up` walks the list of events up to now, settles the hints it meets and says how much it saw; without it every
    hint is read singly. `settlement` is where both settle them.
    """

    def __init__(
        self,
        app: Application,
        settlement: Settlement,
        *,
        policy: ConfirmPolicy | None = None,
        catch_up: CatchUp | None = None,
    ) -> None:
        super().__init__(f"confirm {app.name}", app.clock)
        self._app = app
        resources = app.client.with_priority(Priority.CONFIRM)
        self._events = resources.events
        self._settlement = settlement
        self._policy = policy or ConfirmPolicy()
        self._catch_up = catch_up
        self._cooldown = Cooldown(app.clock)
        self._answering = Answering(resources, self._cooldown, app.clock)
        self._singles = TokenBucket(app.clock, per_s=self._policy.single_per_s, burst=self._policy.single_burst)
        self._hidden = TokenBucket(app.clock, per_s=self._policy.hidden_per_s, burst=self._policy.single_burst)
        self._walk_at = app.clock.monotonic()
        self._denials = Denials(app, settlement, self._policy.patience_s)
        self._unwalked = Condition("hints_not_settled_by_walking", monotonic=app.clock.monotonic, application=app.name)

    async def _step(self) -> float:
        return 0.0 if await self.once() else self._policy.idle_s

    async def once(self) -> int:
        """One round over the due hints; returns how many were settled (confirmed, known already, quarantined).

        Raises LedgerError and BrokerError (nothing is lost: the hints stay), and the PaymentsError that holds all
        calls of the application up.
        """
        async with self._app.database.reading() as session:
            waiting = await hints.count(session, self._app.name)
            self._app.metrics.hints_waiting.labels(self._app.name).set(waiting)
            self._cooldown.check()
            if not waiting:
                return 0
            due = dict(await hints.due_ids(session, self._app.name, self._app.clock.now(), self._policy.batch))
        settled = await self._drop_known(due)
        if not due:
            return settled
        if self._catch_up is None or self._singles.covers(len(due)):
            self._singles.grant(len(due))
            return settled + await self._one_by_one(due)
        if self._app.clock.monotonic() < self._walk_at:
            return settled
        return settled + await self._by_walking(due, self._catch_up)

    async def _drop_known(self, due: dict[str, int]) -> int:
        """Settle the hints whose event the ledger has, by webhook or backfill; it costs no read. Shortens `due`.
        What they state is compared first: an id that is known may be forged as well as any other (case I16)."""
        async with self._app.database.reading() as session:
            recorded = {one for _, one in await events.known(session, [(self._app.name, one) for one in due])}
        there = [one for one in due if one in recorded or one in self._settlement.published]
        settled = 0
        for some in portions(there, WHOLE):
            settled += await self._settle_known(some)
        for event_id in there:
            del due[event_id]
        self._app.metrics.confirmed.labels(self._app.name, "known").inc(settled)
        return settled

    async def _settle_known(self, event_ids: Sequence[str]) -> int:
        """What was published a moment ago and is not recorded yet cannot be compared: another body than the one that
        was confirmed waits until it is."""
        async with self._app.database.reading() as session:
            waiting = await hints.of_events(session, self._app.name, event_ids)
            recorded = await events.load(session, [(self._app.name, event_id) for event_id in event_ids])
            deliveries = {hint.event_id: hints.as_delivery(hint) for hint in waiting}
            known = {event.id for event in recorded.values()}
            others = await hints.differing(session, [one for of, one in deliveries.items() if of not in known])
        keys = [(self._app.name, str(other.event_id)) for other in others]
        if keys:
            async with self._app.database.transaction() as session:
                await hints.put_off(session, keys, self._app.clock.now() + hints.AGAIN, counted=False)
        for _, event_id in keys:
            del deliveries[event_id]
        await self._settlement.settle(deliveries, list(recorded.values()), lacking=())
        return len(event_ids) - len(keys)

    # --- many --------------------------------------------------------------------------------------------------

    async def _by_walking(self, due: Mapping[str, int], catch_up: CatchUp) -> int:
        """Walk, then deny what was due before the walk began and did not turn up in it. What no walk can see for now
        is read singly, as far as the share goes: those first that were never looked at."""
        try:
            coverage = await catch_up.walk()
        except PaymentsError as error:
            self._walk_at = self._app.clock.monotonic() + self._policy.walk_every_s
            if self._cooldown.take(error):
                raise
            # The list itself is in trouble: single reads may still work, as far as the share goes.
            self._unwalked.lasts(error)
            return await self._one_by_one(_first(due, self._singles.grant(len(due))))
        self._unwalked.over()
        async with self._app.database.reading() as session:
            left = {one: due[one] for one in await hints.ids_of(session, self._app.name, list(due))}
        confirmed_now = len(due) - len(left)
        if coverage is Coverage.NOTHING:
            in_turn = {event_id: denials for event_id, denials in due.items() if event_id in left}
            return confirmed_now + await self._one_by_one(_first(in_turn, self._hidden.grant(len(left))))
        over = await self._deny(left) if coverage is Coverage.ALL else 0
        is_full = confirmed_now >= self._policy.walk_full
        self._walk_at = self._app.clock.monotonic() + (0.0 if is_full else self._policy.walk_every_s)
        return confirmed_now + over

    async def _deny(self, unlisted: Mapping[str, int]) -> int:
        """Count a denial; who would go to quarantine is read singly before, as far as the share goes: a list may be
        behind, and an event may be readable without being listed."""
        last = {event_id: denials for event_id, denials in unlisted.items() if self._denials.is_last(denials)}
        asked = _first(last, self._singles.grant(len(last)))
        settled = await self._one_by_one(asked)
        rest = {event_id: denials for event_id, denials in unlisted.items() if event_id not in asked}
        return settled + await self._denials.store(rest)

    # --- few ---------------------------------------------------------------------------------------------------

    async def _one_by_one(self, due: Mapping[str, int]) -> int:
        settled = 0
        for chunk in portions(list(due), CHUNK):
            async with self._app.database.reading() as session:
                waiting = await hints.of_events(session, self._app.name, chunk)
            settled += await self._settle(await self._ask(waiting))
            if self._cooldown.error is not None:
                if not settled:
                    raise again(self._cooldown.error)
                break
        return settled

    async def _ask(self, asked: Sequence[HintRow]) -> list[tuple[HintRow, Verdict]]:
        """Read every hint's event, a few at once; the first failure that concerns all calls ends the round. A failure
        (5xx, unreadable) that concerns this very id answers nothing."""
        verdicts: list[tuple[HintRow, Verdict]] = []
        waiting = iter(asked)

        async def ask_next() -> None:
            for hint in waiting:
                if self._cooldown.error is not None:
                    return
                try:
                    verdicts.append((hint, await self._verdict(hint)))
                except PaymentsError as error:
                    if not self._cooldown.take(error):
                        verdicts.append((hint, None))

        await together(*(ask_next() for _ in range(min(self._policy.concurrency, len(asked)))))
        return verdicts

    async def _verdict(self, hint: HintRow) -> Verdict:
        record = await shown(self._events.retrieve(hint.event_id))
        if record is None:
            return Reason.NOT_CONFIRMED if await self._answering.answers() else None
        return confirmed(hints.as_delivery(hint), record.raw_bytes, self._app.locators)

    async def _settle(self, verdicts: Sequence[tuple[HintRow, Verdict]]) -> int:
        """Settle what is confirmed; count a denial of what is denied, or is larger than the topic takes. What it does
        not take for now is looked at again."""
        rows = {hint.event_id: hint for hint, _ in verdicts}
        found = {hint.event_id: verdict for hint, verdict in verdicts if isinstance(verdict, Event)}
        denied = {hint.event_id: verdict for hint, verdict in verdicts if isinstance(verdict, Reason)}
        failed = [hint.event_id for hint, verdict in verdicts if verdict is None]
        confirmed_hints = {event_id: hints.as_delivery(rows[event_id]) for event_id in found}
        left = await self._settlement.settle(confirmed_hints, list(found.values()))
        denied |= {event.id: Reason.TOO_LARGE for event in left.too_large}
        failed += [event.id for event in left.for_now]
        good = len(found) - len(left.ids)
        self._app.metrics.confirmed.labels(self._app.name, "confirmed").inc(good)
        if failed:
            await self._denials.failed(failed)
        if denied:
            good += await self._denials.store({one: rows[one].attempts for one in denied}, denied)
        return good


def _first(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    return dict(islice(waiting.items(), most))
