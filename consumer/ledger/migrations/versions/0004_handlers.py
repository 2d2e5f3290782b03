"""which handlers are transactional"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0004"
down_revision = "ledger_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default of the database's own: the version before still registers its handlers without it.
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("transactional", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.drop_column("transactional")
