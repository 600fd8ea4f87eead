"""The key that signs the messages in the work area: one row, made here and never shown."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_KEY_BYTES = 32


def upgrade() -> None:
    """Create the table and its only row."""
    table = op.create_table(
        "work_area_key",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("id = 1", name="only_one_work_area_key"),
    )
    op.bulk_insert(table, [{"id": 1, "key": secrets.token_bytes(_KEY_BYTES)}])
