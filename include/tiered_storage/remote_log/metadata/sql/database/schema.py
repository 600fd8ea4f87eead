"""The tables of the SQL metadata store, in types and constraints that SQLite and PostgreSQL share.

Texts sort by their bytes (in PostgreSQL, collation "C").

    segments             every remote segment that is not yet deleted
    deleted_segments     those that reached DELETE_SEGMENT_FINISHED, with the same columns
    partitions           every partition that has, or had, a segment
    log_starts           the global log start offset of a partition, and those before it
    lineages             the leader epochs of a partition that we keep, since brokers forget
    leases               the newest lease of a partition; a row is never removed, so that its number only rises
    topics               the decisions on a topic
    store_identity       one row: our UUID, that of the object store that we belong to, where these metadata moved to,
                         or still arrive from, and the metadata topic that has the segments
    partition_deletions  how far the deletion of a whole partition is
    deletion_failures    segments whose objects could not be deleted
    audit_verdicts       the results of a topic's last audits; topic id "" is the whole store
    deletion_stop        one row, once it was used: the switch that stops all deletions
    generation           one row: the token that metadata and object store share (sql/generation.py)
    work_area_key        one row: the key that signs the messages in the work area
    clock_readings       the clock of each machine when it was last checked (sql/clock_readings.py)
    topic_segments       of segments in the metadata topic: what its records cannot hold (sql/topic_segments.py)

A deleted segment keeps its row, so that a repeated deletion is harmless, and a late attempt with its id is refused. The
row moves to a separate table, so that look-ups stay fast.

`finish_sequence` numbers the finished copies of a partition in the order in which they became visible.
`longest_span` is the largest number of offsets that any segment of the partition ever spanned: a segment that holds an
offset starts less than that before it, which keeps a look-up short however many segments there are.
`earlier` is a JSON list of [log start offset, ms when a deletion moved it], oldest first.
`leader_epochs` is a JSON list of [epoch, start offset]; `first_epoch` and `last_epoch` of a segment are the least and
the greatest of its epochs.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    false,
)

SCHEMA_VERSION = "0010"
"""The newest revision in migrations/versions."""

VERSION_TABLE = "remote_log_schema_version"

DROPPED_TABLES = ("clock_reading",)
"""Tables of earlier versions, which a revision dropped."""

metadata = MetaData()


def _partition_key() -> tuple[Column[str], Column[str], Column[int]]:
    return (
        Column("cluster_id", String, primary_key=True),
        Column("topic_id", String, primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
    )


def _segment_table(name: str) -> Table:
    return Table(
        name,
        metadata,
        *_partition_key(),
        Column("segment_id", String, primary_key=True),
        Column("topic", String, nullable=False),
        Column("start_offset", BigInteger, nullable=False),
        Column("end_offset", BigInteger, nullable=False),
        Column("max_timestamp", BigInteger, nullable=False),
        Column("event_timestamp", BigInteger, nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("leader_epochs", Text, nullable=False),
        Column("first_epoch", Integer),
        Column("last_epoch", Integer),
        Column("state", SmallInteger, nullable=False),
        Column("broker_id", Integer, nullable=False),
        Column("custom_metadata", LargeBinary),
        Column("fencing_number", BigInteger, nullable=False),
        Column("finish_sequence", BigInteger),
    )


segments = _segment_table("segments")
deleted_segments = _segment_table("deleted_segments")
Index(
    "segments_by_offset",
    segments.c.cluster_id,
    segments.c.topic_id,
    segments.c.partition,
    segments.c.start_offset,
    segments.c.segment_id,
)

partitions = Table(
    "partitions",
    metadata,
    *_partition_key(),
    Column("topic", String, nullable=False),
    Column("longest_span", BigInteger, nullable=False),
    Column("finished_copies", BigInteger, nullable=False),
)

log_starts = Table(
    "log_starts",
    metadata,
    *_partition_key(),
    Column("log_start_offset", BigInteger, nullable=False),
    Column("earlier", Text, nullable=False, server_default="[]"),
)

lineages = Table(
    "lineages",
    metadata,
    *_partition_key(),
    Column("topic", String, nullable=False),
    Column("leader_epochs", Text, nullable=False),
)

partition_deletions = Table(
    "partition_deletions",
    metadata,
    *_partition_key(),
    Column("topic", String, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("event_timestamp", BigInteger, nullable=False),
)

deletion_failures = Table(
    "deletion_failures",
    metadata,
    *_partition_key(),
    Column("segment_id", String, primary_key=True),
    Column("topic", String, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("first_failed_at", BigInteger, nullable=False),
    Column("last_failed_at", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
)

audit_results = Table(
    "audit_verdicts",
    metadata,
    Column("cluster_id", String, primary_key=True),
    Column("topic_id", String, primary_key=True),
    Column("deep", Boolean, primary_key=True),
    Column("audited_at", BigInteger, nullable=False),
    Column("anomalies", Integer, nullable=False),
    Column("message", Text, nullable=False),
)

deletion_stop = Table(
    "deletion_stop",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="only_one_switch"), primary_key=True, autoincrement=False),
    Column("stopped", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("said_by", String, nullable=False),
    Column("said_at", BigInteger, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    *_partition_key(),
    Column("owner", String, nullable=False),
    Column("fencing_number", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

topics = Table(
    "topics",
    metadata,
    Column("cluster_id", String, primary_key=True),
    Column("topic_id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("remote_storage_enable", Boolean, nullable=False),
    Column("local_deletion_allowed", Boolean, nullable=False),
    Column("remote_deletion_allowed", Boolean, nullable=False, server_default=false()),
    Column("properties", Text, nullable=False),
)

store_identity = Table(
    "store_identity",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="only_one_identity"), primary_key=True, autoincrement=False),
    Column("metadata_uuid", String, nullable=False),
    Column("bound_store_uuid", String),
    Column("moved_to", Text),
    Column("arrives_from", Text),
    Column("metadata_topic", Text),
)

generation = Table(
    "generation",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="only_one_generation"), primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("token", String, nullable=False),
    Column("next_token", String),
    Column("renewal_due", Boolean, nullable=False),
    Column("decisions_digest", String),
    Column("place", String),
    Column("backed_up_at", BigInteger),
)

work_area_key = Table(
    "work_area_key",
    metadata,
    Column(
        "id", Integer, CheckConstraint("id = 1", name="only_one_work_area_key"), primary_key=True, autoincrement=False
    ),
    Column("key", LargeBinary, nullable=False),
)

clock_readings = Table(
    "clock_readings",
    metadata,
    Column("boot_id", String, primary_key=True),
    Column("boot_ms", BigInteger, nullable=False),
    Column("wall_ms", BigInteger, nullable=False),
    Column("trusted_since", BigInteger, nullable=False),
)

topic_segments = Table(
    "topic_segments",
    metadata,
    Column("segment_id", String, primary_key=True),
    Column("topic_id", String, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("cluster_id", String, primary_key=True),
    Column("fencing_number", BigInteger, nullable=False),
    Column("max_timestamp", BigInteger),
    Column("undeleted_at", BigInteger),
)
