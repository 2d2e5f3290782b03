"""fulfilment: the first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "fulfilment_0001"
down_revision = None
branch_labels = ("fulfilment",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fulfilment_checkout",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=255), nullable=False),
        sa.Column("order_id", sa.String(length=255), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("registered_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("customer", sa.String(length=255), nullable=True),
        sa.Column("expected_amount", sa.String(length=40), nullable=True),
        sa.PrimaryKeyConstraint("application", "session_id"),
    )
    op.create_index("ix_fulfilment_checkout_order", "fulfilment_checkout", ["application", "order_id"], unique=False)
    op.create_table(
        "fulfilment_finding",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("opened_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("closed_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("closed_by", sa.String(length=100), nullable=True),
        sa.Column("closed_reason", sa.String(length=500), nullable=True),
        sa.PrimaryKeyConstraint("application", "kind", "subject"),
    )
    op.create_index("ix_fulfilment_finding_open", "fulfilment_finding", ["application", "closed_at"], unique=False)
    op.create_table(
        "fulfilment_order",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("order_id", sa.String(length=255), nullable=False),
        sa.Column("customer", sa.String(length=255), nullable=True),
        sa.Column("session_id", sa.String(length=255), nullable=True),
        sa.Column("service_order_id", sa.String(length=255), nullable=True),
        sa.Column("registered_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("expected_amount", sa.String(length=40), nullable=True),
        sa.Column("amount", sa.String(length=255), nullable=True),
        sa.Column("observed_status", sa.String(length=255), nullable=True),
        sa.Column("observed_version", sa.BigInteger(), nullable=False),
        sa.Column("expired_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("paid_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("proof_event_id", sa.String(length=255), nullable=True),
        sa.Column("proof_type", sa.String(length=100), nullable=True),
        sa.Column("hold", sa.String(length=40), nullable=True),
        sa.Column("requested_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("unfulfillable_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("application", "order_id"),
    )
    op.create_index(
        "ix_fulfilment_order_held",
        "fulfilment_order",
        ["application", "order_id"],
        unique=False,
        postgresql_where=sa.text("hold IS NOT NULL"),
        sqlite_where=sa.text("hold IS NOT NULL"),
    )
    op.create_index(
        "ix_fulfilment_order_service", "fulfilment_order", ["application", "service_order_id"], unique=False
    )
    op.create_table(
        "fulfilment_payment",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("payment_id", sa.String(length=255), nullable=False),
        sa.Column("order_id", sa.String(length=255), nullable=True),
        sa.Column("service_order_id", sa.String(length=255), nullable=True),
        sa.Column("amount", sa.String(length=255), nullable=True),
        sa.Column("seen_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "payment_id"),
    )
    op.create_index("ix_fulfilment_payment_order", "fulfilment_payment", ["application", "order_id"], unique=False)
    op.create_index(
        "ix_fulfilment_payment_service", "fulfilment_payment", ["application", "service_order_id"], unique=False
    )


def downgrade() -> None:
    op.drop_index("ix_fulfilment_payment_service", table_name="fulfilment_payment")
    op.drop_index("ix_fulfilment_payment_order", table_name="fulfilment_payment")
    op.drop_table("fulfilment_payment")
    op.drop_index("ix_fulfilment_order_service", table_name="fulfilment_order")
    op.drop_index(
        "ix_fulfilment_order_held",
        table_name="fulfilment_order",
        postgresql_where=sa.text("hold IS NOT NULL"),
        sqlite_where=sa.text("hold IS NOT NULL"),
    )
    op.drop_table("fulfilment_order")
    op.drop_index("ix_fulfilment_finding_open", table_name="fulfilment_finding")
    op.drop_table("fulfilment_finding")
    op.drop_index("ix_fulfilment_checkout_order", table_name="fulfilment_checkout")
    op.drop_table("fulfilment_checkout")
