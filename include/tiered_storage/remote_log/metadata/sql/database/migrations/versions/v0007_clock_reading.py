"""What the clock showed when it was last checked: one row, once a run checked it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "clock_reading",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("boot_id", sa.String, nullable=False),
        sa.Column("boot_ms", sa.BigInteger, nullable=False),
        sa.Column("wall_ms", sa.BigInteger, nullable=False),
        sa.Column("trusted_since", sa.BigInteger, nullable=False),
        sa.CheckConstraint("id = 1", name="only_one_clock_reading"),
    )
