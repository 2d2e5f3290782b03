"""fulfilment: open findings have an index of their own, checkouts are found by customer"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "fulfilment_0004"
down_revision = "fulfilment_0003"
branch_labels = None
depends_on = None

OPEN = "closed_at IS NULL"


def upgrade() -> None:
    op.drop_index("ix_fulfilment_finding_open", table_name="fulfilment_finding")
    op.create_index(
        "ix_fulfilment_finding_open",
        "fulfilment_finding",
        ["application", "subject"],
        postgresql_where=sa.text(OPEN),
        sqlite_where=sa.text(OPEN),
    )
    op.create_index("ix_fulfilment_checkout_customer", "fulfilment_checkout", ["application", "customer"])


def downgrade() -> None:
    op.drop_index("ix_fulfilment_checkout_customer", table_name="fulfilment_checkout")
    op.drop_index("ix_fulfilment_finding_open", table_name="fulfilment_finding")
    op.create_index("ix_fulfilment_finding_open", "fulfilment_finding", ["application", "closed_at"])
