"""Lineages, deletions of whole partitions, what makes deleting safe; and the right to delete becomes two.

A topic with the old right gets both. A partition that is there gets no lineage: it is derived from the segments, as
before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Split the right, create the tables."""
    op.execute("ALTER TABLE topics RENAME COLUMN deletion_allowed TO local_deletion_allowed")
    remote = sa.Column("remote_deletion_allowed", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("topics", remote)
    op.execute("UPDATE topics SET remote_deletion_allowed = local_deletion_allowed")
    op.create_table(
        "lineages",
        *_partition_key(),
        sa.Column("topic", sa.String, nullable=False),
        sa.Column("leader_epochs", sa.Text, nullable=False),
    )
    op.create_table(
        "partition_deletions",
        *_partition_key(),
        sa.Column("topic", sa.String, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("event_timestamp", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "deletion_failures",
        *_partition_key(),
        sa.Column("segment_id", sa.String, primary_key=True),
        sa.Column("topic", sa.String, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("first_failed_at", sa.BigInteger, nullable=False),
        sa.Column("last_failed_at", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_table(
        "audit_verdicts",
        sa.Column("cluster_id", sa.String, primary_key=True),
        sa.Column("topic_id", sa.String, primary_key=True),
        sa.Column("deep", sa.Boolean, primary_key=True),
        sa.Column("audited_at", sa.BigInteger, nullable=False),
        sa.Column("anomalies", sa.Integer, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_table(
        "deletion_stop",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stopped", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("said_by", sa.String, nullable=False),
        sa.Column("said_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("id = 1", name="only_one_switch"),
    )


def _partition_key() -> tuple[sa.Column[str], sa.Column[str], sa.Column[int]]:
    return (
        sa.Column("cluster_id", sa.String, primary_key=True),
        sa.Column("topic_id", sa.String, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    )
