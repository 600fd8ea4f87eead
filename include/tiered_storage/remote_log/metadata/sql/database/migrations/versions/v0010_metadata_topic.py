"""Segments in a metadata topic: which topic, and what its records cannot hold."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_TEXTS = ("segment_id", "topic_id", "cluster_id")


def upgrade() -> None:
    """Create the table, and the column for the topic."""
    op.add_column("store_identity", sa.Column("metadata_topic", sa.Text))
    op.create_table(
        "topic_segments",
        sa.Column("segment_id", sa.String, primary_key=True),
        sa.Column("topic_id", sa.String, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("cluster_id", sa.String, primary_key=True),
        sa.Column("fencing_number", sa.BigInteger, nullable=False),
        sa.Column("max_timestamp", sa.BigInteger),
        sa.Column("undeleted_at", sa.BigInteger),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Texts sort by their bytes, as in SQLite: a move compares both row by row.
        changes = ", ".join(f'ALTER COLUMN {each} TYPE text COLLATE "C"' for each in _TEXTS)
        op.execute(f"ALTER TABLE topic_segments {changes}")
