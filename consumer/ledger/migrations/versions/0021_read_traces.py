"""of which trace the event is that asked for a read, so that what was read is of the same"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0021"
down_revision = "ledger_0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reads") as table:
        table.add_column(sa.Column("traceparent", sa.String(length=60), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("reads") as table:
        table.drop_column("traceparent")
