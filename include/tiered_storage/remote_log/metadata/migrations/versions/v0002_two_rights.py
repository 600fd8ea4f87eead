"""The right to delete becomes two, local and remote; who had the one has both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change the tables that are there."""
    op.execute("ALTER TABLE topics RENAME COLUMN deletion_allowed TO local_deletion_allowed")
    remote = sa.Column("remote_deletion_allowed", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("topics", remote)
    op.execute("UPDATE topics SET remote_deletion_allowed = local_deletion_allowed")
