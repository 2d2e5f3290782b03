"""access: which read was answered with 'no such subscription', and what an event lets the next read show"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "access_0003"
down_revision = "access_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("access_subscription") as table:
        table.add_column(sa.Column("unreadable_version", sa.BigInteger(), nullable=True))
        table.add_column(sa.Column("awaits", sa.String(length=20), nullable=True))
        table.add_column(sa.Column("awaits_at", consumer.columns.UtcDateTime(), nullable=True))
        table.add_column(sa.Column("awaits_since", consumer.columns.UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("access_subscription") as table:
        table.drop_column("awaits_since")
        table.drop_column("awaits_at")
        table.drop_column("awaits")
        table.drop_column("unreadable_version")
