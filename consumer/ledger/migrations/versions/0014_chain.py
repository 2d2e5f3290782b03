"""the audit trail is a chain: each entry has its number and a hash over the one before"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import serial

revision = "ledger_0014"
down_revision = "ledger_0013"
branch_labels = None
depends_on = None

SEALED, WAITING = sa.text("number IS NOT NULL"), sa.text("number IS NULL")


def upgrade() -> None:
    op.add_column("audit", sa.Column("number", serial()))
    op.add_column("audit", sa.Column("hash", sa.String(64)))
    op.create_index("ux_audit_number", "audit", ["number"], unique=True, postgresql_where=SEALED, sqlite_where=SEALED)
    op.create_index("ix_audit_unsealed", "audit", ["id"], postgresql_where=WAITING, sqlite_where=WAITING)
    op.create_table(
        "chain_head",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("number", serial(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("chain_head")
    op.drop_index("ix_audit_unsealed", "audit")
    op.drop_index("ux_audit_number", "audit")
    with op.batch_alter_table("audit") as batch_op:
        batch_op.drop_column("hash")
        batch_op.drop_column("number")
