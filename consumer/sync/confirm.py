"""Confirm: hints become events by an authenticated read; what the service does not confirm ends in quarantine.

Only what the service returned is published, never what a delivery claimed (cases I15-I17, U3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from consumer.clock import Clock
from consumer.ledger import Database, events, quarantine
from consumer.ledger.tables import HintRow
from consumer.payments import ApiError, PaymentsError, Priority, ResourceNotFound
from consumer.sync.figures import Figures
from consumer.sync.outlet import Outlet
from consumer.sync.reader import Hold, Reader, held_up_s
from consumer.sync.rounds import Trouble, repeat
from consumer.sync.verdict import PATIENCE_S, Confirmed, Denied, Failed, Verdict, confirmed, next_look_s

LOG = structlog.get_logger()

FAILED_AGAIN_S = 30.0
IDLE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ConfirmPolicy:
    """`patience_s`: how long an event that the service denies is asked for again. `batch`: hints per round.
    `concurrency`: reads at once. `idle_s`: how often the ledger is looked at when nothing wakes the stage."""

    patience_s: float = PATIENCE_S
    batch: int = 200
    concurrency: int = 4
    idle_s: float = IDLE_S


class Confirm:
    """Works off the hints of one application. One process at a time does (see Leader)."""

    def __init__(
        self,
        reader: Reader,
        database: Database,
        outlet: Outlet,
        *,
        clock: Clock,
        figures: Figures | None = None,
        policy: ConfirmPolicy | None = None,
    ) -> None:
        self.application = reader.application
        self._reader = reader
        self._api = reader.client.with_priority(Priority.CONFIRM)
        self._database = database
        self._outlet = outlet
        self._clock = clock
        self.figures = figures or Figures()
        self._policy = policy or ConfirmPolicy()
        self._hold = Hold(clock)
        self.wake = asyncio.Event()
        self.trouble = Trouble(f"confirm {reader.application}")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await repeat(self._step, stop=stop, wake=self.wake, clock=self._clock, trouble=self.trouble)

    async def _step(self) -> float:
        if await self.once():
            return 0.0
        return self._policy.idle_s

    async def once(self) -> int:
        """One round over the due hints; returns how many were settled (confirmed, known already, quarantined).

        Raises LedgerError and BrokerError (nothing is lost: the hints stay), and the PaymentsError that holds all
        calls of the application up.
        """
        self._hold.check()
        due = await self._due()
        if not due:
            return 0
        known, unknown = await self._without_known(due)
        verdicts, held_up = await self._ask(unknown)
        settled = len(known) + await self._settle(verdicts)
        if held_up is not None and not settled:
            raise held_up
        return settled

    async def _due(self) -> Sequence[HintRow]:
        async with self._database.reading() as session:
            return await quarantine.due_hints(session, self.application, self._clock.now(), self._policy.batch)

    async def _without_known(self, due: Sequence[HintRow]) -> tuple[Sequence[HintRow], Sequence[HintRow]]:
        """Drop the hints whose event the ledger has, by webhook or backfill; it costs no read."""
        async with self._database.transaction() as session:
            there = await events.known(session, [(self.application, hint.event_id) for hint in due])
            await quarantine.drop_hints(session, sorted(there))
        known = [hint for hint in due if (self.application, hint.event_id) in there]
        self.figures.count("hints_known", self.application, len(known))
        return known, [hint for hint in due if (self.application, hint.event_id) not in there]

    async def _ask(self, hints: Sequence[HintRow]) -> tuple[list[tuple[HintRow, Verdict]], PaymentsError | None]:
        """Read every hint's event, a few at once; the first failure that concerns all calls ends the round."""
        verdicts: list[tuple[HintRow, Verdict]] = []
        held_up: list[PaymentsError] = []
        waiting = iter(hints)

        async def ask_next() -> None:
            for hint in waiting:
                if held_up:
                    return
                try:
                    verdicts.append((hint, await self._verdict(hint)))
                except PaymentsError as error:
                    self._hold.take(error)
                    held_up.append(error)

        await asyncio.gather(*(ask_next() for _ in range(min(self._policy.concurrency, len(hints)))))
        return verdicts, held_up[0] if held_up else None

    async def _verdict(self, hint: HintRow) -> Verdict:
        try:
            record = await self._api.events.retrieve(hint.event_id)
        except ResourceNotFound:
            return Denied()
        except ApiError as error:
            if held_up_s(error) is not None:
                raise
            # A refusal of this very id (4xx) is an answer; a failure (5xx, unreadable) is none.
            return Failed(error.code) if error.retryable else Denied()
        return confirmed(quarantine.hint_delivery(hint), record.raw_bytes, self._reader.locators)

    async def _settle(self, verdicts: Sequence[tuple[HintRow, Verdict]]) -> int:
        """Publish first, then forget: after a crash in between the event is published again, which changes nothing."""
        good = [(hint, verdict) for hint, verdict in verdicts if isinstance(verdict, Confirmed)]
        await self._outlet.publish([verdict.event for _, verdict in good])
        over = await self._store(verdicts, good)
        for hint, verdict in good:
            self._say_confirmed(hint, verdict)
        self.figures.count("hints_confirmed", self.application, len(good))
        self.figures.count("hints_not_confirmed", self.application, len(over))
        if over:
            LOG.warning(
                "deliveries were not confirmed: quarantined", application=self.application, deliveries=len(over)
            )
        return len(good) + len(over)

    async def _store(
        self, verdicts: Sequence[tuple[HintRow, Verdict]], good: Sequence[tuple[HintRow, Confirmed]]
    ) -> list[HintRow]:
        now = self._clock.now()
        over: list[HintRow] = []
        async with self._database.transaction() as session:
            gone = [(self.application, hint.event_id) for hint, _ in good]
            for hint, verdict in verdicts:
                key = (self.application, hint.event_id)
                match verdict:
                    case Denied(reason=reason):
                        wait_s = next_look_s(hint.attempts + 1, self._policy.patience_s)
                        if wait_s is None:
                            over.append(hint)
                            gone.append(key)
                            await quarantine.put(session, [(quarantine.hint_delivery(hint), reason)], now)
                        else:
                            at = now + timedelta(seconds=wait_s)
                            await quarantine.put_off_hints(session, [key], at, counted=True)
                    case Failed():
                        at = now + timedelta(seconds=FAILED_AGAIN_S)
                        await quarantine.put_off_hints(session, [key], at, counted=False)
            await quarantine.drop_hints(session, gone)
        return over

    def _say_confirmed(self, hint: HintRow, verdict: Confirmed) -> None:
        if verdict.differs:
            self.figures.count("body_mismatch", self.application)
            LOG.warning(
                "a delivery differs from the service's record, which wins",
                application=self.application,
                delivery_id=hint.delivery_id,
                event_id=hint.event_id,
                differs="+".join(verdict.differs),
            )
