"""The page of one run: its figures, and the files of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered_storage_airflow.rendering import render
from tiered_storage_airflow.runs.summary import SUMMARY, RunSummary

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.work_area import WorkArea

MOST_BYTES_SHOWN = 5_000_000
"""How many bytes of a file are shown; all of it is in the work area."""


def report_page(dag_id: str, run_id: str, work: WorkArea, folder: str, names: Sequence[str]) -> str:
    """Return the page as HTML; `names` are those of the files in `folder`."""
    paths = [f"{folder}/{name}" for name in names if name.rpartition("/")[2] == SUMMARY]
    written = (summary for path in paths for summary in work.read_report(path, RunSummary))
    summaries = sorted(written, key=lambda summary: (summary.written_at, summary.task_id))
    return render(
        "run_report.html",
        dag_id=dag_id,
        run_id=run_id,
        summaries=summaries,
        names=names,
        folder=f"{work.url}/{folder}",
    )
