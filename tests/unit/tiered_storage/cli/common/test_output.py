from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.remote_logs import a_remote_log
from tiered_storage.cli.common import output as cli_output
from tiered_storage.cli.common.output import Output, StreamedTable, show_duration
from tiered_storage.cli.common.session import lease_owner, opened
from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.model import Finding


def shown_table(capsys: pytest.CaptureFixture[str], columns: tuple[str, ...], *rows: tuple[object, ...]) -> list[str]:
    Output(as_json=False).rows("Title", columns, rows, ignored="x")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Title", ""]
    assert lines[-1] == ""
    return lines[2:-1]


def test_rows_are_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("[red]a[/]", 1234567, None), (None, 5, None), (True, 0, None)]

    assert shown_table(capsys, ("first column", "offset", "always empty"), *rows) == [
        " first column      offset",
        " ────────────────────────",
        " [red]a[/]      1,234,567",
        "                        5",
        " yes                    0",
    ]


def test_a_table_may_have_a_single_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_table(capsys, ("stopped", "said by"), (False, None)) == [" stopped", " ───────", "      no"]


def test_times_and_sizes_are_shown_as_people_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(1_700_000_000_000, 1_234_567_890, 5), (1_700_000_000_042, 999, 6), (10**18, 1500, 7)]

    assert shown_table(capsys, ("max timestamp", "bytes", "offset"), *rows)[2:] == [
        "     2023-11-14 22:13:20 UTC      1.2 GB        5",
        " 2023-11-14 22:13:20.042 UTC   999 bytes        6",
        "      1000000000000000000 ms      1.5 kB        7",
    ]


def test_values_too_long_for_a_line_stand_unbroken_under_their_row(capsys: pytest.CaptureFixture[str]) -> None:
    path, segment_id = "/var/lib/kafka/" + "x" * 90, "A-b_" * 5
    rows = [("orders-0", path, segment_id, "word " * 30), ("orders-1", None, segment_id, "short")]
    lines = shown_table(capsys, ("partition", "file", "segment id", "why"), *rows)

    assert [line for line in lines if len(line) > 80] == [f"       {path}"]
    assert lines[0].split() == ["partition", "segment", "id", "why"]
    assert lines[2].split()[:2] == ["orders-0", segment_id]
    assert "\n".join(lines).count("word") == 30
    assert lines[-1].split() == ["orders-1", segment_id, "short"]


def test_a_name_that_is_too_long_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown_table(capsys, ("topic", "partitions", "why"), ("t" * 70, 3, "word " * 30), ("orders", 4, "short"))

    assert lines[2] == f" {'t' * 70}"
    assert lines[3].split()[:2] == ["3", "word"]
    assert lines[-1].split() == ["orders", "4", "short"]
    assert max(map(len, lines)) <= 80


def test_no_line_of_a_streamed_table_is_wider_than_80_letters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a row after the first thousand needs more."""
    monkeypatch.setattr(cli_output, "_ROWS_AT_ONCE", 1)
    table = StreamedTable(("offset", "key", "value", "headers"))
    rows = [(1, "k", "v", 2), (2, "k" * 90, "a value", 0), (3, "", "", None)]
    for row in rows:
        table.add(row)
    table.finish()

    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        " offset   key   value   headers",
        " ──────────────────────────────",
        "      1   k     v             2",
        "      2                       0",
        "     key: " + "k" * 70,
        "     " + "k" * 20 + "  value: a value",
        "      3",
    ]


def test_a_terminal_that_is_wider_is_used(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    assert len(shown_table(capsys, ("a", "b"), ("x" * 50, "y" * 50))) == 3


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(604_800_000, "7 days"), (5_400_000, "90 minutes"), (7_200_000, "2 hours"), (1500, "1,500 ms"), (0, "0 days")],
)
def test_durations_are_whole_numbers_of_their_largest_unit(ms: int, shown: str) -> None:
    assert show_duration(ms) == shown


def test_rows_are_one_document_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).rows("Title", ("first column", "size"), [("a", 1), (Path("/b"), None)], total=3)

    assert json.loads(capsys.readouterr().out) == {
        "rows": [{"first_column": "a", "size": 1}, {"first_column": "/b", "size": None}],
        "total": 3,
    }


def test_no_rows_are_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    title = "A title that is longer than the table"
    Output(as_json=False).rows(title, ("column",), [])

    assert capsys.readouterr().out == f"{title}\n\n none\n\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_notes_and_findings_go_to_standard_error_as_they_are(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert remote_log.context.clock is wall_clock
        assert remote_log.context.settings.log_dirs == (files.log_directory,)

    with pytest.raises(ConfigurationError), opened(tmp_path / "missing.yaml", Output(as_json=True)):
        pass


def test_each_process_holds_leases_under_a_name_of_its_own() -> None:

    assert lease_owner("copy") == lease_owner("copy")
    assert lease_owner("copy") != lease_owner("expire")
    assert f"/{os.getpid()}/" in lease_owner("copy")
    command = "from tiered_storage.cli.common import session; print(session.lease_owner('copy').rpartition('/')[2])"
    other = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True).stdout.strip()
    assert other
    assert not lease_owner("copy").endswith(f"/{other}")
