"""What a run did: kept in the work area, a line of the log, and for others to take (XCom).

runs/{run}/summary.json            RunSummary: a line for each task that told its figures
runs/{run}/{try}/{name}.jsonl      what a task really did in that try, one by one: deleted, trimmed, restored, ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tiered_storage_airflow.run_time import run_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager

Done = TypeVar("Done")
Figure = int | str | list[str]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one task of a run, by name; times are ms."""

    dag_id: str
    run_id: str
    task_id: str
    written_at: int
    figures: Mapping[str, Figure]


def summary_path(context: Mapping[str, Any]) -> str:
    """Return where in the work area a run's summary is."""
    return f"runs/{run_folder(context)}/summary.json"


def summarize(remote_log: RemoteLogManager, context: Context, log: Any, **figures: Figure) -> None:
    """Keep the task's figures beside those of the run's other tasks; its XCom `summary` has the path of them all.

    What the task told in an earlier try goes.
    """
    dag_run, task = context["dag_run"], context.get("ti")
    task_id = "" if task is None else task.task_id
    summary = RunSummary(dag_run.dag_id, dag_run.run_id, task_id, remote_log.clock(), figures)
    others = [one for one in remote_log.work.read_if_there(summary_path(context), RunSummary) if one.task_id != task_id]
    remote_log.work.write(summary_path(context), [*others, summary], RunSummary)
    told = (f"{name.replace('_', ' ')}: {_shown(value)}" for name, value in figures.items())
    log.info("summary: %s", ", ".join(told))
    if task is not None:
        task.xcom_push(key="summary", value=summary_path(context))


def keep_done(
    remote_log: RemoteLogManager, context: Context, name: str, done: Iterable[Done], kind: type[Done]
) -> None:
    """Keep what the task did in this try, one by one, as `name`; an earlier try's stays beside it."""
    task = context.get("ti")
    number = 1 if task is None else task.try_number
    remote_log.work.write(f"runs/{run_folder(context)}/{number}/{name}.jsonl", done, kind)


def _shown(value: Figure) -> str:
    if isinstance(value, list):
        return " ".join(value) if value else "none"
    return f"{value:,}" if isinstance(value, int) else value
