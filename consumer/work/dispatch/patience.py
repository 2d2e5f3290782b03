"""Patience: whether claims of others that look as if they had ended may be taken over now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from consumer.clock import Clock, Leaps
from consumer.ledger.leases import CLAIM_LEASE_S

PATIENT_S: Final = 6.0
"""Longer than a worker needs to renew its claims (RENEW_EVERY), or to store what came of them."""
LEAP: Final = timedelta(seconds=5)
"""A clock that is set ahead by more has claims of the living look as if they had ended."""
LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


class Patience:
    """Who could not ask for `patient_s` (the machine stood still, the ledger hung or was away) takes none from others
    for as long: they could not renew them either, nor store what came of them. Nor does one whose clock was set ahead:
    until the others' is, too, they renew theirs by the old time."""

    def __init__(self, clock: Clock, patient_s: float) -> None:
        self._clock = clock
        self._patient_s = patient_s
        self._leaps = Leaps(clock)
        self._asked_s, self._until_s = float("inf"), float("-inf")

    def over(self, now: datetime) -> datetime:
        """One asks now. Claims that ended before what is returned are over."""
        asked_s, self._asked_s = self._asked_s, self._clock.monotonic()
        waits_s = self._patient_s if self._asked_s - asked_s > self._patient_s else 0.0
        if self._leaps.since() > LEAP:
            waits_s = CLAIM_LEASE_S
        self._until_s = max(self._until_s, self._asked_s + waits_s)
        return now if self._asked_s >= self._until_s else LONG_AGO

    def failed(self) -> None:
        """The ledger did not answer: it is as if nobody had asked."""
        self._asked_s = float("-inf")
