"""Stop all deletions at once, or let them go on: the switch for whoever has a doubt.

Only by hand. While deletions are stopped nothing goes, locally or remotely, whatever topics allow; copies go on. What
deletes just now stops within one batch. Anybody who may trigger this DAG may stop. A run with Lift ends the stop; it
fails unless `admins` of the rights file (read.service.rights.file) names the user who triggered it. A field that the
form has not, which every other DAG refuses, is left out here with a warning: a stop goes through.
"""

from __future__ import annotations

from airflow.sdk import Param, dag

from tiered_storage_airflow import forms
from tiered_storage_airflow.operators.deletion import StopDeletionsOperator
from tiered_storage_airflow.task_defaults import DEFAULT_ARGS


@dag(
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    tags=["tiered-storage", "safety"],
    default_args={**DEFAULT_ARGS, "settings": forms.SETTINGS, "pre_execute": forms.warn_of_unknown_fields},
    params={
        "lift": Param(False, type="boolean", title="Lift: let deletions go on (admins only)"),
        "reason": forms.reason_param("Reason", "Why, for whoever meets the stop."),
        "settings": forms.settings_param(),
    },
    doc_md=__doc__,
)
def stop_deletions() -> None:
    # In no pool of ours, and before all else: it must never wait for a slot of what it is to stop.
    StopDeletionsOperator(
        task_id="switch", lift="{{ params.lift }}", reason="{{ params.reason or '' }}", priority_weight=1_000_000
    )


stop_deletions()
