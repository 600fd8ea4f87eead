"""The form of restore_topic: its fields, and the templates by which the operators take them."""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow import forms

WORDS = {
    "from_time": "Records from this time on: ISO 8601, or ms since 1970.",
    "to_time": "Records before this time.",
    "from_offset": "Offsets from this one on.",
    "to_offset": "Offsets before this one.",
    "topic_id": "Which life of the topic, where the store has several.",
    "to_directory": "A broker's log directory on the worker's machine; the broker is stopped.",
    "to_cluster": "Or host:port of a running cluster; the topic exists there and is empty.",
    "as_topic": "The topic's name there; empty: the same.",
    "as_topic_id": "The topic's id in the directory's cluster; empty: what is found there.",
    "offset_map": "The file of old and new offsets, on the worker's machine; empty: in state.directory.",
    "client_properties": "A file of librdkafka's properties for the cluster, on the worker's machine.",
}

PATTERNS = {
    "from_time": forms.TIME_PATTERN,
    "to_time": forms.TIME_PATTERN,
    "from_offset": forms.OFFSET_PATTERN,
    "to_offset": forms.OFFSET_PATTERN,
    "to_cluster": forms.CLUSTER_PATTERN,
    "as_topic": forms.TOPIC_OR_NOTHING_PATTERN,
}

FORM = {
    "topic": forms.topic_param(),
    "partitions": forms.partitions_param(),
    **{name: forms.word_param(name, description, PATTERNS.get(name, "")) for name, description in WORDS.items()},
    "validation": Param("sizes", enum=["manifest", "sizes", "records"], title="How much is checked"),
    "append": Param(False, type="boolean", title="Produce behind records that the cluster's topic has already"),
    "allow_gaps": Param(False, type="boolean", title="Restore though offsets are missing between"),
    "dry_run": forms.dry_run_param("Only show the plan", default=True),
    "settings": forms.settings_param(),
}
TAKEN = {name: f"{{{{ '' if params.{name} is none else params.{name} }}}}" for name in ("topic", "partitions", *WORDS)}
CHOSEN = {name: f"{{{{ params.{name} }}}}" for name in ("validation", "append", "allow_gaps")}
