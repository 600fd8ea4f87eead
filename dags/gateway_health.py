"""Check the gateway every five minutes, as a client: send a record to the canary topic, read it and an old remote one.

A run is red if the gateway cannot do one of these; its message says where, and what to do. The DAG exists where
gateway.canary.topic is set. It writes one small record a run to that topic, and changes nothing else.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.audit import GatewayHealthOperator


@dag_of_each_cluster(
    "gateway_health",
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "gateway"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={"settings": fields.settings_param()},
    doc_md=__doc__,
    is_wanted=lambda cluster: cluster.has_canary,
)
def gateway_health(_: Cluster) -> None:
    GatewayHealthOperator(task_id="check", settings=fields.SETTINGS)


gateway_health()
