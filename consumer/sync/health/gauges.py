"""Gauges: the gauges of one application that only its leader knows. Taken up from the ledger with the lead, so that a
restart forgets no alarm, and dropped with it, so that none stays raised in a process that can no longer know."""

from __future__ import annotations

from typing import Final

from consumer.sync.application import Application
from consumer.sync.backfill import history
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.health.prometheus import GAUGES
from consumer.sync.health.stalled import STAGES
from consumer.sync.health.status import application_status
from consumer.sync.reconcile.state import load_state

TIMES: Final = ("last_walk_at", "last_reconcile_at", "events_history", "last_seen_event", "last_seen_order")
OF_THE_PROCESS: Final = ("credentials_missing", "unproved_hint_bytes", "unproved_quarantine_bytes")
"""What every process knows, leader or not."""
FLAGS: Final = GAUGES.keys() - {*TIMES, *OF_THE_PROCESS, *(f"held_up_{stage}" for stage in STAGES)}  # Watch has those


class LeaderGauges:
    """The alarms of one application (cases O1, O3, B13, B31)."""

    def __init__(self, app: Application, first_walk: FirstWalk) -> None:
        self._app = app
        self._first_walk = first_walk

    async def take_up(self) -> None:
        """Show what the ledger says. Raises LedgerError.

        Where no walk was ever completed, the first one is late from when it began, or from now on.
        """
        now = self._app.clock.now()
        async with self._app.database.reading() as session:
            found = await application_status(session, self._app.name, self._app.client.credentials.app_id, now)
            ended = (await load_state(session, self._app.name)).ended
            left_alone = await history.left_alone(session, self._app.name)
        walked_at = found.walked_at or await self._first_walk.began() or now
        self._gauge("last_walk_at", walked_at.timestamp())
        if ended is not None:
            self._gauge("last_reconcile_at", ended.timestamp())
        self._gauge("webhooks_silent", int(found.silent_since is not None))
        self._gauge("gap_open", int(found.gap_at is not None))
        self._gauge("missing_s", 0 if found.missing is None else (now - found.missing.since).total_seconds())
        self._gauge("reconcile_braked", int(found.reconcile_braked))
        self._gauge("circuit_open", int(self._app.client.circuit.is_open))
        self._gauge("events_history", left_alone)
        self._gauge("hints_waiting", found.hints)

    def drop(self) -> None:
        """Whoever leads now tells; here nothing is known any more."""
        for name in FLAGS:
            self._gauge(name, 0)
        for name in TIMES:
            self._app.metrics.forget(name, self._app.name)

    def _gauge(self, name: str, value: float) -> None:
        self._app.metrics.gauge(name, self._app.name, value)
