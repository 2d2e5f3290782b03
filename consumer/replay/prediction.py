"""Prediction: what a plan would do, found out by doing it in transactions that are rolled back (case R2).

The transactional handlers themselves run, on the plan's events, in the order in which they would; what they emit for
the first time is handled in turn, at once what is due, and effect handlers are counted, not called. So there is no
second implementation of any rule that could say something else.

It goes in batches, so that live work waits for a moment only: each is a trial of its own. What belongs together (one
key, one order, one subscription, one customer) is never split, because there the second event finds what the first one
left. What only a handler's own tables connect is found in the same batch or not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from consumer.errors import LedgerUnavailable
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.engine.chunks import portions
from consumer.ledger.handling import events, handlers
from consumer.ledger.plans import trial
from consumer.ledger.plans.candidates import Pair
from consumer.ledger.reading import observations
from consumer.replay.effects import Effects
from consumer.replay.play import Disturbed, Handlers, Play, Staging, Try
from consumer.replay.turns import BATCH, Turned, is_test, together, without

PAUSE_S = 0.005
SMALL_BATCH = 25
WAITING_LOOKS_EVERY_S = 0.03
"""Who waits for SQLite's only writer looks again after so long at first, and never hears that it is free."""
TRIES = 5
LOAD_AT_ONCE = 300

Loaded = Mapping[tuple[str, str], Event]
Found = dict[tuple[str, str, str], Effects]


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Predicts on `database` with the deployment's `handlers`; `attempt` runs one."""

    database: Database
    handlers: Handlers
    attempt: Try

    async def predict(
        self, pairs: Sequence[Pair], *, plan: str, renews_keys: bool, now: datetime,
        progress: Callable[[int], None],
    ) -> list[tuple[Turned, Effects]]:  # fmt: skip
        """What becomes of each pair, by arrival, and its turn; none of a test event. `progress` hears how many are
        done. Raises LedgerError."""
        staging = Staging(
            handlers=self.handlers, attempt=self.attempt, plan=plan, now=now, isolated=False, renews_keys=renews_keys
        )  # fmt: skip
        loaded = await self._load(pairs)
        pairs = without(pairs, await self._tests(loaded))
        found: list[tuple[Turned, Effects]] = []
        gives_way = await self._gives_way(now)
        for batch in together(pairs, loaded, batch_size=SMALL_BATCH if gives_way else BATCH):
            began = time.monotonic()
            effects = await self._patiently(batch, loaded, staging)
            found += [(one, effects[one.pair.id]) for one in batch]
            progress(len(found))
            is_felt = gives_way and self._writes(batch)
            await asyncio.sleep(max(WAITING_LOOKS_EVERY_S, time.monotonic() - began) if is_felt else PAUSE_S)
        return sorted(found, key=lambda one: one[0].pair)

    async def _gives_way(self, now: datetime) -> bool:
        """Whether a trial that writes keeps live work from writing: on SQLite, while a worker lives. Then it has the
        database half of the time, a few items at once."""
        if self.database.dialect != "sqlite":
            return False
        async with self.database.reading() as session:
            return await handlers.any_living(session, now)

    async def _load(self, pairs: Sequence[Pair]) -> Loaded:
        wanted = sorted({(pair.application, pair.event_id) for pair in pairs})
        found: dict[tuple[str, str], Event] = {}
        async with self.database.reading() as session:
            for some in portions(wanted, LOAD_AT_ONCE):
                found |= await events.load(session, some)
        return found

    async def _tests(self, loaded: Loaded) -> Collection[tuple[str, str]]:
        """The test events among them: what says so of itself, unless the service has shown what it is about."""
        said = {name: event for name, event in loaded.items() if is_test(event)}
        if not said:
            return ()
        async with self.database.reading() as session:
            shown = await observations.which(session, {(event.application, event.key) for event in said.values()})
        return [name for name, event in said.items() if (event.application, event.key) not in shown]

    async def _patiently(self, batch: Sequence[Turned], loaded: Loaded, staging: Staging) -> Found:
        """Live work comes first: a trial that meets its locks gives way, and is made again."""
        for tries_left in reversed(range(TRIES)):
            try:
                return await self._try(batch, loaded, staging)
            except LedgerUnavailable:
                if not tries_left:
                    raise
                await asyncio.sleep(PAUSE_S * 10 * (TRIES - tries_left))
        raise AssertionError("a loop that returns or raises")

    async def _try(self, batch: Sequence[Turned], loaded: Loaded, staging: Staging) -> Found:
        """Together, or each for itself when one of them fails: some handlers catch the database's error, and the
        next one meets it."""
        writes = self._writes(batch)
        try:
            async with trial.trial(self.database, writes=writes) as session:
                return await Play(session, staging).all(batch, loaded)
        except (Disturbed, SQLAlchemyError):
            async with trial.trial(self.database, writes=writes) as session:
                return await Play(session, replace(staging, isolated=True)).all(batch, loaded)

    def _writes(self, batch: Sequence[Turned]) -> bool:
        found = (self.handlers.get(name) for name in {one.pair.handler for one in batch})
        return any(handler is not None and handler.transactional for handler in found)
