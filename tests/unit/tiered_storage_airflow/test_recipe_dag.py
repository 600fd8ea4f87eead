"""The recipe of CONTRIBUTING.md for a DAG with its operator, carried out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from support.remote_logs import a_copied_remote_log

if TYPE_CHECKING:
    from airflow.sdk import Context


def test_a_dag_is_a_file_and_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recipes.dag import count_segments
    from recipes.operator import CountSegmentsOperator

    files = a_copied_remote_log(tmp_path, {("orders", 0): 3, ("payments", 0): 2})
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(files.config))
    [dag] = count_segments()

    context = SimpleNamespace(dag_id="count_segments", run_id="by hand", run_type="manual")
    task = dag.get_task("count")
    assert isinstance(task, CountSegmentsOperator)
    task.settings = {}  # Airflow renders the template
    counted = task.execute(cast("Context", {"dag_run": context, "params": {}}))

    assert dag.task_ids == ["count"]
    assert counted == 5
