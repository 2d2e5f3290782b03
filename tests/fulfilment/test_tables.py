"""The tables of the built-in plugins: what the models say is what the migrations make, and rows fit the rules."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Table
from sqlmodel import SQLModel

from consumer.ledger import Database
from handlers.access import tables as access
from handlers.access.subscription import Subscription
from handlers.fulfilment import tables as fulfilment
from handlers.fulfilment.order import Order

OURS = [table for module in (fulfilment, access) for table in vars(module).values() if isinstance(table, Table)]


async def test_models_and_migrations_agree(database: Database) -> None:
    names = {table.name for table in OURS}

    def differences(connection: Connection) -> Any:
        def ours(_: Any, name: str | None, type_: str, *__: Any) -> bool:
            return type_ != "table" or name in names

        context = MigrationContext.configure(connection, opts={"include_object": ours, "compare_type": True})
        return compare_metadata(context, SQLModel.metadata)

    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


@pytest.mark.parametrize("table", OURS, ids=lambda table: str(table.name))
def test_the_application_is_in_every_key(table: Table) -> None:
    # case: G8
    assert next(iter(table.primary_key.columns)).name == "application"


@pytest.mark.parametrize(
    ("value", "table", "key"),
    [(Order, fulfilment.ORDERS, {"application", "order_id"}),
     (Subscription, access.SUBSCRIPTIONS, {"application", "subscription_id"})],
)  # fmt: skip
def test_a_row_is_the_rules_value(value: type[Any], table: Table, key: set[str]) -> None:
    assert {*signature(value).parameters} | key == {column.name for column in table.columns}
