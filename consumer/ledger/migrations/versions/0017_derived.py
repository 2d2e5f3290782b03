"""what was derived under a replay plan is found by its place, so that what has arrived is not looked at again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0017"
down_revision = "ledger_0016"
branch_labels = None
depends_on = None

PLANNED = sa.text("plan IS NOT NULL")


def upgrade() -> None:
    op.drop_index("ix_outbox_plan", "outbox")
    op.create_index("ix_outbox_plan", "outbox", ["plan", "seq"], postgresql_where=PLANNED, sqlite_where=PLANNED)


def downgrade() -> None:
    op.drop_index("ix_outbox_plan", "outbox")
    op.create_index("ix_outbox_plan", "outbox", ["plan"], postgresql_where=PLANNED, sqlite_where=PLANNED)
