"""`ctx.insert_new` and `ctx.locked`: their statements are built once, and mean what they meant when they were not."""

from __future__ import annotations

from typing import ClassVar

import pytest
from sqlalchemy import Table, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Field, SQLModel

from consumer.plugin.statements import inserting, locking


class StatementsTally(SQLModel, table=True):
    """A plugin's table."""

    __tablename__ = "statements_tally"
    __table__: ClassVar[Table]

    application: str = Field(primary_key=True)
    order_id: str = Field(primary_key=True)
    note: str | None = None


TALLY: Table = StatementsTally.__table__
DIALECTS = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_it_is_built_once(dialect: str) -> None:
    first, values = inserting(TALLY, dialect, {"application": "a", "order_id": "1"})
    second, _ = inserting(TALLY, dialect, {"application": "a", "order_id": "2", "note": "x"})
    assert first is second
    assert values == {"application": "a", "order_id": "1"}
    lock, key = locking(TALLY, {"application": "a", "order_id": "1"})
    assert lock is locking(TALLY, {"application": "b", "order_id": "2"})[0]
    assert key == {"application": "a", "order_id": "1"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_expression_is_part_of_the_statement(dialect: str) -> None:
    statement, values = inserting(TALLY, dialect, {"application": "a", "order_id": "1", "note": func.upper("x")})
    assert values == {}
    assert "upper(" in str(statement.compile(dialect=DIALECTS[dialect]()))  # type: ignore[attr-defined]  # a statement


def test_nothing_is_looked_for_as_nothing() -> None:
    statement, values = locking(TALLY, {"application": "a", "note": None})
    assert values == {}
    assert "note IS NULL" in str(statement)
