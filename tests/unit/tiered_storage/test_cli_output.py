from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.remote_logs import a_remote_log
from tiered_storage.cli_output import Output
from tiered_storage.cli_session import lease_owner, opened
from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.copy_plan import Finding


def test_rows_are_a_table_for_people_of_which_each_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("[red]a[/]" + "b" * 300, 1234567), (None, 5), (True, 0)]
    Output(as_json=False).rows("A title that is longer than the table", ("first column", "size"), rows, ignored="x")

    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "A title that is longer than the table"
    assert lines[1].startswith("first column")
    assert lines[3].startswith("[red]a[/]" + "b" * 300)
    assert lines[3].endswith("1,234,567")
    assert lines[4] == "5"
    assert lines[5].split() == ["yes", "0"]


def test_rows_are_one_document_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).rows("Title", ("first column", "size"), [("a", 1), (Path("/b"), None)], total=3)

    assert json.loads(capsys.readouterr().out) == {
        "rows": [{"first_column": "a", "size": 1}, {"first_column": "/b", "size": None}],
        "total": 3,
    }


def test_no_rows_are_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).rows("A title that is longer than the table", ("column",), [])

    assert capsys.readouterr().out.splitlines()[0] == "A title that is longer than the table"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_stands_beside_a_result_goes_to_standard_error_as_it_is(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(as_json)
    output.say("[bold]" + "x" * 200)
    output.findings("error", [Finding("orders-0", "broken [1]"), Finding("orders-1", "too")])

    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "[bold]" + "x" * 200,
        "error: orders-0: broken [1]",
        "error: orders-1: too",
    ]


def test_a_remote_log_is_open_for_the_time_of_a_command(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with opened(files.config, Output(as_json=True)) as remote_log:
        assert remote_log.clock is wall_clock
        assert remote_log.settings.log_dirs == (files.log_directory,)

    with pytest.raises(ConfigurationError), opened(tmp_path / "missing.yaml", Output(as_json=True)):
        pass


def test_each_process_holds_leases_under_a_name_of_its_own() -> None:

    assert lease_owner("copy") == lease_owner("copy")
    assert lease_owner("copy") != lease_owner("expire")
    assert lease_owner("copy").endswith(f"/{os.getpid()}")
