"""Alembic's environment: runs on the connection that `consumer.ledger.engine.schema` hands over."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

from consumer.ledger.engine.revisions import remember

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=SQLModel.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transaction_per_migration=False,
    user_module_prefix="consumer.columns.",
    on_version_apply=remember,
)
with context.begin_transaction():
    context.run_migrations()
