"""Inspection: how topics of the embedded log stand, by looking only: no file is made, no record written."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from consumer.broker.base import TopicConfig, TopicReport
from consumer.broker.embedded.file import APPLICATION_ID, as_broker_error
from consumer.broker.embedded.schema import base_of, topic_layout
from consumer.errors import BrokerError

REMEDY = "consumer serve | work | sync (the first one to start makes it)"


def inspect(path: Path, topics: Sequence[TopicConfig]) -> list[TopicReport]:
    """How each topic stands. Raises BrokerUnavailable, LogCorrupt, LogIncompatible."""
    if not path.exists() or path.stat().st_size == 0:
        return [TopicReport(name=topic.name, partitions=None, remedies=(REMEDY,)) for topic in topics]
    try:
        with closing(opened_to_look(path)) as connection:
            return [_report(connection, topic) for topic in topics]
    except sqlite3.Error as error:
        raise as_broker_error(error, path) from error


def opened_to_look(path: Path) -> sqlite3.Connection:
    """A connection that can only read. Raises sqlite3.Error, BrokerError for somebody else's file."""
    # A log in use has its write-ahead file beside it; without one, `immutable` leaves even SQLite's own files unmade.
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=5)
    try:
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        if owner != APPLICATION_ID:
            raise BrokerError("the file is not a log of ours", path=str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _report(connection: sqlite3.Connection, topic: TopicConfig) -> TopicReport:
    layout = topic_layout(connection, topic.name)
    if layout is None:
        return TopicReport(name=topic.name, partitions=None, remedies=(REMEDY,))
    times = []
    for partition_id in layout.partition_ids:
        newest = connection.execute(
            "SELECT published_ms FROM records WHERE position >= ? AND position < ? ORDER BY position DESC LIMIT 1",
            (base_of(partition_id), base_of(partition_id + 1)),
        ).fetchone()
        times += [newest[0]] if newest else []
    found = len(layout.partition_ids)
    odd: tuple[str, ...] = ()
    if topic.partitions and found != topic.partitions:
        odd = (f"{found} partitions, {topic.partitions} configured; a topic of the embedded log keeps its number",)
    return TopicReport(
        name=topic.name,
        partitions=found,
        odd=odd,
        newest_at=datetime.fromtimestamp(max(times) / 1000, UTC) if times else None,
    )
