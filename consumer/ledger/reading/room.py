"""Room: what a delivery that nobody has proved takes in the ledger. All bounds of hints and quarantine count so."""

from __future__ import annotations

from typing import Final

import orjson
from sqlalchemy import ColumnElement, Table, func

from consumer.columns import octets
from consumer.events import Delivery

ROW_BYTES: Final = 512
"""What a row takes beside its body and its headers: ids, times, and its places in indexes."""


def stored_headers(delivery: Delivery) -> str:
    """The HTTP headers as they are stored."""
    return orjson.dumps(dict(delivery.headers)).decode()


def size_of(delivery: Delivery) -> int:
    """How many bytes a delivery takes that is not stored yet, at most: its body may be packed."""
    return len(delivery.raw) + len(stored_headers(delivery).encode()) + ROW_BYTES


def stored_size(table: Table) -> ColumnElement[int]:
    """How many bytes a row of hints or of the quarantine takes."""
    return func.length(table.c.raw) + octets(table.c.headers) + ROW_BYTES
