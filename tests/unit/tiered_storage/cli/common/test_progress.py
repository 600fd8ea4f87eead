"""A long job shows how far it is on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import SEGMENT_BYTES, a_remote_log, unsynced
from tiered_storage.cli.common import progress as cli_progress
from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.progress import watched
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.progress import GroupProgress, JobSize, JobWatch
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

CHECK_SECONDS = 0.01
PATIENCE_SECONDS = 5.0


class StandardError(io.StringIO):
    """Standard error, on a terminal or not."""

    def __init__(self, *, on_terminal: bool) -> None:
        super().__init__()
        self._on_terminal = on_terminal

    def isatty(self) -> bool:
        return self._on_terminal


def wait_until_shown(text: str, err: io.StringIO) -> None:
    """Return once `err` has `text`, or after some seconds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while text not in err.getvalue() and time.monotonic() < until:
        time.sleep(CHECK_SECONDS)


@pytest.mark.parametrize(
    ("on_terminal", "shown"), [(False, "copied so far: 1 of 2 segments, 0.0 of 0.0 MB"), (True, "1 of 2 segments")]
)
def test_a_job_under_way_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_terminal: bool, shown: str
) -> None:
    err = StandardError(on_terminal=on_terminal)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(cli_progress, "REPORT_SECONDS", 0)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    with unsynced(), a_remote_log(tmp_path).open() as remote_log:
        job = JobFolder(remote_log.context.work, "runs/test/1")
        job.work.write(job.path("progress", 0), [GroupProgress(1, 1000)], GroupProgress)
        look_ms = round(1000 * CHECK_SECONDS)
        with watched(job, JobSize(1, 2, 2000), 4 * look_ms, lambda: None, Output(as_json=False)):
            wait_until_shown(shown, err)
    assert shown in err.getvalue()
    assert ("copied so far" in err.getvalue()) is not on_terminal


def test_copy_shows_its_progress_and_a_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path)
    copy_data = ObjectRemoteStorageManager.copy_log_segment_data

    def slowly(storage: ObjectRemoteStorageManager, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        assert isinstance(sys.stderr, io.StringIO)
        wait_until_shown("copied so far: ", sys.stderr)
        return copy_data(storage, metadata, data)

    monkeypatch.setattr(ObjectRemoteStorageManager, "copy_log_segment_data", slowly)
    monkeypatch.setattr(cli_progress, "JobWatch", partial(JobWatch, check_seconds=CHECK_SECONDS))
    monkeypatch.setattr(cli_progress, "REPORT_SECONDS", 0)

    done = run_on(files, "copy")

    assert done.exit_code == 0
    assert mentions(done.err, "0 of 3 segments")
    assert f"Copied: 3 segments, {3 * SEGMENT_BYTES / 1000:.1f} kB" in done.out
