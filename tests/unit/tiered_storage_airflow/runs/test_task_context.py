from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.utils.types import DagRunType
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage_airflow.runs.task_context import (
    effective_now,
    is_asked_for,
    is_backfill,
    lease_owner,
    own_path,
    run_folder,
    task_folder,
    task_lease_owner,
    window_end,
)

END = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)
END_MS = 1_795_262_700_000


class RunType(StrEnum):
    BACKFILL = "backfill"
    SCHEDULED = "scheduled"


def context(run_type: str = RunType.SCHEDULED, run_id: str = "a run", **of_run: Any) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(run_type=run_type, run_id=run_id, dag_id="copy_segments", **of_run)}


def test_runs_are_asked_for_unless_a_schedule_or_an_asset_begins_them() -> None:
    unasked = {each for each in DagRunType if not is_asked_for(context(each))}
    assert unasked == {DagRunType.SCHEDULED, DagRunType.ASSET_TRIGGERED, DagRunType.ASSET_MATERIALIZATION}


@pytest.mark.parametrize("run_type", [RunType.BACKFILL, "backfill"])
def test_a_backfill_is_known_by_the_runs_type(run_type: str) -> None:
    assert is_backfill(context(run_type))


@pytest.mark.parametrize("run_type", [RunType.SCHEDULED, "scheduled", "manual", "asset_triggered"])
def test_other_runs_have_no_window_whatever_their_interval(run_type: str) -> None:
    assert window_end(context(run_type, data_interval_end=END)) is None
    assert window_end(context(run_type, data_interval_end=None)) is None
    assert effective_now(context(run_type, data_interval_end=END), 7) == 7


def test_a_backfill_takes_its_windows_end_as_now_but_never_a_time_to_come() -> None:
    run = context(RunType.BACKFILL, data_interval_end=END)
    assert window_end(run) == END_MS
    assert effective_now(run, END_MS + 1) == END_MS
    assert effective_now(run, END_MS - 1) == END_MS - 1


TASKS = [("export", -1), ("export", 0), ("export", 1), ("export-1", -1), ("map-1", -1), ("1", -1), ("..", -1)]


def of_task(task_id: str, map_index: int | None, try_number: int = 1) -> dict[str, Any]:
    return {**context(), "ti": SimpleNamespace(task_id=task_id, map_index=map_index, try_number=try_number)}


def test_tasks_of_a_run_have_owners_and_folders_of_their_own() -> None:
    assert len({task_lease_owner(of_task(*task)) for task in TASKS}) == len(TASKS)
    assert len({task_folder(of_task(*task)) for task in TASKS}) == len(TASKS)
    assert task_lease_owner(of_task("export", 1)) == "copy_segments/a run/export[1]"
    assert task_folder(of_task("export", 1)) == f"{run_folder(context())}/export/map-1"
    assert task_folder(of_task("export", None)) == f"{run_folder(context())}/export"


def test_all_tries_of_a_task_hold_leases_under_one_name() -> None:
    assert task_lease_owner(of_task("export", 3, 2)) == task_lease_owner(of_task("export", 3))


@given(st.text(min_size=1, max_size=250))
def test_a_tasks_folder_is_in_its_runs(task_id: str) -> None:
    folder = task_folder(of_task(task_id, -1)).removeprefix(run_folder(context()))
    assert re.fullmatch(r"/[A-Za-z0-9._-]{1,197}", folder)
    assert folder not in {"/.", "/.."}


def test_all_tries_of_a_run_hold_leases_under_one_name() -> None:
    assert lease_owner(context(run_id="manual__1")) == "copy_segments/manual__1"


@given(st.text(min_size=1, max_size=250))
def test_a_runs_folder_is_a_name_that_every_store_takes(run_id: str) -> None:
    folder = run_folder(context(run_id=run_id))
    assert re.fullmatch(r"copy_segments_[A-Za-z0-9._-]{1,186}", folder)


def test_runs_whose_ids_look_alike_have_folders_of_their_own() -> None:
    ids = ["a:b", "a/b", "a b", "a+b", "a_b", "a__b", "../b", "x" * 250, "x" * 251]
    assert len({run_folder(context(run_id=run_id)) for run_id in ids}) == len(ids)


def test_a_runs_folder_is_recognised_by_its_name() -> None:
    folder = run_folder(context(run_id="manual__2026-11-21T12:00:00+00:00"))
    assert folder.startswith("copy_segments_manual__2026-11-21T12_00_00_00_00-")


@pytest.mark.parametrize("path", [None, "", "runs/another/plan.jsonl"])
def test_a_task_takes_no_message_but_its_own_runs(path: str | None) -> None:
    with pytest.raises(AirflowFailException, match="new run"):
        own_path(context(), path)
