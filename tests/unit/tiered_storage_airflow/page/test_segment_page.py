from __future__ import annotations

from pathlib import Path

import pytest

from support import tables
from support.remote_logs import NOW, a_remote_log, begin, carry_out, segments_of, unsynced
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery
from tiered_storage_airflow.page import segment_page
from tiered_storage_airflow.page.segment_page import _search


def copied_in(remote_log: RemoteLogManager, folder: str) -> None:
    """Copy all that is due as a run of copy_segments does, whose job has that folder."""
    remote_log.commit_copy(carry_out(remote_log, begin(remote_log, "copy_segments/a run"), folder))


def test_the_run_that_copied_a_segment_is_found_after_those_that_exported_it(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with unsynced(), files.open() as remote_log:
        copied_in(remote_log, "runs/copy_segments_a_run/copy/1")
        request = ExportRequest(
            TableQuery("orders"), Interval(NOW, NOW + 60_000), remote_log.context.settings.export_url
        )
        tables.carry_out(remote_log, request, "runs/zzz/export/1/export/late-0")
        for segment in segments_of(remote_log):
            found = _search(remote_log, segment.segment_id.id)
            assert found is not None
            assert (found.dag_id, found.run_id) == ("copy_segments", "a run")
        assert _search(remote_log, "A" * 22) is None


def test_the_run_of_a_copy_is_found_among_many_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_page, "MOST_FILES", 2)
    files = a_remote_log(tmp_path)
    with unsynced(), files.open() as remote_log:
        copied_in(remote_log, "runs/copy_segments_a_run/copy/1")
        for number in range(3):
            times = Interval(NOW + number * 10_000, NOW + (number + 1) * 10_000)
            request = ExportRequest(TableQuery("orders"), times, remote_log.context.settings.export_url)
            tables.carry_out(remote_log, request, f"runs/zzz/export/{number}/export")
        assert all(_search(remote_log, segment.segment_id.id) for segment in segments_of(remote_log))
