"""which reads fail again and again, so that somebody is told"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0022"
down_revision = "ledger_0021"
branch_labels = None
depends_on = None

UNREADABLE = sa.text("attempts >= 8 AND code <> 'unreadable'")


def upgrade() -> None:
    op.create_index(
        "ix_reads_unreadable", "reads", ["created_at"], postgresql_where=UNREADABLE, sqlite_where=UNREADABLE
    )


def downgrade() -> None:
    op.drop_index("ix_reads_unreadable", table_name="reads")
