"""what a replay plan has left is found by an index of its own, which serves nothing else"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0016"
down_revision = "ledger_0015"
branch_labels = None
depends_on = None

PENDING = sa.text("status = 'pending'")


def upgrade() -> None:
    op.drop_index("ix_plan_items_status", table_name="plan_items")
    columns = ["plan", "turn", "seq"]
    op.create_index("ix_plan_items_pending", "plan_items", columns, postgresql_where=PENDING, sqlite_where=PENDING)


def downgrade() -> None:
    op.drop_index("ix_plan_items_pending", table_name="plan_items")
    op.create_index("ix_plan_items_status", "plan_items", ["plan", "status", "turn", "seq"])
