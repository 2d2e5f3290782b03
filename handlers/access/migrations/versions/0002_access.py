"""access: when it was said whose a subscription is, so that a later word corrects an earlier one"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "access_0002"
down_revision = "access_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("access_subscription") as table:
        table.add_column(sa.Column("attached_at", consumer.columns.UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("access_subscription") as table:
        table.drop_column("attached_at")
