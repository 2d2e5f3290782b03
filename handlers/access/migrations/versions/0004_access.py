"""access: an index begins with what is sought; open findings have one of their own; SQLite can use those of flags"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "access_0004"
down_revision = "access_0003"
branch_labels = None
depends_on = None

OPEN = "closed_at IS NULL"
# What is sought leads, and the application follows: an index that begins with the application looks good for every row.
SOUGHT = {
    "ix_access_subscription_customer": ("access_subscription", "customer"),
    "ix_access_subscription_session": ("access_subscription", "session_id"),
    "ix_access_subscription_order": ("access_subscription", "order_id"),
    "ix_access_source_customer": ("access_source", "customer"),
    "ix_access_link_order": ("access_link", "order_id"),
}
FLAGS = {"braked": ["application", "customer"], "allowed": ["application"]}


def upgrade() -> None:
    _flags("{} = 1")
    for name, (table, column) in SOUGHT.items():
        _replace(name, table, [column, "application"])
    _replace("ix_access_finding_open", "access_finding", ["application", "kind", "subject"], OPEN)


def downgrade() -> None:
    _flags("{}")
    for name, (table, column) in SOUGHT.items():
        _replace(name, table, ["application", column])
    _replace("ix_access_finding_open", "access_finding", ["application", "closed_at"])


def _replace(name: str, table: str, columns: list[str], where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.drop_index(name, table_name=table)
    op.create_index(name, table, columns, postgresql_where=condition, sqlite_where=condition)


def _flags(condition: str) -> None:
    """SQLite takes a partial index only for the very words of its condition, and is asked for `braked = 1`."""
    if op.get_bind().dialect.name == "sqlite":
        for flag, columns in FLAGS.items():
            _replace(f"ix_access_entitlement_{flag}", "access_entitlement", columns, condition.format(flag))
