"""bodies of settled events may lie in an archive: its name, and what the body's hash was"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0015"
down_revision = "ledger_0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("archive", sa.String(100)))
    op.add_column("events", sa.Column("sha256", sa.String(64)))


def downgrade() -> None:
    if op.get_bind().scalar(sa.text("SELECT seq FROM events WHERE archive IS NOT NULL LIMIT 1")) is not None:
        raise RuntimeError("bodies lie in archives: `consumer events import` brings them back first")
    with op.batch_alter_table("events") as batch_op:
        batch_op.drop_column("sha256")
        batch_op.drop_column("archive")
