from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage_airflow.run_time import is_backfill, lease_owner, run_folder, run_now, window_end

END = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)
END_MS = 1_795_262_700_000


class RunType(StrEnum):
    BACKFILL = "backfill"
    SCHEDULED = "scheduled"


def context(run_type: str = RunType.SCHEDULED, run_id: str = "a run", **of_run: Any) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(run_type=run_type, run_id=run_id, dag_id="copy_segments", **of_run)}


@pytest.mark.parametrize("run_type", [RunType.BACKFILL, "backfill"])
def test_a_backfill_is_known_by_the_runs_type(run_type: str) -> None:
    assert is_backfill(context(run_type))


@pytest.mark.parametrize("run_type", [RunType.SCHEDULED, "scheduled", "manual", "asset_triggered"])
def test_other_runs_have_no_window_whatever_their_interval(run_type: str) -> None:
    assert window_end(context(run_type, data_interval_end=END)) is None
    assert window_end(context(run_type, data_interval_end=None)) is None
    assert run_now(context(run_type, data_interval_end=END), 7) == 7


def test_a_backfill_takes_its_windows_end_as_now_but_never_a_time_to_come() -> None:
    run = context(RunType.BACKFILL, data_interval_end=END)
    assert window_end(run) == END_MS
    assert run_now(run, END_MS + 1) == END_MS
    assert run_now(run, END_MS - 1) == END_MS - 1


def test_all_tries_of_a_run_hold_leases_under_one_name() -> None:
    assert lease_owner(context(run_id="manual__1")) == "copy_segments/manual__1"


@given(st.text(min_size=1, max_size=250))
def test_a_runs_folder_is_a_name_that_every_store_takes(run_id: str) -> None:
    folder = run_folder(context(run_id=run_id))
    assert re.fullmatch(r"copy_segments_[A-Za-z0-9._-]{1,186}", folder)


def test_runs_whose_ids_look_alike_have_folders_of_their_own() -> None:
    ids = ["a:b", "a/b", "a b", "a+b", "a_b", "a__b", "../b", "x" * 250, "x" * 251]
    assert len({run_folder(context(run_id=run_id)) for run_id in ids}) == len(ids)


def test_a_runs_folder_can_be_told_by_its_name() -> None:
    folder = run_folder(context(run_id="manual__2026-11-21T12:00:00+00:00"))
    assert folder.startswith("copy_segments_manual__2026-11-21T12_00_00_00_00-")
