"""What a run did, in a few figures: kept in the work area, a line of the log, and for others to take (XCom)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiered_storage_airflow.run_time import run_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager

Figure = int | str | list[str]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one run, by name, as its task `task_id` told them; times are ms."""

    dag_id: str
    run_id: str
    task_id: str
    written_at: int
    figures: Mapping[str, Figure]


def summary_path(context: Mapping[str, Any]) -> str:
    """Return where in the work area a run's summary is: a task that knows more writes over an earlier one's."""
    return f"runs/{run_folder(context)}/summary.json"


def summarize(remote_log: RemoteLogManager, context: Context, log: Any, **figures: Figure) -> None:
    """Keep the run's figures so far; where a run is asked for its XCom `summary`, it has their path."""
    dag_run, task = context["dag_run"], context.get("ti")
    task_id = "" if task is None else task.task_id
    summary = RunSummary(dag_run.dag_id, dag_run.run_id, task_id, remote_log.clock(), figures)
    remote_log.work.write(summary_path(context), [summary], RunSummary)
    told = (f"{name.replace('_', ' ')}: {_shown(value)}" for name, value in figures.items())
    log.info("summary: %s", ", ".join(told))
    if task is not None:
        task.xcom_push(key="summary", value=summary_path(context))


def _shown(value: Figure) -> str:
    if isinstance(value, list):
        return " ".join(value) if value else "none"
    return f"{value:,}" if isinstance(value, int) else value
