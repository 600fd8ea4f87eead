"""Audit the remote log every night: references, gaps and sizes; on request every checksum too.

It changes nothing. A run fails if it finds an anomaly; its report names each one.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, Param

from tiered_storage_airflow.clusters import DEFAULT_ARGS, LONG_RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.audit import VerifySegmentsOperator


@dag_of_each_cluster(
    "audit_remote_log",
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=LONG_RUN_TIMEOUT,
    tags=["tiered-storage", "audit"],
    default_args=DEFAULT_ARGS,
    params={
        **fields.common_params(),
        "deep": Param(False, type="boolean", title="Read every byte back and check every checksum"),
    },
    doc_md=__doc__,
)
def audit_remote_log(cluster: Cluster) -> None:
    VerifySegmentsOperator(
        task_id="audit",
        deep="{{ params.deep }}",
        topics=fields.TOPICS,
        partitions=fields.PARTITIONS,
        must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS,
        conn_id="spark_default",
        pool=cluster.pool("remote_log_reader"),
        execution_timeout=timedelta(hours=6),
    )


audit_remote_log()
