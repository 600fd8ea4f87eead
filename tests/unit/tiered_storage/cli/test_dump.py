from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from golden.logs import GoldenLogs
from golden.older_formats import OLDER_LOGS
from support.command_line import CommandResult, mentions, run

GOLDEN = GoldenLogs(Path(__file__).parents[3] / "golden")


def lines(result: CommandResult, kind: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in result.out.splitlines()]
    return [line for line in found if kind in (None, line["type"])]


def test_a_log_is_a_table_of_batches() -> None:
    log = GOLDEN.partition("transactions") / "00000000000000000000.log"
    result = run("dump", log)
    assert (result.exit_code, result.err) == (0, "")
    title, _, names, rule, first, under, *_ = result.out.splitlines()
    assert title == f"{log}: log"
    assert names.split() == ["baseOffset", "count", "isControl", "position", "size", "magic", "crc", "isvalid"]
    assert under.split()[:4] == ["lastOffset:", "5", "baseSequence:", "0"]
    assert set(rule.strip()) == {"─"}
    assert first.split()[:2] == ["0", "6"]
    assert first.endswith("yes")
    assert max(map(len, result.out.splitlines()[1:])) <= 80


def test_messages_of_older_formats_are_rows_of_the_same_table() -> None:
    log = OLDER_LOGS.partition("mixed") / "00000000000000000000.log"
    result = run("dump", "--records", log)
    assert (result.exit_code, result.err) == (0, "")
    names = result.out.splitlines()[2]
    assert names.split() == ["baseOffset", "count", "isControl", "position", "size", "magic", "crc", "isvalid"]
    assert "CreateTime: 17" in result.out
    assert "NoTimestampType: -1" in result.out
    shown = lines(run("dump", "--json", log), "batch")
    assert {row["magic"] for row in shown} == {0, 1, 2}
    assert [row["baseOffset"] for row in shown if row["magic"] == 0 and row["compresscodec"] == "gzip"] == [6]


def test_with_records_each_record_is_a_line_after_its_batch() -> None:
    result = run("dump", "--records", GOLDEN.partition("headers") / "00000000000000000000.log")
    assert result.exit_code == 0
    assert "\x1b" not in result.out
    assert "headers: [again=1, again=null, other=\\xff\\x00, again=1]" in result.out
    assert "key: \\x00\\xff  value: \\xfe\\n\\x1b" in result.out
    records = [line for line in result.out.splitlines() if line.startswith("   | offset: ")]
    assert len(records) == 10


def test_markers_and_both_times_are_shown() -> None:
    transactions = run("dump", "--records", GOLDEN.partition("transactions")).out
    assert "endTxnMarker: ABORT  coordinatorEpoch: 0" in transactions
    bootstrap = run("dump", "--records", GOLDEN.log_dir / "bootstrap.checkpoint").out.replace("\n   | ", "  ")
    assert 'controlType: SNAPSHOT_HEADER  control: {"version": 0, "lastContainedLogTimestamp": 0}' in bootstrap
    stamped = run("dump", "--records", "--json", GOLDEN.partition("append-time-lz4"))
    record = lines(stamped, "record")[0]
    assert record["CreateTime"] < record["LogAppendTime"]


def test_as_json_each_row_is_a_line() -> None:
    directory = GOLDEN.partition("compressed-by-client", 3)
    result = run("dump", "--json", "--records", directory)
    assert (result.exit_code, result.err) == (0, "")
    files = lines(result, "file")
    assert files[0] == {"type": "file", "file": str(directory / "00000000000000000000.index"), "kind": "offset index"}
    ends = {Path(line["file"]).name: line for line in lines(result, "end")}
    assert len(ends) == len(files) == 6
    assert ends["00000000000000000000.log"]["rows"] == len(lines(result, "batch")) + len(lines(result, "record"))
    assert {line["compresscodec"] for line in lines(result, "batch")} == {"lz4"}
    consumed = GOLDEN.consumed()["compressed-by-client-3"].records
    for shown, record in zip(lines(result, "record"), consumed, strict=True):
        assert shown["offset"] == record.offset
        assert shown["value"] == (None if record.value is None else base64.b64encode(record.value).decode())
        assert shown["headers"] == [
            [key, None if value is None else base64.b64encode(value).decode()] for key, value in record.headers
        ]


def test_a_whole_log_directory_is_sound() -> None:
    result = run("dump", "--json", "--records", GOLDEN.log_dir)
    assert result.exit_code == 0
    kinds = {line["kind"] for line in lines(result, "file")}
    assert len(kinds) == 10
    assert not lines(result, "problem")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_broken_file_is_shown_up_to_the_break_and_named(tmp_path: Path, as_json: bool) -> None:
    sound = (GOLDEN.partition("transactions") / "00000000000000000000.log").read_bytes()
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(sound[:-10])
    result = run("dump", path, tmp_path / "00000000000000000000.log", *(["--json"] if as_json else []))
    assert result.exit_code == 1
    if as_json:
        assert len(lines(result, "batch")) == 6
        problem = lines(result, "problem")[0]
        assert (problem["file"], problem["error"]) == (str(path), "CorruptRecordError")
        assert problem["position"] == lines(result, "batch")[2]["position"] + lines(result, "batch")[2]["size"]
        assert "truncated" in problem["message"]
        assert [end["problems"] for end in lines(result, "end")] == [1, 1]
    else:
        assert result.err.count(f"problem: {path}: at byte ") == 2
        assert result.out.count("compresscodec: none\n") == 6


@pytest.mark.parametrize("as_json", [False, True])
def test_zeros_after_a_log_are_a_note(tmp_path: Path, as_json: bool) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(1000))
    result = run("dump", path, *(["--json"] if as_json else []))
    assert result.exit_code == 0
    if as_json:
        assert "1000 bytes of zeros" in lines(result, "note")[0]["message"]
    else:
        assert "note: " in result.err
        assert " empty" in result.out


def test_an_index_that_its_log_does_not_bear_out_fails(tmp_path: Path) -> None:
    for path in GOLDEN.partition("transactions").glob("00000000000000000000.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    index = tmp_path / "00000000000000000000.index"
    assert run("dump", index).exit_code == 0
    index.write_bytes(index.read_bytes()[:-4] + b"\0\0\1\1")
    result = run("dump", index)
    assert result.exit_code == 1
    assert mentions(result.err, index, "byte", "disagrees")


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [("missing.log", 2, "does not exist"), ("strange.log", 1, "strange.log")],
)
def test_a_file_that_is_not_kafkas_is_refused(tmp_path: Path, name: str, code: int, expected: str) -> None:
    (tmp_path / "strange.log").touch()
    result = run("dump", tmp_path / name)
    assert result.exit_code == code
    assert expected in " ".join(result.err.split())
    assert result.out == ""


def test_a_table_may_have_any_number_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    rows = [f"{'long-' * (i // 1500)}topic {i} {i * 7}\n" for i in range(3000)]
    path.write_text(f"0\n{len(rows)}\n{''.join(rows)}")
    out = run("dump", path).out.splitlines()
    shown = [line.split() for line in out if "topic" in line and "partition" not in line]
    assert shown == [row.split() for row in rows]
