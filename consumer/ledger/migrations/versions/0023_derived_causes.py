"""what the handler of a derived event emitted, so that an order which was handed on can be followed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0023"
down_revision = "ledger_0022"
branch_labels = None
depends_on = None

DERIVED = sa.text("substr(cause, 1, 4) = 'drv_'")


def upgrade() -> None:
    op.create_index(
        "ix_outbox_derived", "outbox", ["cause", "application"], postgresql_where=DERIVED, sqlite_where=DERIVED
    )


def downgrade() -> None:
    op.drop_index("ix_outbox_derived", table_name="outbox")
