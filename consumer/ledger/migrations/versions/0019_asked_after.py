"""after which version of a read it was asked for: an older answer does not settle it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0019"
down_revision = "ledger_0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reads") as table:
        table.add_column(sa.Column("asked_after", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("reads") as table:
        table.drop_column("asked_after")
