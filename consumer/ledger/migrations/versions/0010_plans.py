"""replay plans: what is done again, and exactly to what"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from consumer.columns import UtcDateTime, serial

revision = "ledger_0010"
down_revision = "ledger_0009"
branch_labels = None
depends_on = None

APPLYING = sa.text("status = 'applying'")
PLANNED = sa.text("plan IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("number", serial(), nullable=False, unique=True),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("reason", sa.String(500)),
        sa.Column("filters", sa.LargeBinary(), nullable=False),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("renews_keys", sa.Boolean(), nullable=False),
        sa.Column("items", sa.Integer(), nullable=False),
        sa.Column("predicted", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("began_at", UtcDateTime()),
        sa.Column("began_by", sa.String(100)),
        sa.Column("ended_at", UtcDateTime()),
        sa.Column("ended_by", sa.String(100)),
    )
    op.create_index(
        "ux_plans_applying", "plans", ["status"], unique=True, postgresql_where=APPLYING, sqlite_where=APPLYING
    )
    op.create_table(
        "plan_items",
        sa.Column("plan", sa.String(64), primary_key=True),
        sa.Column("application", sa.String(64), primary_key=True),
        sa.Column("event_id", sa.String(255), primary_key=True),
        sa.Column("handler", sa.String(200), primary_key=True),
        sa.Column("seq", serial(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(600), nullable=False),
        sa.Column("action", sa.String(10), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("predicted", sa.Text(), nullable=False),
        sa.Column("taken_at", UtcDateTime()),
    )
    op.create_index("ix_plan_items_status", "plan_items", ["plan", "status", "turn", "seq"])
    op.add_column("runs", sa.Column("key_plan", sa.String(64)))
    # What a plan did is asked for by its name; nearly all runs and derived events have none.
    op.create_index("ix_runs_plan", "runs", ["plan", "status"], postgresql_where=PLANNED, sqlite_where=PLANNED)
    op.create_index("ix_outbox_plan", "outbox", ["plan"], postgresql_where=PLANNED, sqlite_where=PLANNED)


def downgrade() -> None:
    op.drop_index("ix_outbox_plan", "outbox")
    op.drop_index("ix_runs_plan", "runs")
    with op.batch_alter_table("runs") as batch_op:
        batch_op.drop_column("key_plan")
    op.drop_table("plan_items")
    op.drop_table("plans")
