"""Show what the deleting DAGs would delete now, in the local logs and in the remote tier. Deletes nothing itself.

Look here before you unpause enforce_local_retention or expire_remote_segments. Triggering a paused DAG unpauses it, and
its scheduled run may start before the run that you triggered. This DAG is always on and has no schedule.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.expiry import PlanExpiryOperator
from tiered_storage_airflow.operators.local_retention import PlanLocalRetentionOperator

WANTED = "{{ params.what in ('both', '%s') }}"


@dag_of_each_cluster(
    "plan_deletions",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "retention"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        "what": Param("both", type="string", enum=["both", "local", "remote"], title="Which tier"),
        **fields.common_params(),
        "max_segments": fields.max_segments_param(
            "local.retention.max.segments.per.run of the settings, and all that are past total retention"
        ),
    },
    doc_md=__doc__,
)
def plan_deletions(_: Cluster) -> None:
    # No form field feeds dry_run, so it cannot be switched off here.
    PlanLocalRetentionOperator(
        task_id="local_retention", wanted=WANTED % "local", max_segments=fields.MAX_SEGMENTS,
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=True,
    )  # fmt: skip
    PlanExpiryOperator(
        task_id="expiry", wanted=WANTED % "remote", max_segments=fields.MAX_SEGMENTS,
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=True,
    )  # fmt: skip


plan_deletions()
