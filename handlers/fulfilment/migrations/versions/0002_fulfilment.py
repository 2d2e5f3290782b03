"""fulfilment: which read of an order the service answered with 'no such order'"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "fulfilment_0002"
down_revision = "fulfilment_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("fulfilment_order") as table:
        table.add_column(sa.Column("unreadable_version", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("fulfilment_order") as table:
        table.drop_column("unreadable_version")
