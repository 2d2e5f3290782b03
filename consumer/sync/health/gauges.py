"""Gauges: the gauges of one application that only its leader knows. Taken up from the ledger with the lead, so that a
restart forgets no alarm, and dropped with it, so that none stays raised in a process that can no longer know."""

from __future__ import annotations

from typing import Final

from consumer.sync.application import Application
from consumer.sync.backfill import cutover
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.health.status import application_status
from consumer.sync.reconcile.state import load_state

FLAGS: Final[tuple[tuple[str, ...], ...]] = (
    ("webhooks_silent",),
    ("gap_open",),
    ("reconcile_braked",),
    ("reconcile_unplaced", "paid"),
    ("reconcile_unplaced", "other"),
    ("wrong_application",),
    ("circuit_open",),
    ("hints_waiting",),
    ("missing_here", "event"),
    ("missing_here", "order"),
    ("missing_here_seconds",),
)
"""A declared metric and its labels after the application's: 0 where nobody leads."""
TIMES: Final[tuple[tuple[str, ...], ...]] = (
    ("bookmark_seconds",),
    ("last_reconcile",),
    ("events_history",),
    ("last_seen", "event"),
    ("last_seen", "order"),
)
"""Those that are not shown there."""


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
            left_alone = await cutover.left_alone(session, self._app.name)
        self._app.walked(found.walked_at or await self._first_walk.began() or now)
        if ended is not None:
            self._set("last_reconcile", ended.timestamp())
        self._set("webhooks_silent", found.silent_since is not None)
        self._set("gap_open", found.gap_at is not None)
        missing_s = 0.0 if found.missing is None else found.missing.age_s
        self._set("missing_here_seconds", missing_s)
        self._set("reconcile_braked", found.reconcile_braked)
        self._set("circuit_open", self._app.client.circuit.is_open)
        self._set("events_history", left_alone)
        self._set("hints_waiting", found.hints)

    def drop(self) -> None:
        """Whoever leads now tells; here nothing is known any more."""
        for name, *labels in FLAGS:
            self._set(name, 0, *labels)
        for name, *labels in TIMES:
            getattr(self._app.metrics, name).remove(self._app.name, *labels)

    def _set(self, name: str, value: float, *labels: str) -> None:
        getattr(self._app.metrics, name).labels(self._app.name, *labels).set(value)
