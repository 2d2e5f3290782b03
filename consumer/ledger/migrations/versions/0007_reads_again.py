"""a read that was asked for while one was under way is due when it was asked for, not at once"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "ledger_0007"
down_revision = "ledger_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reads") as table:
        table.add_column(sa.Column("again_at", consumer.columns.UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("reads") as table:
        table.drop_column("again_at")
