"""which derived events are on their way by the log, so that none of their key overtakes them"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0020"
down_revision = "ledger_0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("outbox", sa.Column("on_way", sa.Boolean(), nullable=True))
    columns = ["application", "key"]
    op.create_index(
        "ix_outbox_on_way", "outbox", columns, postgresql_where=sa.text("on_way"), sqlite_where=sa.text("on_way = 1")
    )


def downgrade() -> None:
    op.drop_index("ix_outbox_on_way", table_name="outbox")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.drop_column("on_way")
