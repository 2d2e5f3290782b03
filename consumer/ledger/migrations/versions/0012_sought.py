"""the events of a key are found by the key, and no longer by the application, which nearly every event has"""

from __future__ import annotations

from alembic import op

revision = "ledger_0012"
down_revision = "ledger_0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _replace(["key", "application", "seq"])


def downgrade() -> None:
    _replace(["application", "key", "seq"])


def _replace(columns: list[str]) -> None:
    op.drop_index("ix_events_key", table_name="events")
    op.create_index("ix_events_key", "events", columns)
