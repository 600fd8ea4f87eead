"""Count remote segments every hour: an example of a DAG file, which reads like a list of steps.

It changes nothing; the task's XCom has the number of each partition.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from recipes.operator import CountSegmentsOperator
from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields


@dag_of_each_cluster(
    "count_segments",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "audit"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={"settings": fields.settings_param()},
    doc_md=__doc__,
)
def count_segments(_: Cluster) -> None:
    CountSegmentsOperator(task_id="count", settings=fields.SETTINGS)


count_segments()
