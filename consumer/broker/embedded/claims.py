"""Groups of the embedded log: who reads which partition, and how far. Plain functions of a connection.

Every claim (group, partition) has an `owner`, who reads it now, and a `target`, who should. A change of membership
only moves targets; an owner that is not the target any more drains and lets go; only a free partition is taken. So a
partition never has two owners, in however many processes the members live, and a commit is fenced by ownership: a
member's id is new at every join, thus a member that was declared dead owns nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from consumer.broker.base import Partition
from consumer.broker.embedded.schema import base_of


@dataclass(frozen=True)
class GroupView:
    """What a member sees: whether it still belongs, what it must let go, and whether there is something to take."""

    known: bool
    leaving: frozenset[int]
    free: bool


@dataclass(frozen=True)
class Taken:
    """A partition that became the member's, and where its group stands in it."""

    partition_id: int
    partition: Partition
    next_offset: int


def balance(claims: Mapping[Partition, str | None], members: Mapping[str, Collection[str]]) -> dict[Partition, str]:
    """Who should read what. Pure: partitions stay where they are unless a member has two more than another.

    `claims` holds the present target of every partition, `members` the topics each member reads.
    """
    readers = {topic: sorted(m for m in members if topic in members[m]) for topic in {p.topic for p in claims}}
    load = dict.fromkeys(members, 0)
    wanted: dict[Partition, str] = {}
    for partition in sorted(claims):
        holder = claims[partition]
        if holder is not None and holder in readers[partition.topic]:
            wanted[partition] = holder
            load[holder] += 1
    for partition in sorted(claims):
        candidates = readers[partition.topic]
        if partition not in wanted and candidates:
            chosen = min(candidates, key=lambda member: (load[member], member))
            wanted[partition] = chosen
            load[chosen] += 1
    moved = True
    while moved:  # each move lowers the sum of squares of the loads, so this ends
        moved = False
        for partition, holder in wanted.items():
            lightest = min(readers[partition.topic], key=lambda member: (load[member], member))
            if load[holder] - load[lightest] >= 2:
                wanted[partition] = lightest
                load[holder] -= 1
                load[lightest] += 1
                moved = True
    return wanted


def join(
    connection: sqlite3.Connection, group: str, member: str, topics: Sequence[str], now_s: float, session_s: float
) -> None:
    """Become a member. A group that is new here starts at the oldest record of every partition."""
    connection.execute(
        "INSERT INTO groups (name, generation, seen_s) VALUES (?, 0, ?)"
        " ON CONFLICT (name) DO UPDATE SET seen_s = excluded.seen_s",
        (group, now_s),
    )
    connection.execute(
        "INSERT INTO members (id, group_name, topics, heartbeat_s) VALUES (?, ?, ?, ?)",
        (member, group, json.dumps(list(topics)), now_s),
    )
    for topic in topics:
        connection.execute(
            "INSERT INTO claims (group_name, partition_id, next_offset)"
            " SELECT ?, id, first_offset FROM partitions WHERE topic = ? ON CONFLICT DO NOTHING",
            (group, topic),
        )
    _evict(connection, group, now_s, session_s)
    _retarget(connection, group)


def beat(connection: sqlite3.Connection, group: str, member: str, now_s: float, session_s: float) -> bool:
    """Say that the member lives, and declare dead whoever did not for `session_s`. False: it was declared dead."""
    known = connection.execute("UPDATE members SET heartbeat_s = ? WHERE id = ?", (now_s, member)).rowcount > 0
    connection.execute("UPDATE groups SET seen_s = ? WHERE name = ?", (now_s, group))
    if _evict(connection, group, now_s, session_s):
        _retarget(connection, group)
    return known


def view(connection: sqlite3.Connection, group: str, member: str, reading: Collection[int]) -> GroupView:
    """What changed for this member, which reads these partitions."""
    known = connection.execute("SELECT 1 FROM members WHERE id = ?", (member,)).fetchone() is not None
    rows = connection.execute(
        "SELECT partition_id, owner, target FROM claims WHERE group_name = ? AND (owner = ? OR target = ?)",
        (group, member, member),
    ).fetchall()
    return GroupView(
        known=known,
        leaving=frozenset(number for number, owner, target in rows if owner == member and target != member),
        free=any(
            target == member and owner in (None, member) and number not in reading for number, owner, target in rows
        ),
    )


def generation(connection: sqlite3.Connection, group: str) -> int:
    """A number that grows with every change of members, targets or owners."""
    found = connection.execute("SELECT generation FROM groups WHERE name = ?", (group,)).fetchone()
    return found[0] if found else -1


def take(connection: sqlite3.Connection, group: str, member: str) -> list[Taken]:
    """Own the free partitions that were meant for this member. Those that are its own already are told, too: it may not
    have heard the end of the step that took them."""
    rows = connection.execute(
        "SELECT c.partition_id, p.topic, p.number, c.next_offset FROM claims c JOIN partitions p"
        " ON p.id = c.partition_id WHERE c.group_name = ? AND c.target = ? AND (c.owner IS NULL OR c.owner = c.target)",
        (group, member),
    ).fetchall()
    connection.execute(
        "UPDATE claims SET owner = target WHERE group_name = ? AND target = ? AND owner IS NULL", (group, member)
    )
    return [Taken(number, Partition(topic, part), offset) for number, topic, part, offset in rows]


def release(connection: sqlite3.Connection, group: str, member: str, partition_ids: Collection[int]) -> None:
    """Let partitions go, so that their target can take them."""
    connection.executemany(
        "UPDATE claims SET owner = NULL WHERE group_name = ? AND partition_id = ? AND owner = ?",
        [(group, number, member) for number in partition_ids],
    )
    _bump(connection, group)


def leave(connection: sqlite3.Connection, group: str, member: str) -> None:
    """Stop being a member; what it read goes to the others."""
    _drop(connection, group, [member])
    _retarget(connection, group)


def commit(
    connection: sqlite3.Connection, group: str, member: str, offsets: Mapping[int, int], now_s: float
) -> frozenset[int]:
    """Store the next offset per partition id this member owns; returns which were its own.

    An offset never goes back and never past the end of the log.
    """
    stored = frozenset(
        partition_id
        for partition_id, offset in offsets.items()
        if connection.execute(
            "UPDATE claims SET next_offset = max(next_offset,"
            " min(?, (SELECT next_offset FROM partitions WHERE id = partition_id)))"
            " WHERE group_name = ? AND partition_id = ? AND owner = ?",
            (offset, group, partition_id, member),
        ).rowcount
    )
    if stored:
        connection.execute("UPDATE groups SET seen_s = ? WHERE name = ?", (now_s, group))
    return stored


def stands(connection: sqlite3.Connection, group: str, partition_ids: Collection[int]) -> dict[int, int]:
    """Where the group stands, per partition id: as stored, also where what it would read next is deleted by now."""
    found: dict[int, int] = {}
    for number in partition_ids:
        row = connection.execute(
            "SELECT next_offset FROM claims WHERE group_name = ? AND partition_id = ?", (group, number)
        ).fetchone()
        if row is not None:
            found[number] = row[0]
    return found


def rewind(connection: sqlite3.Connection, group: str, member: str, offsets: Mapping[int, int]) -> frozenset[int]:
    """Set the group back where it stands behind these offsets, per partition id this member owns; returns where."""
    return frozenset(
        partition_id
        for partition_id, offset in offsets.items()
        if connection.execute(
            "UPDATE claims SET next_offset = ?"
            " WHERE group_name = ? AND partition_id = ? AND owner = ? AND next_offset > ?",
            (offset, group, partition_id, member, offset),
        ).rowcount
    )


def lag(
    connection: sqlite3.Connection, group: str, partition_ids: Collection[int]
) -> dict[int, tuple[int, int | None]]:
    """Per partition id: how many records the group has not committed, and when the oldest was published (ms)."""
    found: dict[int, tuple[int, int | None]] = {}
    for number in partition_ids:
        row = connection.execute(
            "SELECT max(c.next_offset, p.first_offset), p.next_offset FROM claims c JOIN partitions p"
            " ON p.id = c.partition_id WHERE c.group_name = ? AND c.partition_id = ?",
            (group, number),
        ).fetchone()
        if row is None:
            continue
        start, end = row
        oldest = connection.execute(
            "SELECT published_ms FROM records WHERE position = ?", (base_of(number) + start,)
        ).fetchone()
        found[number] = (max(0, end - start), oldest[0] if oldest else None)
    return found


def _evict(connection: sqlite3.Connection, group: str, now_s: float, session_s: float) -> bool:
    """Drop members not heard of for `session_s`; a heartbeat from the future is no sign of life either."""
    dead = connection.execute(
        "SELECT id FROM members WHERE group_name = ? AND abs(? - heartbeat_s) > ?", (group, now_s, session_s)
    ).fetchall()
    _drop(connection, group, [member for (member,) in dead])
    return bool(dead)


def _drop(connection: sqlite3.Connection, group: str, members: Sequence[str]) -> None:
    pairs = [(group, member) for member in members]
    connection.executemany("DELETE FROM members WHERE group_name = ? AND id = ?", pairs)
    connection.executemany("UPDATE claims SET owner = NULL WHERE group_name = ? AND owner = ?", pairs)


def _retarget(connection: sqlite3.Connection, group: str) -> None:
    members = {
        member: json.loads(topics)
        for member, topics in connection.execute("SELECT id, topics FROM members WHERE group_name = ?", (group,))
    }
    rows = connection.execute(
        "SELECT c.partition_id, p.topic, p.number, c.target FROM claims c JOIN partitions p ON p.id = c.partition_id"
        " WHERE c.group_name = ?",
        (group,),
    ).fetchall()
    wanted = balance({Partition(topic, number): target for _, topic, number, target in rows}, members)
    connection.executemany(
        "UPDATE claims SET target = ? WHERE group_name = ? AND partition_id = ?",
        [(wanted.get(Partition(topic, number)), group, partition_id) for partition_id, topic, number, _ in rows],
    )
    _bump(connection, group)


def _bump(connection: sqlite3.Connection, group: str) -> None:
    connection.execute("UPDATE groups SET generation = generation + 1 WHERE name = ?", (group,))
