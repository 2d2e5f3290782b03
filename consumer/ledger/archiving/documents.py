"""Documents: the ledger's rows as JSON, and back. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Boolean, Column, Integer, LargeBinary, Table

from consumer.columns import PackedBytes, UtcDateTime
from consumer.document import storable

NUMBER_MAX: Final = 2**53
TEXT_MAX: Final = 1_000_000


def document(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table as JSON has it: times in UTC, bytes as text where they are one. A column's name may be
    SQLAlchemy's own kind of text, which JSON's writer does not take."""
    return {str(column.name): _plain(row[column.name]) for column in table.columns}


def values(table: Table, found: Any) -> dict[str, Any]:
    """The row that a document says; what it leaves out is null. Raises ValueError, which says what is wrong without a
    value: what is taken here, either database takes."""
    if not isinstance(found, dict):
        raise ValueError(f"{table.name}: not an object")  # noqa: TRY004 - what is wrong is the text, not the call
    if unknown := found.keys() - {column.name for column in table.columns}:
        raise ValueError(f"{table.name}: {len(unknown)} field(s) that this version does not know")
    if lacking := [one.name for one in table.columns if not one.nullable and one.name not in found]:
        raise ValueError(f"{table.name}: without {', '.join(lacking)}")
    return {name: _value(table.columns[name], value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _value(column: Column[Any], value: Any) -> Any:
    if value is None:
        if not column.nullable:
            raise ValueError(f"{column.name}: null")
        return None
    try:
        return _of_type(column, value)
    except (TypeError, KeyError, binascii.Error, ValueError) as error:
        raise ValueError(f"{column.name}: not what it holds") from error


def _of_type(column: Column[Any], value: Any) -> Any:
    kind = column.type
    if isinstance(kind, UtcDateTime):
        at = datetime.fromisoformat(value)
        if at.tzinfo is None:
            raise ValueError("no zone")
        return at
    if isinstance(kind, LargeBinary | PackedBytes):
        return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)
    wanted = bool if isinstance(kind, Boolean) else int if isinstance(kind, Integer) else str
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise TypeError
    if isinstance(value, int) and abs(value) > NUMBER_MAX:
        raise ValueError("too large")
    if isinstance(value, str) and storable(value, getattr(kind, "length", None) or TEXT_MAX) != value:
        raise ValueError("too long, or not to be stored")
    return value
