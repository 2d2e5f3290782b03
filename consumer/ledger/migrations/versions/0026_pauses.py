"""a handler can be paused for one application alone; a worker from before does not look here"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "ledger_0026"
down_revision = "ledger_0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "handler_pauses",
        sa.Column("handler", sa.String(length=200), nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("paused_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("paused_by", sa.String(length=60), nullable=False),
        sa.Column("paused_reason", sa.String(length=500), nullable=False),
        sa.PrimaryKeyConstraint("handler", "application"),
    )


def downgrade() -> None:
    op.drop_table("handler_pauses")
