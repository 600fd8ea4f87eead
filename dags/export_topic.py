"""Export a topic to Parquet, a day at a time: the records of the run's interval, out of the store, by Spark.

A run over the same records changes nothing, so backfills over past days give the same files. Only what is copied can be
exported: what is copied later comes with the next runs, which also look at the earlier intervals. Without a topic a run
does nothing.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from tiered_storage_airflow.export_form import FORM, TAKEN
from tiered_storage_airflow.forms import DRY_RUN
from tiered_storage_airflow.operators.tables import ExportTopicOperator, PlanExportOperator
from tiered_storage_airflow.task_defaults import METADATA, READER, RETRIED, SCHEDULED


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    **SCHEDULED,
    max_active_runs=1,
    tags=["tiered-storage", "export"],
    default_args={**RETRIED, "pool": METADATA, **TAKEN, "dry_run": DRY_RUN},
    params=FORM,
    doc_md=__doc__,
)
def export_topic() -> None:
    plan = PlanExportOperator(task_id="plan")
    plan >> ExportTopicOperator(task_id="export", pool=READER, execution_timeout=timedelta(hours=6))


export_topic()
