"""bookmarks of walks, the shared request budget, the meaning of observations"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "ledger_0002"
down_revision = "ledger_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bookmarks",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("walk", sa.String(length=40), nullable=False),
        sa.Column("token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("updated_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "walk"),
    )
    op.create_table(
        "budgets",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    with op.batch_alter_table("observations", schema=None) as batch_op:
        batch_op.add_column(sa.Column("state", sa.String(length=200), server_default="", nullable=False))
        batch_op.add_column(sa.Column("shape", sa.String(length=16), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("observations", schema=None) as batch_op:
        batch_op.drop_column("shape")
        batch_op.drop_column("state")
    op.drop_table("budgets")
    op.drop_table("bookmarks")
