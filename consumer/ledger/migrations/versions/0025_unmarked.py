"""what code from before `ledger_0020` emits is marked as on its way, by the database: it knows no marks"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0025"
down_revision = "ledger_0024"
branch_labels = None
depends_on = None

# What a code that knows marks left without one has come, or was taken where it was emitted.
UNSENT = sa.text(
    "UPDATE outbox SET on_way = true WHERE published_at IS NULL AND on_way IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM events WHERE events.application = outbox.application AND events.id = outbox.event_id)"
)


def upgrade() -> None:
    with op.batch_alter_table("outbox") as table:
        table.alter_column("on_way", existing_type=sa.Boolean(), existing_nullable=True, server_default=sa.true())
    op.execute(UNSENT)


def downgrade() -> None:
    with op.batch_alter_table("outbox") as table:
        table.alter_column("on_way", existing_type=sa.Boolean(), existing_nullable=True, server_default=None)
