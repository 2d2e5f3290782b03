"""fulfilment: an index begins with what is sought; open findings have one of their own, and what is of a customer"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "fulfilment_0004"
down_revision = "fulfilment_0003"
branch_labels = None
depends_on = None

OPEN = "closed_at IS NULL"
# What is sought leads, and the application follows: an index that begins with the application looks good for every row.
SOUGHT = {
    "ix_fulfilment_order_service": ("fulfilment_order", "service_order_id"),
    "ix_fulfilment_checkout_order": ("fulfilment_checkout", "order_id"),
    "ix_fulfilment_payment_order": ("fulfilment_payment", "order_id"),
    "ix_fulfilment_payment_service": ("fulfilment_payment", "service_order_id"),
}


def upgrade() -> None:
    op.create_index("ix_fulfilment_checkout_customer", "fulfilment_checkout", ["customer", "application"])
    known = sa.text("customer IS NOT NULL")
    op.create_index(
        "ix_fulfilment_order_customer",
        "fulfilment_order",
        ["customer", "application"],
        postgresql_where=known,
        sqlite_where=known,
    )
    for name, (table, column) in SOUGHT.items():
        _replace(name, table, [column, "application"])
    _replace("ix_fulfilment_finding_open", "fulfilment_finding", ["application", "kind", "subject"], OPEN)


def downgrade() -> None:
    op.drop_index("ix_fulfilment_order_customer", table_name="fulfilment_order")
    op.drop_index("ix_fulfilment_checkout_customer", table_name="fulfilment_checkout")
    for name, (table, column) in SOUGHT.items():
        _replace(name, table, ["application", column])
    _replace("ix_fulfilment_finding_open", "fulfilment_finding", ["application", "closed_at"])


def _replace(name: str, table: str, columns: list[str], where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.drop_index(name, table_name=table)
    op.create_index(name, table, columns, postgresql_where=condition, sqlite_where=condition)
