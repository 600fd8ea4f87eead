from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import a_remote_log
from tiered_storage_airflow.runs.summary import RunSummary
from tiered_storage_airflow.web_app import report_page

FOLDER = "runs/a-run"


def test_whatever_ids_names_and_figures_say_is_shown_as_text(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script>"
    with a_remote_log(tmp_path).open() as remote_log:
        summary = RunSummary(evil, evil, evil, 1_700_000_000_000, {evil: evil, "failed": [evil], "bytes": 1_234_567})
        remote_log.context.work.write_report(f"{FOLDER}/plan/summary.json", [summary], RunSummary)
        page = report_page(evil, evil, remote_log.context.work, FOLDER, ["plan/summary.json", f"{evil}.jsonl"])
    assert "<script" not in page
    assert "1,234,567" in page
    assert "2023-11-14 22:13:20 UTC" in page
    assert "?file=%3Cscript%3E" in page


def test_the_figures_of_every_task_are_shown(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        for number, task in enumerate(("plan", "finish", "export[0]", "export[1]")):
            summary = RunSummary("a_dag", "a run", task, 1_700_000_000_000 + number, {task: 7})
            path = f"{FOLDER}/{task.replace('[', '/map-').removesuffix(']')}/summary.json"
            remote_log.context.work.write_report(path, [summary], RunSummary)
        page = report_page("a_dag", "a run", remote_log.context.work, FOLDER, remote_log.context.work.names(FOLDER))
    found = [page.index(f"<th>{task}</th><td>7</td>") for task in ("plan", "finish", "export[0]", "export[1]")]
    assert found == sorted(found)  # in the order of the reports
    assert "Reported by export[1]" in page


@pytest.mark.parametrize("written_at", [10**20, -(10**20), 10**400])
def test_figures_without_a_time_are_shown(tmp_path: Path, written_at: int) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        summary = RunSummary("a_dag", "a run", "plan", written_at, {"bytes": 7})
        remote_log.context.work.write_report(f"{FOLDER}/plan/summary.json", [summary], RunSummary)
        page = report_page("a_dag", "a run", remote_log.context.work, FOLDER, ["plan/summary.json"])
    assert "Reported by plan at " in page


def test_a_run_without_reports_has_a_page(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        remote_log.context.work.write_report(f"{FOLDER}/1/job.json", [], RunSummary)
        assert remote_log.context.work.names(FOLDER) == ["1/job.json"]
        page = report_page("a_dag", "a run", remote_log.context.work, FOLDER, remote_log.context.work.names(FOLDER))
        assert remote_log.context.work.names("runs/another") == []
    assert "No task" in page
    assert "?file=1%2Fjob.json" in page
