"""What metadata need that may be in PostgreSQL too, and move from one database to another.

In PostgreSQL texts sort by their bytes, as they do in SQLite: pages of rows and digests of decisions depend on it.
Metadata that moved stay behind, marked; those that are still arriving are marked too.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_TEXTS = {
    "segments": ("cluster_id", "topic_id", "segment_id", "topic", "leader_epochs"),
    "deleted_segments": ("cluster_id", "topic_id", "segment_id", "topic", "leader_epochs"),
    "partitions": ("cluster_id", "topic_id", "topic"),
    "log_starts": ("cluster_id", "topic_id"),
    "lineages": ("cluster_id", "topic_id", "topic"),
    "partition_deletions": ("cluster_id", "topic_id", "topic"),
    "deletion_failures": ("cluster_id", "topic_id", "segment_id", "topic"),
    "audit_verdicts": ("cluster_id", "topic_id"),
    "leases": ("cluster_id", "topic_id", "owner"),
    "topics": ("cluster_id", "topic_id", "name", "properties"),
}


def upgrade() -> None:
    """Sort texts by bytes, and add the marks."""
    if op.get_bind().dialect.name == "postgresql":
        for table, columns in _TEXTS.items():
            changes = ", ".join(f'ALTER COLUMN "{column}" TYPE text COLLATE "C"' for column in columns)
            op.execute(f"ALTER TABLE {table} {changes}")
    op.add_column("store_identity", sa.Column("moved_to", sa.Text))
    op.add_column("store_identity", sa.Column("arrives_from", sa.Text))
