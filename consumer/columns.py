"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, LargeBinary, String, Table
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.types import TypeDecorator, TypeEngine

from consumer.document import storable

PACKED = b"\x00zlib\x00"
PACKED_FROM_BYTES = 512


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, in UTC on both sides; a naive one is refused (SQLite would keep it without its zone)."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """With a zone on PostgreSQL; SQLite has none."""
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """What is stored. Raises ValueError for a time without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """What was stored, aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(TypeDecorator[str]):
    """Text that somebody else wrote, of at most so many characters: any text can be stored, on either database alike.
    What is longer is cut, and what PostgreSQL or a driver refuses becomes U+FFFD (`document.storable`)."""

    impl = String
    cache_ok = True

    def __init__(self, chars: int) -> None:
        super().__init__(chars)
        self._chars = chars

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """What is stored, and what is looked for."""
        return None if value is None else storable(value, self._chars)


class PackedBytes(TypeDecorator[bytes]):
    """Bytes of a stranger's, packed where that makes them fewer. What was stored before is read as it is."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """What is stored."""
        if value is None or (len(value) <= PACKED_FROM_BYTES and not value.startswith(PACKED)):
            return value
        packed = PACKED + zlib.compress(value, 6)
        return packed if len(packed) < len(value) or value.startswith(PACKED) else value

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """What was given."""
        if value is None or not value.startswith(PACKED):
            return value
        return zlib.decompress(value[len(PACKED) :])


def serial() -> TypeEngine[int]:
    """A 64-bit number that counts up by itself as a primary key (SQLite counts only its INTEGER)."""
    return BigInteger().with_variant(Integer, "sqlite")


def insert_into(table: Table, dialect: str) -> PostgresInsert | SqliteInsert:
    """An INSERT that knows ON CONFLICT, in the dialect's own spelling (both spell it alike)."""
    return postgres_insert(table) if dialect == "postgresql" else sqlite_insert(table)
