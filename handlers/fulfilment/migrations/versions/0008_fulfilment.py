"""fulfilment: what an order's payments came to, which counts where the order itself names no amount"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import Words

revision = "fulfilment_0008"
down_revision = "fulfilment_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fulfilment_order", sa.Column("paid_amount", Words(255), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("fulfilment_order") as table:
        table.drop_column("paid_amount")
