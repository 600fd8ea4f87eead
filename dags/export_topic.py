"""Export a topic to Parquet, a day at a time. Spark reads the records of the run's interval from the store.

A second run over the same records changes nothing, so backfills over past days give the same files. A run exports only
records that are copied. The next runs export what is copied later: they also check the earlier intervals. Without a
topic a run does nothing.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from tiered_storage_airflow.clusters import DEFAULT_ARGS, LONG_RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.forms.topic_forms import EXPORT_FORM, TOPIC_VARIABLE
from tiered_storage_airflow.operators.tables import ExportTopicOperator, PlanExportOperator

TOPIC = f"{{{{ params.topic or var.value.get({fields.of_cluster(TOPIC_VARIABLE)}, '') }}}}"


@dag_of_each_cluster(
    "export_topic",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=LONG_RUN_TIMEOUT,
    tags=["tiered-storage", "export"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params=EXPORT_FORM,
    doc_md=__doc__,
)
def export_topic(cluster: Cluster) -> None:
    # A preview: the next task plans again, since more may be copied by then.
    plan = PlanExportOperator(
        task_id="plan",
        topic=TOPIC, topic_id="{{ params.topic_id or '' }}", partitions=fields.PARTITIONS,
        from_time="{{ params.from_time or '' }}", to_time="{{ params.to_time or '' }}",
        isolation="{{ params.isolation }}", codec="{{ params.codec }}", allow_gaps="{{ params.allow_gaps }}",
        max_disorder_minutes="{{ params.max_disorder_minutes }}", late_intervals="{{ params.late_intervals }}",
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    exported = ExportTopicOperator(
        task_id="export",
        conn_id="spark_default", pool=cluster.pool("remote_log_reader"), execution_timeout=timedelta(hours=6),
        topic=TOPIC, topic_id="{{ params.topic_id or '' }}", partitions=fields.PARTITIONS,
        from_time="{{ params.from_time or '' }}", to_time="{{ params.to_time or '' }}",
        isolation="{{ params.isolation }}", codec="{{ params.codec }}", allow_gaps="{{ params.allow_gaps }}",
        max_disorder_minutes="{{ params.max_disorder_minutes }}", late_intervals="{{ params.late_intervals }}",
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    plan >> exported


export_topic()
