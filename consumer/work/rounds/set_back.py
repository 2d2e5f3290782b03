"""Set back: what was put off by a clock that was ahead, and was set back, is due at once: it would wait for as long as
the clock was wrong, and nobody would know why."""

from __future__ import annotations

from datetime import timedelta

import structlog

from consumer.clock import Clock, Leaps
from consumer.ledger import Database
from consumer.ledger.handling import outbox, runs
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.reading import hints, read_requests

SET_BACK = timedelta(seconds=30)
"""A clock that was ahead by more, and is right again, has put off what was to be done soon."""
LOOKS = 5
"""How often it is looked for such, a round of the housekeeping apart: an attempt stores its next time in a moment."""

_log = structlog.get_logger(__name__)


class ClockSetBack:
    """Looks at each call whether the clock was set back since the last."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._leaps, self._set_back, self._looks = Leaps(clock), timedelta(0), 0

    async def heed(self) -> bool:
        """Make due what was put off too far; whether it was looked for. Raises LedgerError: then the next call does it.

        The next calls do it again: an attempt that was under way may store the wrong time after the first had looked.
        """
        back = -self._leaps.since()
        if back > SET_BACK:
            self._set_back, self._looks = max(self._set_back, back), LOOKS
            _log.warning("clock_set_back", by_s=round(back.total_seconds()))
        if not self._looks:
            return False
        await self._make_due()
        self._looks -= 1
        if not self._looks:
            self._set_back = timedelta(0)
        return True

    async def _make_due(self) -> None:
        now, is_more = self._clock.now(), True
        async with self._database.transaction() as session:
            await outbox.after_set_back(session, now, now + self._set_back + SET_BACK)
            await read_requests.after_set_back(session, now)
            await hints.after_set_back(session, now)
        while is_more:
            async with self._database.transaction() as session:
                is_more = await runs.after_set_back(session, now, CLAIM_LEASE_S)
