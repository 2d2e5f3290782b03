"""which handlers fulfil; where in the author's code an attempt failed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0009"
down_revision = "ledger_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Both may be missing: the version before still registers handlers and stores attempts without them.
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("fulfils", sa.Boolean(), nullable=True))
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("trace", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("trace")
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.drop_column("fulfils")
