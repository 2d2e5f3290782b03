"""what a handler's author tells the operator of its failed runs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0024"
down_revision = "ledger_0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # It may be missing: the version before still registers handlers without it.
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("runbook", sa.String(length=200), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.drop_column("runbook")
