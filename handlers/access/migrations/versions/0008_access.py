"""access: subscriptions of nobody that no read has shown have an index"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "access_0008"
down_revision = "access_0007"
branch_labels = None
depends_on = None

NOBODYS = "customer IS NULL AND version = 0"


def upgrade() -> None:
    condition = sa.text(NOBODYS)
    op.create_index(
        "ix_access_subscription_nobodys",
        "access_subscription",
        ["application", "hinted_at"],
        postgresql_where=condition,
        sqlite_where=condition,
    )


def downgrade() -> None:
    op.drop_index("ix_access_subscription_nobodys", table_name="access_subscription")
