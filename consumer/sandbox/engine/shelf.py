"""Shelf: one kind of record, in order, with short histories (for lagging reads) and a list of changes (for storage)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from datetime import datetime
from typing import Generic, TypeVar

from consumer.sandbox.engine.records import Record
from consumer.sandbox.errors import SandboxFull

R = TypeVar("R", bound=Record)

HISTORY_VERSIONS = 8


class Shelf(Generic[R]):
    """Records by id, and per application in order of creation."""

    def __init__(self, kind: type[R], max_records: int) -> None:
        self.kind = kind
        self._max_records = max_records
        self._records: dict[str, R] = {}
        self._history: dict[str, list[tuple[datetime, R]]] = {}
        self._order: dict[str, list[int]] = {}
        self._by_seq: dict[int, str] = {}
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._records.values()))

    def __contains__(self, record_id: object) -> bool:
        return record_id in self._records

    def get(self, record_id: str) -> R | None:
        """The record as it is now."""
        return self._records.get(record_id)

    def put(self, record: R, at: datetime) -> R:
        """Add the record, or its new version, made at `at`. Raises SandboxFull at the cap."""
        if record.id not in self._records:
            if len(self._records) >= self._max_records:
                raise SandboxFull(f"more than {self._max_records} records of {self.kind.__name__}")
            insort(self._order.setdefault(record.app_id, []), record.seq)
            self._by_seq[record.seq] = record.id
        versions = self._history.setdefault(record.id, [])
        versions.append((at, record))
        del versions[:-HISTORY_VERSIONS]
        self._records[record.id] = record
        self._changed.add(record.id)
        return record

    def drop(self, record_id: str) -> None:
        """Forget a record for good."""
        record = self._records.pop(record_id, None)
        if record is None:
            return
        order = self._order[record.app_id]
        del order[bisect_left(order, record.seq)]
        del self._by_seq[record.seq]
        self._history.pop(record_id, None)
        self._changed.add(record_id)

    def as_of(self, record_id: str, at: datetime) -> R | None:
        """The version that stood at `at`; None when there was none yet."""
        found: R | None = None
        for made_at, version in self._history.get(record_id, ()):
            if made_at > at:
                break
            found = version
        return found

    def seqs(self, app_id: str) -> list[int]:
        """The sequence numbers of an application's records, ascending. Do not change it."""
        return self._order.get(app_id, [])

    def at_seq(self, seq: int) -> R:
        """The record with that sequence number."""
        return self._records[self._by_seq[seq]]

    def take_changes(self) -> list[tuple[str, R | None]]:
        """What changed since the last call: id and record, None for a dropped one."""
        changes = [(record_id, self._records.get(record_id)) for record_id in self._changed]
        self._changed.clear()
        return changes

    def put_back(self, record_ids: list[str]) -> None:
        """These changes could not be stored: the next `take_changes` gives them again."""
        self._changed.update(record_ids)
