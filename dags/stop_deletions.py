"""Stop all deletions at once, or allow them again. If in doubt, stop them.

Manual only. While the stop holds, nothing is deleted locally or remotely, whatever the topics allow; copies continue.
A deletion under way stops within one batch. Anybody who may trigger this DAG may stop. A run with Lift ends the stop;
it fails unless `admins` of the rights file (read.service.rights.file) names the user who triggered it. This DAG
ignores an unknown form field with a warning, so that the stop succeeds; every other DAG rejects it.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.deletion import StopDeletionsOperator


@dag_of_each_cluster(
    "stop_deletions",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    # A stop never waits for another run, such as one with Lift that retries.
    max_active_runs=100,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "safety"],
    default_args=DEFAULT_ARGS,
    params={
        "lift": Param(False, type="boolean", title="Lift: allow deletions again (admins only)"),
        "reason": fields.reason_param("Reason", "The reason, for whoever finds deletions stopped."),
        "settings": fields.settings_param(),
    },
    doc_md=__doc__,
)
def stop_deletions(_: Cluster) -> None:
    # In none of our pools and with the highest priority: it must never wait for a slot held by what it stops.
    StopDeletionsOperator(
        task_id="switch", lift="{{ params.lift }}", reason="{{ params.reason or '' }}", settings=fields.SETTINGS,
        priority_weight=1_000_000,
    )  # fmt: skip


stop_deletions()
