"""The fields of the form of restore_topic.

No field names a path, a host or a file: the settings name the directory and the connections that a form may choose.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.forms import fields

WORDS = {
    "from_time": "Records from this time on: ISO 8601, or ms since 1970.",
    "to_time": "Records before this time.",
    "from_offset": "Offsets from this one on.",
    "to_offset": "Offsets before this one.",
    "topic_id": "The incarnation of the topic; needed if the store has several.",
    "connection": "For target cluster: one of the connections of restore.connections; empty: the only one.",
    "as_topic": "The topic's name in the target; empty: the same.",
    "as_topic_id": "The topic's id in the directory's cluster; empty: the id found there.",
}

PATTERNS = {
    "from_time": fields.TIME_PATTERN,
    "to_time": fields.TIME_PATTERN,
    "from_offset": fields.OFFSET_PATTERN,
    "to_offset": fields.OFFSET_PATTERN,
    "connection": fields.CONNECTION_PATTERN,
    "as_topic": fields.TOPIC_OR_NOTHING_PATTERN,
}

FORM = {
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
    **{name: fields.word_param(name, description, PATTERNS.get(name, "")) for name, description in WORDS.items()},
    "validation": Param("sizes", enum=["manifest", "sizes", "records"], title="Validation"),
    "append": Param(False, type="boolean", title="Append after the records that the cluster's topic already has"),
    "allow_gaps": Param(False, type="boolean", title="Restore even if offsets are missing"),
    "dry_run": fields.dry_run_param("Only show the plan", default=True),
    "settings": fields.settings_param(),
}
