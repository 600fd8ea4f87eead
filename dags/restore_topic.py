"""Bring a topic back from the store, into a log directory of a stopped broker or into a running cluster.

Only by hand, and only a plan unless Only show the plan is switched off. A directory gets all of it or nothing; a
cluster gets the committed records, each once, and a file tells their new offsets. Clear a failed run to let it go on.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag

from tiered_storage_airflow import forms
from tiered_storage_airflow.operators.restore import PlanRestoreOperator, RestoreOperator
from tiered_storage_airflow.task_defaults import BY_HAND, METADATA, READER, RETRIED

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

FORM = {
    "topic": forms.topic_param(),
    "partitions": forms.partitions_param(),
    **{name: forms.word_param(name, description) for name, description in WORDS.items()},
    "validation": Param("sizes", enum=["manifest", "sizes", "records"], title="How much is checked"),
    "append": Param(False, type="boolean", title="Produce behind records that the cluster's topic has already"),
    "allow_gaps": Param(False, type="boolean", title="Restore though offsets are missing between"),
    "dry_run": forms.dry_run_param("Only show the plan", default=True),
    "settings": forms.settings_param(),
}
TAKEN = {name: f"{{{{ params.{name} or '' }}}}" for name in ("topic", "partitions", *WORDS)}
CHOSEN = {name: f"{{{{ params.{name} }}}}" for name in ("validation", "append", "allow_gaps")}


@dag(
    schedule=None,
    **BY_HAND,
    max_active_runs=1,
    tags=["tiered-storage", "restore"],
    default_args={**RETRIED, "pool": METADATA, **TAKEN, **CHOSEN, "settings": forms.SETTINGS},
    params=FORM,
    doc_md=__doc__,
)
def restore_topic() -> None:
    plan = PlanRestoreOperator(task_id="plan", dry_run=forms.DRY_RUN)
    plan >> RestoreOperator(task_id="restore", pool=READER, execution_timeout=timedelta(hours=6))


restore_topic()
