"""by which body an event was confirmed, so that another one of its id is kept"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0018"
down_revision = "ledger_0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "settled_hints",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("application", "event_id"),
    )


def downgrade() -> None:
    op.drop_table("settled_hints")
