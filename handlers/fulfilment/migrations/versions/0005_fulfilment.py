"""fulfilment: a checkout keeps the mode and the price it was registered with"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "fulfilment_0005"
down_revision = "fulfilment_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fulfilment_checkout", sa.Column("mode", sa.String(length=20), nullable=True))
    op.add_column("fulfilment_checkout", sa.Column("price_id", sa.String(length=255), nullable=True))


def downgrade() -> None:
    op.drop_column("fulfilment_checkout", "price_id")
    op.drop_column("fulfilment_checkout", "mode")
