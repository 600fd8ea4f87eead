"""What the clock of each machine showed when it was last checked: a row for each start, in place of a single one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Create the table, and move the row of the last machine."""
    op.create_table(
        "clock_readings",
        sa.Column("boot_id", sa.String, primary_key=True),
        sa.Column("boot_ms", sa.BigInteger, nullable=False),
        sa.Column("wall_ms", sa.BigInteger, nullable=False),
        sa.Column("trusted_since", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO clock_readings (boot_id, boot_ms, wall_ms, trusted_since) "
        "SELECT boot_id, boot_ms, wall_ms, trusted_since FROM clock_reading"
    )
    op.drop_table("clock_reading")
