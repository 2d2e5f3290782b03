"""Columns: those that the tables of both plugins are made of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column
from sqlmodel import Field

from consumer.plugin import UtcDateTime, Words


def words(chars: int, *, key: bool = False) -> Any:
    """Text of at most so many characters; only a key must be there."""
    return Field(default=None, sa_column=Column(Words(chars), primary_key=key, nullable=not key))


def time(*, nullable: bool = True) -> Any:
    """A moment, in UTC."""
    return Field(default=None, sa_column=Column(UtcDateTime, nullable=nullable))
