"""What a run did: files in the work area, a line in the log, and an XCom.

runs/{run}/{task}/summary.json         RunSummary: the task's figures
runs/{run}/{task}/{name}.jsonl         the task's message to later tasks, which find it by an XCom: its plan, ...
runs/{run}/{task}/{try}/{name}.jsonl   each thing that the task did in that try: deleted, trimmed, restored, ...
runs/{run}/{task}/{try}/...            the messages between that try and its Spark job

Tasks of a run, and instances of a mapped task, may run at the same time, and a DAG may have several that plan or copy:
each writes to its own folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tiered_storage_airflow.runs.task_context import task_folder, task_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager

Done = TypeVar("Done")
Figure = int | str | list[str]

SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one task of a run, by name; times are ms. The `task_id` of a mapped task ends with its index."""

    dag_id: str
    run_id: str
    task_id: str
    written_at: int
    figures: Mapping[str, Figure]


def summary_path(context: Mapping[str, Any]) -> str:
    """Return the path of a task's summary in the work area."""
    return f"runs/{task_folder(context)}/{SUMMARY}"


def summarize(remote_log: RemoteLogManager, context: Context, log: Any, **figures: Figure) -> None:
    """Log the task's figures and write them to the path in its XCom `summary`, replacing those of an earlier try."""
    dag_run, task = context["dag_run"], context.get("ti")
    summary = RunSummary(dag_run.dag_id, dag_run.run_id, task_name(context), remote_log.context.clock(), figures)
    remote_log.context.work.write_report(summary_path(context), [summary], RunSummary)
    shown = (f"{name.replace('_', ' ')}: {_shown(value)}" for name, value in figures.items())
    log.info("summary: %s", ", ".join(shown))
    if task is not None:
        task.xcom_push(key="summary", value=summary_path(context))


def keep_done(
    remote_log: RemoteLogManager, context: Context, name: str, done: Iterable[Done], kind: type[Done]
) -> None:
    """Write the list `name` of what the task did in this try; the lists of earlier tries stay."""
    task = context.get("ti")
    number = 1 if task is None else task.try_number
    remote_log.context.work.write_report(f"runs/{task_folder(context)}/{number}/{name}.jsonl", done, kind)


def _shown(value: Figure) -> str:
    if isinstance(value, list):
        return " ".join(value) if value else "none"
    return f"{value:,}" if isinstance(value, int) else value
