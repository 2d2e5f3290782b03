"""access: subscriptions that were heard of and never read have an index"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "access_0006"
down_revision = "access_0005"
branch_labels = None
depends_on = None

UNREAD = "status IS NULL"


def upgrade() -> None:
    condition = sa.text(UNREAD)
    op.create_index(
        "ix_access_subscription_unread",
        "access_subscription",
        ["hinted_at"],
        postgresql_where=condition,
        sqlite_where=condition,
    )


def downgrade() -> None:
    op.drop_index("ix_access_subscription_unread", table_name="access_subscription")
