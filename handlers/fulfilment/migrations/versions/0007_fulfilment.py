"""fulfilment: the checkout session that a payment was made in, where its record names no order"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import Words

revision = "fulfilment_0007"
down_revision = "fulfilment_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fulfilment_payment", sa.Column("session_id", Words(255), nullable=True))
    known = sa.text("session_id IS NOT NULL")
    op.create_index(
        "ix_fulfilment_payment_session",
        "fulfilment_payment",
        ["session_id", "application"],
        postgresql_where=known,
        sqlite_where=known,
    )


def downgrade() -> None:
    op.drop_index("ix_fulfilment_payment_session", table_name="fulfilment_payment")
    with op.batch_alter_table("fulfilment_payment") as table:
        table.drop_column("session_id")
