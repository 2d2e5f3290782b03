"""access: when the newest failure that was heard of began"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import UtcDateTime

revision = "access_0007"
down_revision = "access_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("access_subscription", sa.Column("past_due_heard_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("access_subscription") as batch_op:
        batch_op.drop_column("past_due_heard_at")
