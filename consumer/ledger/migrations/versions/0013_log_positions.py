"""how far the ledger has come in the log"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import serial

revision = "ledger_0013"
down_revision = "ledger_0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "log_positions",
        sa.Column("topic", sa.String(length=249), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("next_offset", serial(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition"),
    )


def downgrade() -> None:
    op.drop_table("log_positions")
