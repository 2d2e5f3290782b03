"""Position: how far the ledger has come in the log, as this worker knows it. Where it stands before that, it was
restored or failed over to an older copy, and what it lacks is read again (case O7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker.base import Partition, Record, Subscription, next_offsets
from consumer.clock import Clock
from consumer.ledger import Database, log_positions
from consumer.work.ingest.restored import note_restored

_log = structlog.get_logger(__name__)


class Position:
    """`must_compare`: ledger and group may differ, and are compared before anything more is taken."""

    def __init__(self, *, database: Database, topic: str, clock: Clock) -> None:
        self._database = database
        self._topic = topic
        self._clock = clock
        self._went_back: dict[Partition, int] = {}
        self._came_to: dict[Partition, int] = {}
        self._noted: Mapping[Partition, int] = {}
        self.must_compare = False

    def stored(self, records: Sequence[Record]) -> None:
        """The ledger has these."""
        self._came_to |= next_offsets(records)
        if self._went_back:
            self._went_back = _without(self._went_back, (one.partition for one in records))

    async def look(self, session: AsyncSession) -> None:
        """Whether the ledger stands where it stood: it may have failed over to an older copy, and in a quiet partition
        no batch would tell."""
        if await log_positions.behind(session, _places(self._came_to)):
            self.must_compare = True

    async def go_back(
        self, subscription: Subscription, stands: Mapping[Partition, int], behind: frozenset[Partition]
    ) -> frozenset[Partition]:
        """Where the ledger stands before its group, it was restored from a backup: what it lacks is read again (case
        O7). So it was where a batch begins behind it, though the group's offsets may not tell: commits may have failed.
        A partition it has never read is noted, so that this holds for it too."""
        async with self._database.transaction() as session:
            known = await log_positions.load(session, [self._topic])
            new = {one: offset for one, offset in stands.items() if (one.topic, one.number) not in known}
            await log_positions.keep(session, _places(new))
            offsets = {Partition(*place): offset for place, offset in known.items()}
            older = {one: at for one, at in offsets.items() if at < stands.get(one, at)}
            if older != self._noted:
                note_restored(session, self._topic, older, stands, self._clock.now())
        self._noted = older
        behind |= {one for one, at in self._came_to.items() if offsets.get(one, at) < at}
        again = frozenset(one for one in behind if self._went_back.get(one) != offsets.get(one))
        back = await subscription.rewind(offsets, anyway=again)
        self._came_to = {one: offsets.get(one, at) for one, at in stands.items()}
        self._went_back |= {one: offsets[one] for one in back}
        looked_for = frozenset(one for one in back & again if one in stands and offsets[one] >= stands[one])
        if restored := back - looked_for:
            _log.error("ledger_restored", topic=self._topic, partitions=sorted(one.number for one in restored))
        if looked_for:
            _log.warning("log_read_again", topic=self._topic, partitions=sorted(one.number for one in looked_for))
        return back

    def leaving(self, partitions: frozenset[Partition]) -> None:
        """They are about to be another member's: where it went back is its business."""
        self._went_back = _without(self._went_back, partitions)

    def left(self, partitions: frozenset[Partition]) -> None:
        """They are, and what was in hand of them is stored."""
        self._came_to = _without(self._came_to, partitions)


def _places(offsets: Mapping[Partition, int]) -> dict[log_positions.Place, int]:
    return {(one.topic, one.number): offset for one, offset in offsets.items()}


def _without(places: Mapping[Partition, int], partitions: Iterable[Partition]) -> dict[Partition, int]:
    gone = frozenset(partitions)
    return {one: offset for one, offset in places.items() if one not in gone}
