"""The generation that the metadata and their object store share.

A store of an earlier version begins at generation 0, without a token: its first run publishes generation 1.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table with its one row."""
    generation = op.create_table(
        "generation",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("token", sa.String, nullable=False),
        sa.Column("next_token", sa.String),
        sa.Column("renewal_due", sa.Boolean, nullable=False),
        sa.Column("decisions_digest", sa.String),
        sa.Column("place", sa.String),
        sa.Column("backed_up_at", sa.BigInteger),
        sa.CheckConstraint("id = 1", name="only_one_generation"),
    )
    op.bulk_insert(generation, [{"id": 1, "number": 0, "token": "", "renewal_due": False}])
