"""which processes live, and what each last proved; what came to quarantine lately"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import UtcDateTime

revision = "ledger_0006"
down_revision = "ledger_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("process", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.Column("host", sa.String(length=100), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("stopped_at", UtcDateTime(), nullable=True),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("checks", sa.Text(), nullable=False),
        sa.Column("answered", sa.Integer(), nullable=False),
        sa.Column("refused", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("process", "role"),
    )
    op.create_index("ix_processes_seen_at", "processes", ["seen_at"])
    op.create_index("ix_quarantine_created_at", "quarantine", ["created_at"])


def downgrade() -> None:
    op.drop_index("ix_quarantine_created_at", table_name="quarantine")
    op.drop_index("ix_processes_seen_at", table_name="processes")
    op.drop_table("processes")
