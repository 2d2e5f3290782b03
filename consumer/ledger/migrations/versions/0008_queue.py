"""runs are found by the state in which they are sought, and by nothing that holds what is finished"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "ledger_0008"
down_revision = "ledger_0007"
branch_labels = None
depends_on = None

NEW = {
    "ix_runs_queue": (["handler", "next_at", "seq"], "status = 'retrying'"),
    "ix_runs_parked": (["handler", "application", "key", "seq"], "status = 'parked'"),
    "ix_runs_dead": (["handler", "seq"], "status = 'dead'"),
    "ix_runs_discarded": (["handler", "seq"], "code IN ('discarded', 'discarded_waiting')"),
}
OLD = {
    "ix_runs_due": (["next_at"], "status = 'retrying'"),
    "ix_runs_open": (["handler", "status", "seq"], "status <> 'succeeded'"),
}


def upgrade() -> None:
    _replace(OLD, NEW)


def downgrade() -> None:
    _replace(NEW, OLD)


def _replace(old: dict[str, tuple[list[str], str]], new: dict[str, tuple[list[str], str]]) -> None:
    for name in old:
        op.drop_index(name, table_name="runs")
    for name, (columns, where) in new.items():
        op.create_index(name, "runs", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
