"""The tables of the embedded log and the SQL on records and topics. Plain functions of a connection.

A record's `position` is its partition's id times 2**40 plus its offset: one B-tree, no second index, and a
partition's records lie side by side in offset order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from consumer.broker.base import TopicConfig

OFFSET_BITS = 40
NOBODYS_POSITION = 0
"""The ids of partitions begin at 1, and so do their positions at 2**40."""
PAGE_BYTES = 4096
DEFAULT_PARTITIONS = 4
POLL_MAX_BYTES = 16 * 1024 * 1024
RETENTION_STEP_BYTES = 64 * 1024 * 1024

SCHEMA = (
    "CREATE TABLE topics (name TEXT PRIMARY KEY, retention_s REAL, max_record_bytes INTEGER NOT NULL)",
    """CREATE TABLE partitions (
        id INTEGER PRIMARY KEY,
        topic TEXT NOT NULL REFERENCES topics (name),
        number INTEGER NOT NULL,
        first_offset INTEGER NOT NULL DEFAULT 0,
        next_offset INTEGER NOT NULL DEFAULT 0,
        UNIQUE (topic, number))""",
    """CREATE TABLE records (
        position INTEGER PRIMARY KEY,
        published_ms INTEGER NOT NULL,
        key BLOB NOT NULL,
        headers BLOB,
        value BLOB NOT NULL)""",
    # seen_s: for versions of before 2026-11-30, which forget groups by it
    "CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, seen_s REAL NOT NULL)",
    """CREATE TABLE members (
        id TEXT PRIMARY KEY,
        group_name TEXT NOT NULL REFERENCES groups (name),
        topics TEXT NOT NULL,
        heartbeat_s REAL NOT NULL)""",
    "CREATE INDEX members_by_group ON members (group_name)",
    """CREATE TABLE claims (
        group_name TEXT NOT NULL REFERENCES groups (name),
        partition_id INTEGER NOT NULL REFERENCES partitions (id),
        next_offset INTEGER NOT NULL,
        owner TEXT,
        target TEXT,
        PRIMARY KEY (group_name, partition_id)) WITHOUT ROWID""",
)


class Appendable(Protocol):
    """What `append_rows` reads of a row."""

    @property
    def partition_id(self) -> int:
        """The partition's number in the file."""
        ...

    @property
    def key(self) -> bytes:
        """The record's key."""
        ...

    @property
    def value(self) -> bytes:
        """The record's value."""
        ...

    @property
    def headers(self) -> bytes | None:
        """The headers, packed; None when there are none."""
        ...

    @property
    def published_ms(self) -> int:
        """When it was published, in milliseconds since 1970."""
        ...


class StoredRecord(NamedTuple):
    """A row of `records` as `read_records` gives it back."""

    position: int
    published_ms: int
    key: bytes
    headers: bytes | None
    value: bytes


@dataclass(frozen=True)
class TopicLayout:
    """What a publisher or a member needs of a topic: the ids of its partitions in order, and its size limit."""

    partition_ids: tuple[int, ...]
    max_record_bytes: int


def base_of(partition_id: int) -> int:
    """The position of offset 0 in that partition."""
    return partition_id << OFFSET_BITS


def pack_headers(headers: Mapping[str, bytes]) -> bytes | None:
    """Headers as bytes; Latin-1 maps every byte to one character and back, so values stay exact."""
    if not headers:
        return None
    return orjson.dumps({name: value.decode("latin-1") for name, value in headers.items()})


def unpack_headers(packed: bytes | None) -> dict[str, bytes]:
    """The inverse of `pack_headers`."""
    if packed is None:
        return {}
    return {name: value.encode("latin-1") for name, value in orjson.loads(packed).items()}


def append_rows(connection: sqlite3.Connection, rows: Sequence[Appendable]) -> None:
    """Append in the given order; each partition's offsets go on without a gap."""
    if not rows:
        return
    ends: dict[int, int] = {}
    values = []
    for row in rows:
        offset = ends.get(row.partition_id)
        if offset is None:
            (offset,) = connection.execute(
                "SELECT next_offset FROM partitions WHERE id = ?", (row.partition_id,)
            ).fetchone()
        ends[row.partition_id] = offset + 1
        values.append((base_of(row.partition_id) + offset, row.published_ms, row.key, row.headers, row.value))
    connection.executemany(
        "INSERT INTO records (position, published_ms, key, headers, value) VALUES (?, ?, ?, ?, ?)", values
    )
    connection.executemany(
        "UPDATE partitions SET next_offset = ? WHERE id = ?", [(end, number) for number, end in ends.items()]
    )


def read_records(
    connection: sqlite3.Connection, cursors: Sequence[tuple[int, int]], max_records: int
) -> list[tuple[int, list[StoredRecord]]]:
    """Records from each (partition id, offset) on, in the given order of partitions, `max_records` and
    POLL_MAX_BYTES in all. At least one record is given when there is one, however large."""
    found: list[tuple[int, list[StoredRecord]]] = []
    left, left_bytes = max_records, POLL_MAX_BYTES
    for partition_id, offset in cursors:
        base = base_of(partition_id)
        rows: list[StoredRecord] = []
        for row in connection.execute(
            "SELECT position, published_ms, key, headers, value FROM records"
            " WHERE position >= ? AND position < ? ORDER BY position LIMIT ?",
            (base + offset, base_of(partition_id + 1), left),
        ):
            rows.append(StoredRecord._make(row))
            left_bytes -= len(row[4])
            if left_bytes <= 0:
                break
        if rows:
            found.append((partition_id, rows))
            left -= len(rows)
        if left <= 0 or left_bytes <= 0:
            break
    return found


def ensure_topics(connection: sqlite3.Connection, topics: Iterable[TopicConfig]) -> None:
    """Create what is missing; an existing topic takes the new limits and keeps its number of partitions, because
    another number would send a key to another partition and break its order."""
    for topic in topics:
        connection.execute(
            "INSERT INTO topics (name, retention_s, max_record_bytes) VALUES (?, ?, ?) ON CONFLICT (name)"
            " DO UPDATE SET retention_s = excluded.retention_s, max_record_bytes = excluded.max_record_bytes",
            (topic.name, topic.retention_s, topic.max_record_bytes),
        )
        (known,) = connection.execute("SELECT count(*) FROM partitions WHERE topic = ?", (topic.name,)).fetchone()
        if not known:
            connection.executemany(
                "INSERT INTO partitions (topic, number) VALUES (?, ?)",
                [(topic.name, number) for number in range(topic.partitions or DEFAULT_PARTITIONS)],
            )


def topic_layout(connection: sqlite3.Connection, name: str) -> TopicLayout | None:
    """The topic's layout, None when there is no such topic."""
    found = connection.execute("SELECT max_record_bytes FROM topics WHERE name = ?", (name,)).fetchone()
    if found is None:
        return None
    ids = connection.execute("SELECT id FROM partitions WHERE topic = ? ORDER BY number", (name,)).fetchall()
    return TopicLayout(tuple(number for (number,) in ids), found[0])


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection, of this or another process, has committed."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def touch(connection: sqlite3.Connection) -> None:
    """Write without changing anything, to learn whether the file takes writes."""
    connection.execute("UPDATE topics SET name = name")


def take_room(connection: sqlite3.Connection, size_bytes: int) -> None:
    """Write so many bytes, and a page more, to where no partition has its records."""
    connection.execute(
        "INSERT OR REPLACE INTO records (position, published_ms, key, value) VALUES (?, 0, x'', zeroblob(?))",
        (NOBODYS_POSITION, size_bytes + PAGE_BYTES),
    )


def give_room_back(connection: sqlite3.Connection) -> None:
    """Delete what `take_room` wrote."""
    connection.execute("DELETE FROM records WHERE position = ?", (NOBODYS_POSITION,))


def delete_old(connection: sqlite3.Connection, now_ms: int, max_records: int) -> int:
    """One bounded step of retention: delete records older than their topic keeps them and committed by every group;
    returns how many. No group is forgotten, however long nobody read as it: no clock tells one that was given up from
    one that is started again, and what it has not read was acknowledged."""
    deleted, left_bytes = 0, RETENTION_STEP_BYTES
    for partition_id, first_offset, next_offset, retention_s in connection.execute(
        "SELECT p.id, p.first_offset, p.next_offset, t.retention_s FROM partitions p JOIN topics t ON t.name = p.topic"
        " WHERE t.retention_s IS NOT NULL AND p.first_offset < p.next_offset"
    ).fetchall():
        (committed,) = connection.execute(
            "SELECT min(next_offset) FROM claims WHERE partition_id = ?", (partition_id,)
        ).fetchone()
        stop = next_offset if committed is None else min(committed, next_offset)
        base = base_of(partition_id)
        end = first_offset
        for position, published_ms, size in connection.execute(
            "SELECT position, published_ms, length(value) FROM records WHERE position >= ? AND position < ?"
            " ORDER BY position LIMIT ?",
            (base + first_offset, base + stop, max_records - deleted),
        ):
            if published_ms > now_ms - retention_s * 1000 or left_bytes <= 0:
                break
            left_bytes -= size
            end = position - base + 1
        if end > first_offset:
            connection.execute(
                "DELETE FROM records WHERE position >= ? AND position < ?", (base + first_offset, base + end)
            )
            connection.execute("UPDATE partitions SET first_offset = ? WHERE id = ?", (end, partition_id))
            deleted += end - first_offset
        if deleted >= max_records or left_bytes <= 0:
            break
    return deleted
