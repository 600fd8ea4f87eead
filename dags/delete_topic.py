"""Delete everything remote of one incarnation of a topic. Only by hand, and only shown unless asked for more.

The topic has to be disabled, and its remote deletion allowed. What is local stays. Readers see no more of it at once;
the first run of expire_remote_segments after remote.log.deletion.grace.ms deletes its objects. Until then the DAG
undelete brings it back.
"""

from __future__ import annotations

from airflow.sdk import Param, dag

from tiered_storage_airflow.forms import DRY_RUN, SETTINGS, dry_run_param, reason_param, settings_param, topic_param
from tiered_storage_airflow.operators.deletion import MarkTopicDeletedOperator, PlanTopicDeletionOperator
from tiered_storage_airflow.task_defaults import BY_HAND, DELETER, METADATA, RETRIED


@dag(
    schedule=None,
    **BY_HAND,
    max_active_runs=1,
    tags=["tiered-storage", "deletion"],
    default_args={**RETRIED, "pool": METADATA, "settings": SETTINGS, "dry_run": DRY_RUN},
    params={
        "topic": topic_param(),
        "topic_id": Param(
            None, type=["null", "string"], title="Topic id", description="Which life, where it had several."
        ),
        "dry_run": dry_run_param("Only show what would go", default=True),
        "confirmation": reason_param("Confirmation", "The topic's name once more, where it is to go."),
        "settings": settings_param(),
    },
    doc_md=__doc__,
)
def delete_topic() -> None:
    plan = PlanTopicDeletionOperator(task_id="plan", topic="{{ params.topic }}", topic_id="{{ params.topic_id or '' }}")
    MarkTopicDeletedOperator(
        task_id="mark_deleted",
        plan=plan.output,
        topic="{{ params.topic }}",
        confirmation="{{ params.confirmation or '' }}",
        pool=DELETER,
    )


delete_topic()
