"""The forms of restore_topic and export_topic, which choose what of one topic to restore or export.

No field names a path, a host or a file: the settings name the directory and the connections that a form may choose.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.forms import fields

_RESTORE_WORDS = {
    "from_time": "Records from this time on: ISO 8601, or ms since 1970.",
    "to_time": "Records before this time.",
    "from_offset": "Offsets from this one on.",
    "to_offset": "Offsets before this one.",
    "topic_id": "The incarnation of the topic; needed if the store has several.",
    "connection": "For target cluster: one of the connections of restore.connections; empty: the only one.",
    "as_topic": "The topic's name in the target; empty: the same.",
    "as_topic_id": "The topic's id in the directory's cluster; empty: the id found there.",
}

_RESTORE_PATTERNS = {
    "from_time": fields.TIME_PATTERN,
    "to_time": fields.TIME_PATTERN,
    "from_offset": fields.OFFSET_PATTERN,
    "to_offset": fields.OFFSET_PATTERN,
    "connection": fields.CONNECTION_PATTERN,
    "as_topic": fields.TOPIC_OR_NOTHING_PATTERN,
}

RESTORE_FORM = {
    "topic": fields.topic_param(),
    "partitions": fields.partitions_param(),
    "target": Param(
        "directory",
        enum=["directory", "cluster"],
        title="Target",
        description=(
            "directory: the log directory of a stopped broker, named by the setting restore.directory; cluster: a "
            "running cluster, where the topic exists and is empty."
        ),
    ),
    **{
        name: fields.word_param(name, description, _RESTORE_PATTERNS.get(name, ""))
        for name, description in _RESTORE_WORDS.items()
    },
    "validation": Param("sizes", enum=["manifest", "sizes", "records"], title="Validation"),
    "append": Param(False, type="boolean", title="Append after the records that the cluster's topic already has"),
    "allow_gaps": Param(False, type="boolean", title="Restore even if offsets are missing"),
    "dry_run": fields.dry_run_param("Only show the plan", default=True),
    "settings": fields.settings_param(),
}

TOPIC_VARIABLE = "remote_log_export_topic"
"""The Airflow Variable with the topic of scheduled runs, whose form is empty."""

_EXPORTED_TOPIC = Param(
    "",
    type="string",
    pattern=fields.TOPIC_OR_NOTHING_PATTERN,
    title="Topic",
    description=f"The name of one topic; empty: the Airflow Variable {TOPIC_VARIABLE}, or nothing is done.",
)

_EXPORTED_FROM = "Records from this time on: ISO 8601, or ms since 1970; empty: the run's interval."

EXPORT_FORM = {
    "topic": _EXPORTED_TOPIC,
    "topic_id": fields.word_param("topic_id", "The incarnation of the topic; needed if it had several."),
    "partitions": fields.partitions_param(),
    "from_time": fields.word_param("from_time", _EXPORTED_FROM, fields.TIME_PATTERN),
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
