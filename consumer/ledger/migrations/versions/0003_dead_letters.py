"""dead letters; why a handler waits"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "ledger_0003"
down_revision = "ledger_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=False),
        sa.Column("handler", sa.String(length=200), nullable=False),
        sa.Column("died_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("blocking", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("code", sa.String(length=60), nullable=True),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("fingerprint", sa.String(length=16), nullable=True),
        sa.Column("code_version", sa.String(length=16), nullable=False),
        sa.Column("published_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("settled_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("settled_as", sa.String(length=12), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_dead_letters_run", "dead_letters", ["application", "event_id", "handler", "id"])
    op.create_index(
        "ix_dead_letters_unpublished",
        "dead_letters",
        ["id"],
        postgresql_where=sa.text("published_at IS NULL"),
        sqlite_where=sa.text("published_at IS NULL"),
    )
    # Runs that died before there were letters get theirs, so that they too are copied to the topic.
    op.execute(
        "INSERT INTO dead_letters (application, event_id, handler, died_at, blocking, attempts, code, reason,"
        " fingerprint, code_version)"
        " SELECT application, event_id, handler, updated_at, blocking, attempts, code, reason, fingerprint,"
        " code_version FROM runs WHERE status = 'dead'"
    )
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("waiting_since", consumer.columns.UtcDateTime(), nullable=True))
        batch_op.add_column(sa.Column("waiting_reason", sa.String(length=500), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("handlers", schema=None) as batch_op:
        batch_op.drop_column("waiting_reason")
        batch_op.drop_column("waiting_since")
    op.drop_table("dead_letters")
