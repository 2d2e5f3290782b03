"""Set back: what was put off by a clock that was ahead, and was set back, is due at once: it would wait for as long as
the clock was wrong, and nobody would know why. Who lived through it sees that the clock leapt; who begins looks for
what it left: all roles may have ended meanwhile."""

from __future__ import annotations

import structlog

from consumer.clock import SET_BACK, Clock, Leaps
from consumer.ledger import Database
from consumer.ledger.handling import handlers, outbox, runs
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.reading import hints, read_requests

LOOKS = 5
"""How often it is looked for such, a round of the housekeeping apart: an attempt stores its next time in a moment."""

_log = structlog.get_logger(__name__)


class ClockSetBack:
    """Looks at the first calls, and whenever the clock was set back since the last."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._leaps, self._looks = Leaps(clock), LOOKS

    async def heed(self) -> bool:
        """Make due what was put off too far; whether anything may be due now. Raises LedgerError: the next does it.

        The next calls do it again: an attempt that was under way may store the wrong time after the first had looked.
        """
        back = -self._leaps.since()
        if back > SET_BACK:
            self._looks = LOOKS
            _log.warning("clock_set_back", by_s=round(back.total_seconds()))
        if not self._looks:
            return False
        if found := await self._make_due():
            _log.warning("clock_was_ahead", made_due=found)
        self._looks -= 1
        return bool(found) or back > SET_BACK

    async def _make_due(self) -> int:
        now, found, is_more = self._clock.now(), 0, True
        async with self._database.transaction() as session:
            for part in (outbox, read_requests, hints, handlers):
                found += await part.after_set_back(session, now)
        while is_more:
            async with self._database.transaction() as session:
                count = await runs.after_set_back(session, now, CLAIM_LEASE_S)
            found, is_more = found + count, count == runs.SET_BACK_AT_ONCE
        return found
