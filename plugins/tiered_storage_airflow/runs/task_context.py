"""The time window of a run, its present time, its lease owner, and its folder in the work area.

Scheduled and manual runs take what is due now. A backfill takes what was due by the end of its window. Manual runs, and
those that an asset event started, may have no data interval.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

_BACKFILL = "backfill"  # DagRunType.BACKFILL_JOB, which the task SDK does not export
_MANUAL = "manual"
_BY_OPERATOR = "operator_triggered"  # TriggerDagRunOperator, whose runs earlier releases of Airflow called manual
_FOLDER_NAME_LENGTH = 180
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{_FOLDER_NAME_LENGTH - 1}}}")


def is_backfill(context: Mapping[str, Any]) -> bool:
    """Return whether the run belongs to a backfill."""
    return _run_type(context) == _BACKFILL


def is_asked_for(context: Mapping[str, Any]) -> bool:
    """Return whether a person or another DAG requested the run, by a trigger or a backfill.

    A schedule or an asset event is no request.
    """
    return _run_type(context) in {_MANUAL, _BY_OPERATOR, _BACKFILL}


def was_taken_over(context: Mapping[str, Any]) -> bool:
    """Return whether a backfill may have repeated an earlier run, with the backfill's own parameters.

    Such a run keeps its id and the name of the user who triggered it. A cleared run of a backfill looks the same.
    """
    dag_run = context["dag_run"]
    is_new = str(dag_run.run_id).startswith(f"{_BACKFILL}__") and not getattr(dag_run, "clear_number", 0)
    return is_backfill(context) and not is_new


def window_end(context: Mapping[str, Any]) -> int | None:
    """Return the end of a backfill's window (ms); None for every other run."""
    if not is_backfill(context):
        return None
    return int(context["dag_run"].data_interval_end.timestamp() * 1000)


def data_interval(context: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the run's data interval (ms, the end exclusive); None if it has none, or an empty one."""
    begin, end = (getattr(context["dag_run"], f"data_interval_{name}", None) for name in ("start", "end"))
    if begin is None or end is None or begin >= end:
        return None
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


def effective_now(context: Mapping[str, Any], wall_clock_ms: int) -> int:
    """Return the time (ms) that the run uses as the present: the wall clock, or a backfill's window end if earlier."""
    end = window_end(context)
    return wall_clock_ms if end is None else min(end, wall_clock_ms)


def lease_owner(context: Mapping[str, Any]) -> str:
    """Return the owner's name for the run's leases: the same for all tries, so that a retry takes them over."""
    dag_run = context["dag_run"]
    return _full_name(dag_run.dag_id, dag_run.run_id)


def task_lease_owner(context: Mapping[str, Any]) -> str:
    """Return the owner's name for the leases of one task, which no other task of the run may take over.

    It is the same for all tries of the task; each instance of a mapped task has its own.
    """
    return f"{lease_owner(context)}/{task_name(context)}"


def run_folder(context: Mapping[str, Any]) -> str:
    """Return the run's folder name in the work area; see folder_name."""
    dag_run = context["dag_run"]
    return folder_name(dag_run.dag_id, dag_run.run_id)


def own_path(context: Mapping[str, Any], path: object) -> str:
    """Return `path`, where an earlier task of this run wrote a message: the value of an XCom.

    Raises AirflowFailException for a path of another run, whose plan had another form and may have been for a dry run.
    Also raises it if there is no path: a task alone was cleared after an empty plan.
    """
    if not path:
        raise AirflowFailException(
            "nothing was done: the previous task left this one nothing to do; clear that task instead, or trigger a "
            "new run"
        )
    folder = f"runs/{run_folder(context)}/"
    if not isinstance(path, str) or not path.startswith(folder):
        raise AirflowFailException(
            f"nothing was done: {path} is not a message of this run, whose messages are in {folder}. Find out who "
            "changed the XCom of the previous task, and trigger a new run"
        )
    return path


def task_folder(context: Mapping[str, Any]) -> str:
    """Return the folder of one task in the work area, below that of its run; each mapped instance has its own."""
    task = context.get("ti")
    if task is None:
        return run_folder(context)
    name = task.task_id if _PLAIN_NAME.fullmatch(task.task_id) else _stored_name(task.task_id)
    number = _map_index(task)
    return f"{run_folder(context)}/{name}" if number is None else f"{run_folder(context)}/{name}/map-{number}"


def task_name(context: Mapping[str, Any]) -> str:
    """Return the task's id, followed by its index if it is mapped; empty if the context has no task."""
    task = context.get("ti")
    if task is None:
        return ""
    number = _map_index(task)
    return str(task.task_id) if number is None else f"{task.task_id}[{number}]"


def folder_name(dag_id: str, run_id: str) -> str:
    """Return the folder name of a run in the work area: unique, with characters and a length that every store accepts.

    A run's id may be any text. The hash keeps apart ids that differ only in replaced characters, and stops a made-up id
    from reaching another run's folder.
    """
    return _stored_name(_full_name(dag_id, run_id))


def _stored_name(text: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:_FOLDER_NAME_LENGTH]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _run_type(context: Mapping[str, Any]) -> str:
    run_type = context["dag_run"].run_type
    return str(getattr(run_type, "value", run_type))


def _map_index(task: Any) -> int | None:
    number = getattr(task, "map_index", None)
    return None if number is None or number < 0 else int(number)


def _full_name(dag_id: str, run_id: str) -> str:
    return f"{dag_id}/{run_id}"
