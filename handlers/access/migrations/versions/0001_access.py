"""access: the first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import consumer.columns

revision = "access_0001"
down_revision = None
branch_labels = ("access",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "access_brake",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("since", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("revoked", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("application"),
    )
    op.create_table(
        "access_customer",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("customer", sa.String(length=255), nullable=False),
        sa.Column("as_of", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "customer"),
    )
    op.create_table(
        "access_entitlement",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("customer", sa.String(length=255), nullable=False),
        sa.Column("entitlement", sa.String(length=100), nullable=False),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.Column("until", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("reasons", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("changed_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("braked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("application", "customer", "entitlement"),
    )
    op.create_index(
        "ix_access_entitlement_allowed",
        "access_entitlement",
        ["application"],
        unique=False,
        postgresql_where=sa.text("allowed"),
        sqlite_where=sa.text("allowed"),
    )
    op.create_index(
        "ix_access_entitlement_braked",
        "access_entitlement",
        ["application", "customer"],
        unique=False,
        postgresql_where=sa.text("braked"),
        sqlite_where=sa.text("braked"),
    )
    op.create_table(
        "access_finding",
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
    op.create_index("ix_access_finding_open", "access_finding", ["application", "closed_at"], unique=False)
    op.create_table(
        "access_link",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=255), nullable=False),
        sa.Column("order_id", sa.String(length=255), nullable=True),
        sa.Column("customer", sa.String(length=255), nullable=False),
        sa.Column("registered_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("application", "session_id"),
    )
    op.create_index("ix_access_link_order", "access_link", ["application", "order_id"], unique=False)
    op.create_table(
        "access_source",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("customer", sa.String(length=255), nullable=False),
        sa.Column("entitlement", sa.String(length=100), nullable=True),
        sa.Column("until", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("by", sa.String(length=100), nullable=True),
        sa.Column("created_at", consumer.columns.UtcDateTime(), nullable=False),
        sa.Column("ended_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("application", "id"),
    )
    op.create_index("ix_access_source_customer", "access_source", ["application", "customer"], unique=False)
    op.create_table(
        "access_subscription",
        sa.Column("application", sa.String(length=64), nullable=False),
        sa.Column("subscription_id", sa.String(length=255), nullable=False),
        sa.Column("customer", sa.String(length=255), nullable=True),
        sa.Column("customer_source", sa.String(length=20), nullable=False),
        sa.Column("price_id", sa.String(length=255), nullable=True),
        sa.Column("product_id", sa.String(length=255), nullable=True),
        sa.Column("session_id", sa.String(length=255), nullable=True),
        sa.Column("order_id", sa.String(length=255), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=True),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("read_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("period_end", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("past_due_since", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("end_reason", sa.String(length=255), nullable=True),
        sa.Column("ended_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("settle_from", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("settle_until", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("cancel_at_period_end", sa.Boolean(), nullable=False),
        sa.Column("cancel_reason", sa.String(length=255), nullable=True),
        sa.Column("merchant_cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("renewed_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("charged_after_end", sa.Boolean(), nullable=False),
        sa.Column("lease_until", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("hinted_at", consumer.columns.UtcDateTime(), nullable=True),
        sa.Column("unannounced", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("application", "subscription_id"),
    )
    op.create_index("ix_access_subscription_customer", "access_subscription", ["application", "customer"], unique=False)
    op.create_index("ix_access_subscription_order", "access_subscription", ["application", "order_id"], unique=False)
    op.create_index(
        "ix_access_subscription_session", "access_subscription", ["application", "session_id"], unique=False
    )


def downgrade() -> None:
    op.drop_index("ix_access_subscription_session", table_name="access_subscription")
    op.drop_index("ix_access_subscription_order", table_name="access_subscription")
    op.drop_index("ix_access_subscription_customer", table_name="access_subscription")
    op.drop_table("access_subscription")
    op.drop_index("ix_access_source_customer", table_name="access_source")
    op.drop_table("access_source")
    op.drop_index("ix_access_link_order", table_name="access_link")
    op.drop_table("access_link")
    op.drop_index("ix_access_finding_open", table_name="access_finding")
    op.drop_table("access_finding")
    op.drop_index(
        "ix_access_entitlement_braked",
        table_name="access_entitlement",
        postgresql_where=sa.text("braked"),
        sqlite_where=sa.text("braked"),
    )
    op.drop_index(
        "ix_access_entitlement_allowed",
        table_name="access_entitlement",
        postgresql_where=sa.text("allowed"),
        sqlite_where=sa.text("allowed"),
    )
    op.drop_table("access_entitlement")
    op.drop_table("access_customer")
    op.drop_table("access_brake")
