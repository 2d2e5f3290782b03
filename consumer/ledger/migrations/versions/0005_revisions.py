"""which revisions were applied: a database may be ahead of the code that looks at it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "ledger_0005"
down_revision = "ledger_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "revisions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("applied_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("revisions")
