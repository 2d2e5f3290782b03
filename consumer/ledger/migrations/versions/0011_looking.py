"""what an operator asks for is found by an index"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0011"
down_revision = "ledger_0010"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_events_order": ("events", ["order_id", "seq"], "order_id IS NOT NULL"),
    "ix_events_subscription": ("events", ["subscription_id", "seq"], "subscription_id IS NOT NULL"),
    "ix_outbox_key": ("outbox", ["application", "key"], "published_at IS NULL"),
    "ix_quarantine_event": ("quarantine", ["event_id"], "event_id IS NOT NULL"),
}


def upgrade() -> None:
    for name, (table, columns, where) in INDEXES.items():
        op.create_index(name, table, columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))


def downgrade() -> None:
    for name, (table, _, _) in INDEXES.items():
        op.drop_index(name, table_name=table)
