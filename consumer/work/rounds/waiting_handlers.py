"""Waiting handlers: the ledger is told which handlers wait for what they depend on, and of which that is over."""

from __future__ import annotations

from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.work.dispatch.breakers import Breakers


class WaitingHandlers:
    """What this worker has told of its breakers."""

    def __init__(self, database: Database, breakers: Breakers) -> None:
        self._database = database
        self._breakers = breakers
        self._told: dict[str, bool] = {}

    async def tell(self, *, anew: bool) -> None:
        """Write down which handlers wait, when that has changed. `anew`: also what has not, as another worker may have
        taken it back. Raises LedgerError."""
        self._breakers.lapse()
        waiting = self._breakers.open()
        told = {name: breaker.is_alone for name, breaker in waiting.items()}
        if told == self._told and not (anew and told):
            return
        async with self._database.transaction() as session:
            for name, breaker in waiting.items():
                await handlers.set_waiting(session, name, since=breaker.open_since, reason=breaker.explanation)
            for name in self._told.keys() - waiting.keys():
                await handlers.set_waiting(session, name, since=None, reason=None)
        self._told = told
