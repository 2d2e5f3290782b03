"""access: open findings have an index of their own"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "access_0004"
down_revision = "access_0003"
branch_labels = None
depends_on = None

OPEN = "closed_at IS NULL"


def upgrade() -> None:
    op.drop_index("ix_access_finding_open", table_name="access_finding")
    op.create_index(
        "ix_access_finding_open",
        "access_finding",
        ["application", "subject"],
        postgresql_where=sa.text(OPEN),
        sqlite_where=sa.text(OPEN),
    )


def downgrade() -> None:
    op.drop_index("ix_access_finding_open", table_name="access_finding")
    op.create_index("ix_access_finding_open", "access_finding", ["application", "closed_at"])
