"""The first tables; database/schema.py documents them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    for name in ("segments", "deleted_segments"):
        op.create_table(
            name,
            *_partition_key(),
            sa.Column("segment_id", sa.String, primary_key=True),
            sa.Column("topic", sa.String, nullable=False),
            sa.Column("start_offset", sa.BigInteger, nullable=False),
            sa.Column("end_offset", sa.BigInteger, nullable=False),
            sa.Column("max_timestamp", sa.BigInteger, nullable=False),
            sa.Column("event_timestamp", sa.BigInteger, nullable=False),
            sa.Column("size", sa.BigInteger, nullable=False),
            sa.Column("leader_epochs", sa.Text, nullable=False),
            sa.Column("first_epoch", sa.Integer),
            sa.Column("last_epoch", sa.Integer),
            sa.Column("state", sa.SmallInteger, nullable=False),
            sa.Column("broker_id", sa.Integer, nullable=False),
            sa.Column("custom_metadata", sa.LargeBinary),
            sa.Column("fencing_number", sa.BigInteger, nullable=False),
            sa.Column("finish_sequence", sa.BigInteger),
        )
    by_offset = ["cluster_id", "topic_id", "partition", "start_offset", "segment_id"]
    op.create_index("segments_by_offset", "segments", by_offset)
    op.create_table(
        "partitions",
        *_partition_key(),
        sa.Column("topic", sa.String, nullable=False),
        sa.Column("longest_span", sa.BigInteger, nullable=False),
        sa.Column("finished_copies", sa.BigInteger, nullable=False),
    )
    op.create_table("log_starts", *_partition_key(), sa.Column("log_start_offset", sa.BigInteger, nullable=False))
    op.create_table(
        "leases",
        *_partition_key(),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("fencing_number", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "topics",
        sa.Column("cluster_id", sa.String, primary_key=True),
        sa.Column("topic_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("remote_storage_enable", sa.Boolean, nullable=False),
        sa.Column("deletion_allowed", sa.Boolean, nullable=False),
        sa.Column("properties", sa.Text, nullable=False),
    )
    op.create_table(
        "store_identity",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("metadata_uuid", sa.String, nullable=False),
        sa.Column("bound_store_uuid", sa.String),
        sa.CheckConstraint("id = 1", name="only_one_identity"),
    )


def _partition_key() -> tuple[sa.Column[str], sa.Column[str], sa.Column[int]]:
    return (
        sa.Column("cluster_id", sa.String, primary_key=True),
        sa.Column("topic_id", sa.String, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    )
