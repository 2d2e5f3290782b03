"""fulfilment: the payment that an order was paid by, where its proof shows it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import Words

revision = "fulfilment_0006"
down_revision = "fulfilment_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fulfilment_order", sa.Column("payment_id", Words(255), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("fulfilment_order") as table:
        table.drop_column("payment_id")
