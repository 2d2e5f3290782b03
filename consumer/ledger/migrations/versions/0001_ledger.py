"""The ledger's first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "ledger_0001"
down_revision = None
branch_labels = ("ledger",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=False),
        sa.Column("handler", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=12), nullable=False),
        sa.Column("code", sa.String(length=60), nullable=True),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("fingerprint", sa.String(length=16), nullable=True),
        sa.Column("code_version", sa.String(length=16), nullable=False),
        sa.Column("worker", sa.String(length=64), nullable=False),
        sa.Column("started_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("finished_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index("ix_attempts_run", ["application", "event_id", "handler"], unique=False)

    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("subject", sa.String(length=600), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("code_version", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("ix_audit_subject", ["application", "subject", "id"], unique=False)

    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=600), nullable=False),
        sa.Column("trust", sa.String(length=10), nullable=False),
        sa.Column("source", sa.String(length=10), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("recorded_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("occurred_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("object_id", sa.String(length=255), nullable=True),
        sa.Column("order_id", sa.String(length=255), nullable=True),
        sa.Column("subscription_id", sa.String(length=255), nullable=True),
        sa.Column("customer", sa.String(length=255), nullable=True),
        sa.Column("traceparent", sa.String(length=60), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("application", "id", name="uq_events_application_id"),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_key", ["application", "key", "seq"], unique=False)
        batch_op.create_index("ix_events_received_at", ["received_at"], unique=False)
        batch_op.create_index("ix_events_type", ["type", "seq"], unique=False)

    op.create_table(
        "handlers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("plugin", sa.String(length=100), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("code_version", sa.String(length=16), nullable=False),
        sa.Column("first_seen_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("last_seen_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("paused_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("paused_by", sa.String(length=60), nullable=True),
        sa.Column("paused_reason", sa.String(length=500), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "hints",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=False),
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("received_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("next_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("traceparent", sa.String(length=60), nullable=True),
        sa.PrimaryKeyConstraint("application", "event_id"),
    )
    with op.batch_alter_table("hints", schema=None) as batch_op:
        batch_op.create_index("ix_hints_due", ["application", "next_at"], unique=False)

    op.create_table(
        "leases",
        sa.Column("role", sa.String(length=100), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("until", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("role"),
    )
    op.create_table(
        "observations",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("object_id", sa.String(length=255), nullable=False),
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("read_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "kind", "object_id"),
    )
    op.create_table(
        "outbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=600), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("not_before", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("created_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("published_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("cause", sa.String(length=255), nullable=False),
        sa.Column("handler", sa.String(length=200), nullable=False),
        sa.Column("plan", sa.String(length=64), nullable=True),
        sa.Column("traceparent", sa.String(length=60), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("application", "event_id", name="uq_outbox_application_event_id"),
    )
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.create_index(
            "ix_outbox_waiting",
            ["not_before", "seq"],
            unique=False,
            postgresql_where=sa.text("published_at IS NULL"),
            sqlite_where=sa.text("published_at IS NULL"),
        )

    op.create_table(
        "quarantine",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=True),
        sa.Column("reason", sa.String(length=60), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("received_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("created_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("application", "delivery_id", name="uq_quarantine_application_delivery_id"),
    )
    with op.batch_alter_table("quarantine", schema=None) as batch_op:
        batch_op.create_index("ix_quarantine_reason", ["reason", "id"], unique=False)

    op.create_table(
        "reads",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("object_id", sa.String(length=255), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("due_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("code", sa.String(length=60), nullable=True),
        sa.Column("created_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "kind", "object_id"),
    )
    with op.batch_alter_table("reads", schema=None) as batch_op:
        batch_op.create_index("ix_reads_due", ["due_at"], unique=False)

    op.create_table(
        "runs",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=255), nullable=False),
        sa.Column("handler", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", sa.String(length=600), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("blocking", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("claimed_by", sa.String(length=64), nullable=True),
        sa.Column("claimed_until", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("code", sa.String(length=60), nullable=True),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("fingerprint", sa.String(length=16), nullable=True),
        sa.Column("code_version", sa.String(length=16), nullable=False),
        sa.Column("plan", sa.String(length=64), nullable=True),
        sa.Column("created_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("updated_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", "application", "handler"),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(
            "ix_runs_blocking",
            ["application", "key", "handler", "seq"],
            unique=False,
            postgresql_where=sa.text("blocking"),
            sqlite_where=sa.text("blocking = 1"),
        )
        batch_op.create_index(
            "ix_runs_due",
            ["next_at"],
            unique=False,
            postgresql_where=sa.text("status = 'retrying'"),
            sqlite_where=sa.text("status = 'retrying'"),
        )
        batch_op.create_index(
            "ix_runs_open",
            ["handler", "status", "seq"],
            unique=False,
            postgresql_where=sa.text("status <> 'succeeded'"),
            sqlite_where=sa.text("status <> 'succeeded'"),
        )

    op.create_table(
        "sequences",
        sa.Column("name", sa.String(length=60), nullable=False),
        sa.Column("value", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    op.drop_table("sequences")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_runs_open",
            postgresql_where=sa.text("status <> 'succeeded'"),
            sqlite_where=sa.text("status <> 'succeeded'"),
        )
        batch_op.drop_index(
            "ix_runs_due", postgresql_where=sa.text("status = 'retrying'"), sqlite_where=sa.text("status = 'retrying'")
        )
        batch_op.drop_index(
            "ix_runs_blocking", postgresql_where=sa.text("blocking"), sqlite_where=sa.text("blocking = 1")
        )

    op.drop_table("runs")
    with op.batch_alter_table("reads", schema=None) as batch_op:
        batch_op.drop_index("ix_reads_due")

    op.drop_table("reads")
    with op.batch_alter_table("quarantine", schema=None) as batch_op:
        batch_op.drop_index("ix_quarantine_reason")

    op.drop_table("quarantine")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_outbox_waiting",
            postgresql_where=sa.text("published_at IS NULL"),
            sqlite_where=sa.text("published_at IS NULL"),
        )

    op.drop_table("outbox")
    op.drop_table("observations")
    op.drop_table("leases")
    with op.batch_alter_table("hints", schema=None) as batch_op:
        batch_op.drop_index("ix_hints_due")

    op.drop_table("hints")
    op.drop_table("handlers")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index("ix_events_type")
        batch_op.drop_index("ix_events_received_at")
        batch_op.drop_index("ix_events_key")

    op.drop_table("events")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index("ix_audit_subject")

    op.drop_table("audit")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_attempts_run")

    op.drop_table("attempts")
