"""Groups of the embedded log, by looking only, without opening it as one who writes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from consumer.broker.embedded.claims import lag
from consumer.broker.embedded.file import as_broker_error, identity_of
from consumer.broker.embedded.inspection import opened_to_look
from consumer.broker.embedded.schema import base_of, topic_layout
from consumer.broker.groups import GroupReport

MEMBER_GONE_S = 30.0


def inspect_groups(path: Path, groups: Mapping[str, str]) -> list[GroupReport]:
    """Group to topic; a topic that is not there is left out. Raises BrokerUnavailable, LogCorrupt,
    LogIncompatible."""
    if not path.exists() or path.stat().st_size == 0:
        return []
    try:
        with closing(opened_to_look(path)) as connection:
            found = [_group(connection, group, topic) for group, topic in groups.items()]
            return [one for one in found if one is not None]
    except sqlite3.Error as error:
        raise as_broker_error(error, path) from error


def _group(connection: sqlite3.Connection, group: str, topic: str) -> GroupReport | None:
    layout = topic_layout(connection, topic)
    if layout is None:
        return None
    (members,) = connection.execute(
        "SELECT count(*) FROM members WHERE group_name = ? AND abs(? - heartbeat_s) <= ?",
        (group, time.time(), MEMBER_GONE_S),
    ).fetchone()
    reached = lag(connection, group, layout.partition_ids)
    lags = [reached.get(number) or _unread(connection, number) for number in layout.partition_ids]
    ends = [
        connection.execute("SELECT next_offset FROM partitions WHERE id = ?", (number,)).fetchone()[0]
        for number in layout.partition_ids
    ]
    oldest = [at for _, at in lags if at is not None]
    (lost,) = connection.execute(
        "SELECT coalesce(sum(max(0, p.first_offset - c.next_offset)), 0) FROM claims c JOIN partitions p"
        " ON p.id = c.partition_id WHERE c.group_name = ? AND p.topic = ?",
        (group, topic),
    ).fetchone()
    return GroupReport(
        group=group,
        topic=topic,
        topic_id=identity_of(connection),
        members=members,
        records=sum(records for records, _ in lags),
        oldest_at=datetime.fromtimestamp(min(oldest) / 1000, UTC) if oldest else None,
        lost=lost,
        ends=tuple(ends),
    )


def _unread(connection: sqlite3.Connection, partition_id: int) -> tuple[int, int | None]:
    """How many records the partition holds, and when the oldest was published: the group has never been there."""
    first, end = connection.execute(
        "SELECT first_offset, next_offset FROM partitions WHERE id = ?", (partition_id,)
    ).fetchone()
    position = base_of(partition_id) + first
    oldest = connection.execute("SELECT published_ms FROM records WHERE position = ?", (position,)).fetchone()
    return end - first, oldest[0] if oldest else None
