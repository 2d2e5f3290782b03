"""template: the first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.plugin import UtcDateTime

revision = "template_0001"
down_revision = None
branch_labels = ("template",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "template_sale",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("order_id", sa.String(length=255), nullable=False),
        sa.Column("amount", sa.String(length=255), nullable=True),
        sa.Column("sold_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "order_id"),
    )


def downgrade() -> None:
    op.drop_table("template_sale")
