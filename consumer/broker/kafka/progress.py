"""Progress: how far a member's group is, in memory, so that lag and its age need no extra reads. Marks: what tells the
record before a place from any other that may stand there."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from consumer.broker.base import Lag, Partition
from consumer.clock import Clock

MAX_MARKS = 1_000


@dataclass(slots=True)
class _Spot:
    """One partition: the group's offset if known, the next to hand out, and when some records were published."""

    committed: int | None = None
    next_offset: int | None = None
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    behind_since_ms: float | None = None


class Progress:
    """Offsets handed out and committed, per partition of one assignment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spots: dict[Partition, _Spot] = {}

    def forget(self) -> None:
        """The assignment is gone."""
        self._spots.clear()

    def known(self, partition: Partition) -> bool:
        """Whether it is known where the group stands."""
        spot = self._spots.get(partition)
        return spot is not None and spot.committed is not None

    def begin(self, partition: Partition, committed: int) -> None:
        """The group stands at `committed`, as the broker says."""
        spot = self._spots.setdefault(partition, _Spot())
        if spot.committed is None:
            spot.committed = committed

    def delivered(self, partition: Partition, first_offset: int, published_ms: int, next_offset: int) -> None:
        """Records from `first_offset` (published then) up to before `next_offset` were handed out."""
        spot = self._spots.setdefault(partition, _Spot())
        if spot.committed is None:
            spot.committed = first_offset
        spot.next_offset = next_offset
        if len(spot.marks) < MAX_MARKS:  # the oldest are the ones that tell the age
            spot.marks.append((first_offset, published_ms))

    def advances(self, partition: Partition, offset: int) -> bool:
        """Whether committing `offset` would move the group on. Not beyond what was handed out since it was set back:
        what was in hand then would move it past what is read again."""
        spot = self._spots.get(partition)
        if spot is None or spot.committed is None:
            return True
        return offset > spot.committed and (spot.next_offset is None or offset <= spot.next_offset)

    def rewound(self, partition: Partition, offset: int) -> None:
        """The group was set back to `offset`."""
        self._spots[partition] = _Spot(committed=offset, next_offset=offset)

    def committed(self, offsets: Mapping[Partition, int]) -> None:
        """These offsets are stored."""
        for partition, offset in offsets.items():
            spot = self._spots.setdefault(partition, _Spot())
            spot.committed = max(offset, spot.committed or 0)
            spot.behind_since_ms = None
            while len(spot.marks) > 1 and spot.marks[1][0] <= offset:
                spot.marks.popleft()
            if spot.next_offset is not None and offset >= spot.next_offset:
                spot.marks.clear()

    def lag(self, partition: Partition, end_offset: int, read_up_to: int | None = None) -> Lag:
        """Records between the group's offset and the end, and the age of the oldest of them in seconds. `read_up_to`:
        what lies before it and was not handed out is no record, but the mark of somebody's transaction."""
        spot = self._spots.setdefault(partition, _Spot())
        committed = spot.committed or 0
        is_read = read_up_to is not None and read_up_to >= end_offset and committed >= (spot.next_offset or 0)
        records = 0 if is_read else max(0, end_offset - committed)
        if not records:
            spot.behind_since_ms = None
            return Lag(0, None)
        now_ms = self._clock.now().timestamp() * 1000
        if spot.behind_since_ms is None:
            spot.behind_since_ms = now_ms
        oldest_ms = spot.marks[0][1] if spot.marks else spot.behind_since_ms
        return Lag(records, max(0.0, (now_ms - oldest_ms) / 1000))

    def unread(self, partition: Partition, lag: Lag) -> bool:
        """Whether records lie in the log that were never handed out."""
        spot = self._spots.get(partition)
        if spot is None or spot.committed is None or spot.next_offset is None:
            return lag.records > 0
        return spot.committed + lag.records > spot.next_offset


class Marks:
    """The marks of the records before the places where a member may commit, or reads on, in one assignment. The group
    keeps them beside its offsets: a log that has lost its end, and grown again past the place, holds another record
    there (case O7)."""

    def __init__(self) -> None:
        self._marks: dict[Partition, dict[int, str]] = {}

    def delivered(self, partition: Partition, message: Any) -> None:
        """This one was handed out, as aiokafka gives it: the last one of its partition."""
        known = self._marks.setdefault(partition, {})
        known[message.offset + 1] = mark_of(message)
        if len(known) > MAX_MARKS:
            del known[next(iter(known))]

    def at(self, partition: Partition, offset: int) -> str:
        """Of the record before this place; empty where it is not known."""
        return self._marks.get(partition, {}).get(offset, "")

    def last(self, partition: Partition) -> tuple[int, str] | None:
        """Where it reads on, and the mark of the record before; None before anything was handed out."""
        known = self._marks.get(partition)
        return next(reversed(known.items())) if known else None

    def committed(self, partition: Partition, offset: int) -> None:
        """The group is there: what lies before it is not asked for any more."""
        known = self._marks.get(partition, {})
        for place in [place for place in known if place < offset]:
            del known[place]

    def forget(self, partitions: Collection[Partition]) -> None:
        """They are read from elsewhere, or by another member."""
        for partition in partitions:
            self._marks.pop(partition, None)


def mark_of(message: Any) -> str:
    """What tells a record, as aiokafka gives it, from others. Pure."""
    digest = blake2b(digest_size=12)
    names = [part for name, value in message.headers for part in (name.encode(errors="replace"), value)]
    for part in (str(message.timestamp).encode(), message.key, message.value, *names):
        digest.update(b"%d:" % len(part or b"") + (part or b""))
    return digest.hexdigest()


def stored_at(timestamp_ms: int | None) -> datetime | None:
    """When a record was stored; None of one without a time, or with one that is none: a topic that keeps the times of
    publishers has what each of them takes for milliseconds."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
