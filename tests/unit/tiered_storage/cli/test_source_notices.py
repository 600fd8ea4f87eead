"""What a source reports beside partitions, such as a broker's clock that is wrong, in the runs that delete by age."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_on
from support.remote_logs import a_copied_remote_log
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource

NOTICE = "the clock of node 1 is an hour slow"


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize("command", ["retain", "expire"])
def test_runs_that_delete_by_age_report_what_the_source_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(LogDirectorySource, "notices", (NOTICE,))
    files = a_copied_remote_log(tmp_path)

    shown, document = run_on(files, command, *options), run_on(files, command, "--json", *options).document

    assert shown.exit_code == 0, shown.err
    assert NOTICE in shown.err
    assert [each["message"] for each in document["notices"]] == [NOTICE]
