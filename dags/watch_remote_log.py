"""Take the metrics of all topics every five minutes: how far copying lags, what is stuck or failed, offsets that clash.

They go to Airflow's metrics (StatsD or OpenTelemetry), to the page with a day of history, and to Prometheus, which the
API server serves at read.service.metrics.port. A run is red if the offsets of a partition's tiers contradict each
other. Changes nothing.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.audit import WatchRemoteLogOperator


@dag_of_each_cluster(
    "watch_remote_log",
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
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
def watch_remote_log(_: Cluster) -> None:
    WatchRemoteLogOperator(task_id="look", settings=fields.SETTINGS)


watch_remote_log()
