"""What a run takes as its owner's name, its window and its now: the rules of time, in one place.

Scheduled and manual runs take everything as it is at this moment. A backfill takes what was due by its window's end.
Runs that an asset event started, and manual ones, may have no data interval at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

_BACKFILL = "backfill"  # DagRunType.BACKFILL_JOB, which the task SDK does not export
_MANUAL = "manual"
_FOLDER_NAME_LENGTH = 180
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{_FOLDER_NAME_LENGTH - 1}}}")


def is_backfill(context: Mapping[str, Any]) -> bool:
    """Return whether the run belongs to a backfill."""
    return _run_type(context) == _BACKFILL


def is_asked_for(context: Mapping[str, Any]) -> bool:
    """Return whether a person asked for the run: by hand, or by a backfill; not a schedule or an asset event."""
    return _run_type(context) in {_MANUAL, _BACKFILL}


def was_taken_over(context: Mapping[str, Any]) -> bool:
    """Return whether a backfill may have run again, with parameters of its own, a run that was there before it.

    Such a run keeps its id and the name of who triggered it. A backfill's run that somebody cleared looks the same.
    """
    dag_run = context["dag_run"]
    is_new = str(dag_run.run_id).startswith(f"{_BACKFILL}__") and not getattr(dag_run, "clear_number", 0)
    return is_backfill(context) and not is_new


def window_end(context: Mapping[str, Any]) -> int | None:
    """Return the end of a backfill's window (ms), None for every other run."""
    if not is_backfill(context):
        return None
    return int(context["dag_run"].data_interval_end.timestamp() * 1000)


def data_interval(context: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the run's data interval (ms, the end exclusive); None if it has none, or one of no time."""
    begin, end = (getattr(context["dag_run"], f"data_interval_{name}", None) for name in ("start", "end"))
    if begin is None or end is None or begin >= end:
        return None
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


def run_now(context: Mapping[str, Any], wall_clock_ms: int) -> int:
    """Return what the run takes as now (ms): the smaller of a backfill's window end and the wall clock."""
    end = window_end(context)
    return wall_clock_ms if end is None else min(end, wall_clock_ms)


def lease_owner(context: Mapping[str, Any]) -> str:
    """Return the name under which the run holds leases: the same for all its tries, so that a retry takes over."""
    dag_run = context["dag_run"]
    return _full_name(dag_run.dag_id, dag_run.run_id)


def task_lease_owner(context: Mapping[str, Any]) -> str:
    """Return the name under which one task of the run holds leases, which no other task of the run may take over.

    The same for all tries of the task; mapped ones are tasks of their own.
    """
    return f"{lease_owner(context)}/{task_name(context)}"


def run_folder(context: Mapping[str, Any]) -> str:
    """Return the run's folder name in the work area; see folder_name."""
    dag_run = context["dag_run"]
    return folder_name(dag_run.dag_id, dag_run.run_id)


def own_path(context: Mapping[str, Any], path: str | None) -> str:
    """Return `path`, where an earlier task of this run left a message.

    Raises AirflowFailException for another run's: its plan was made under another form, for a dry run perhaps; and for
    none, which a plan with nothing in it leaves to tasks that somebody clears alone.
    """
    if not path:
        raise AirflowFailException(
            "nothing was done: the task before left nothing to do to this one, so clear that one instead, or trigger a "
            "new run"
        )
    folder = f"runs/{run_folder(context)}/"
    if not path.startswith(folder):
        raise AirflowFailException(
            f"{path}: is no message of this run, whose messages are in {folder}: nothing was done. Find out who changed"
            " the XCom of the task before, and trigger a new run"
        )
    return path


def task_folder(context: Mapping[str, Any]) -> str:
    """Return the folder of one task in the work area, in that of its run; mapped ones have folders of their own."""
    task = context.get("ti")
    if task is None:
        return run_folder(context)
    name = task.task_id if _PLAIN_NAME.fullmatch(task.task_id) else _stored_name(task.task_id)
    number = _map_index(task)
    return f"{run_folder(context)}/{name}" if number is None else f"{run_folder(context)}/{name}/map-{number}"


def task_name(context: Mapping[str, Any]) -> str:
    """Return the task's id, with its number behind where it is mapped; nothing if the context is of no task."""
    task = context.get("ti")
    if task is None:
        return ""
    number = _map_index(task)
    return str(task.task_id) if number is None else f"{task.task_id}[{number}]"


def folder_name(dag_id: str, run_id: str) -> str:
    """Return the folder name of a run in the work area: of characters and a length that every store takes, its own.

    A run's id may be anything; the hash tells apart those that would look the same, also where somebody tries to find
    one that leads into another run's folder.
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
