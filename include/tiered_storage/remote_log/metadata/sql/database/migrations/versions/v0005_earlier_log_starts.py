"""What the global log start of a partition was before deletions moved it: an undelete returns to it.

Moves that were made before this revision are unknown.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0003"


def upgrade() -> None:
    """Add the column."""
    op.add_column("log_starts", sa.Column("earlier", sa.Text, nullable=False, server_default="[]"))
