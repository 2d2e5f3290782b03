"""fulfilment: when a session's completion was heard of, which its order's read may lag behind"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import UtcDateTime

revision = "fulfilment_0003"
down_revision = "fulfilment_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("fulfilment_checkout") as table:
        table.add_column(sa.Column("completed_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("fulfilment_checkout") as table:
        table.drop_column("completed_at")
