"""The fields of the form of export_topic."""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.forms import fields

TOPIC_VARIABLE = "remote_log_export_topic"
"""The Airflow Variable with the topic of scheduled runs: nobody fills in their form."""

_TOPIC = Param(
    "",
    type="string",
    pattern=fields.TOPIC_OR_NOTHING_PATTERN,
    title="Topic",
    description=f"The name of one topic; empty: the Airflow Variable {TOPIC_VARIABLE}, or nothing is done.",
)

_FROM = "Records from this time on: ISO 8601, or ms since 1970; empty: the run's interval."

FORM = {
    "topic": _TOPIC,
    "topic_id": fields.word_param("topic_id", "The incarnation of the topic; needed if it had several."),
    "partitions": fields.partitions_param(),
    "from_time": fields.word_param("from_time", _FROM, fields.TIME_PATTERN),
    "to_time": fields.word_param("to_time", "Records before this time.", fields.TIME_PATTERN),
    "isolation": Param("read_committed", enum=["read_committed", "read_uncommitted"], title="Isolation"),
    "codec": Param("zstd", enum=["zstd", "snappy", "lz4", "gzip", "none"], title="Codec of the files"),
    "max_disorder_minutes": Param(
        60,
        type="integer",
        minimum=0,
        maximum=fields.LARGEST_NUMBER // 60_000,
        title="Maximum disorder within a batch, in minutes",
        description="Records that are earlier than the first one of their batch by more than this may be left out.",
    ),
    "allow_gaps": Param(False, type="boolean", title="Export even if offsets are missing"),
    "late_intervals": Param(
        10,
        type="integer",
        minimum=0,
        maximum=fields.LARGEST_NUMBER,
        title="Maximum number of late intervals",
        description=(
            "The run exports earlier intervals again if more of their records are copied now, the latest first; 0: "
            "none. Backfills export none."
        ),
    ),
    "dry_run": fields.dry_run_param("Only show the plan"),
    "settings": fields.settings_param(),
}
