"""Bring a topic back from the store, into a log directory of a stopped broker or into a running cluster.

Manual only. It only shows the plan until you switch off Only show the plan. A directory gets all of the topic or
nothing. A cluster gets each committed record once, and a file maps old offsets to new ones. Clear a failed run to
continue it.
"""

from __future__ import annotations

from datetime import timedelta

from tiered_storage_airflow.clusters import DEFAULT_ARGS, LONG_RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.forms.topic_forms import RESTORE_FORM
from tiered_storage_airflow.operators.restore import PlanRestoreOperator, RestoreOperator


@dag_of_each_cluster(
    "restore_topic",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    dagrun_timeout=LONG_RUN_TIMEOUT,
    tags=["tiered-storage", "restore"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params=RESTORE_FORM,
    doc_md=__doc__,
)
def restore_topic(cluster: Cluster) -> None:
    # A preview: the next task plans again, since the store may have changed, and a retry continues.
    plan = PlanRestoreOperator(
        task_id="plan",
        topic="{{ params.topic }}", topic_id="{{ params.topic_id or '' }}", partitions=fields.PARTITIONS,
        from_time="{{ params.from_time or '' }}", to_time="{{ params.to_time or '' }}",
        from_offset="{{ '' if params.from_offset is none else params.from_offset }}",
        to_offset="{{ '' if params.to_offset is none else params.to_offset }}",
        target="{{ params.target }}", connection="{{ params.connection or '' }}",
        as_topic="{{ params.as_topic or '' }}", as_topic_id="{{ params.as_topic_id or '' }}",
        allow_gaps="{{ params.allow_gaps }}", settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    restored = RestoreOperator(
        task_id="restore", pool=cluster.pool("remote_log_reader"), execution_timeout=timedelta(hours=6),
        topic="{{ params.topic }}", topic_id="{{ params.topic_id or '' }}", partitions=fields.PARTITIONS,
        from_time="{{ params.from_time or '' }}", to_time="{{ params.to_time or '' }}",
        from_offset="{{ '' if params.from_offset is none else params.from_offset }}",
        to_offset="{{ '' if params.to_offset is none else params.to_offset }}",
        target="{{ params.target }}", connection="{{ params.connection or '' }}",
        as_topic="{{ params.as_topic or '' }}", as_topic_id="{{ params.as_topic_id or '' }}",
        allow_gaps="{{ params.allow_gaps }}", settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
        append="{{ params.append }}", validation="{{ params.validation }}",
    )  # fmt: skip
    plan >> restored


restore_topic()
