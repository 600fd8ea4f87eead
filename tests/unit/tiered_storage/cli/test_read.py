from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import (
    NOW,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    flip_bit,
    record,
    rewrite_segment,
)
from tiered_storage.cli.common import output as cli_output
from tiered_storage.cli.common import progress as cli_progress
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from unit.tiered_storage.remote_log.modelled_logs import ABORT, COMMIT, Ended, Sent, Step, write_modelled_log

ODD_VALUES = [
    b"[bold]brackets[/] [/nothing]",
    b"two\nlines\tand a \x1b[31mcommand to the terminal",
    b"\xff\xfe is no UTF-8",
    "größe — ✓".encode(),
    b"",
    b"x" * 46,
]


# ---------------------------------------------------------------------------------------------------------- segments


def test_segments_are_shown_in_every_state(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(2)
    with files.open() as remote_log:
        begin(remote_log)

    result, shown = run_on(files, "segments", "--json"), run_on(files, "segments")

    assert result.exit_code == shown.exit_code == 0
    assert [(row["start_offset"], row["end_offset"], row["state"]) for row in result.rows] == [
        (0, 9, "COPY_SEGMENT_FINISHED"),
        (10, 19, "COPY_SEGMENT_FINISHED"),
        (20, 29, "COPY_SEGMENT_FINISHED"),
        (30, 39, "COPY_SEGMENT_STARTED"),
    ]
    first = result.rows[0]
    assert (first["partition"], first["bytes"], first["max_timestamp"]) == ("orders-0", SEGMENT_BYTES, NOW + 9000)
    assert len(first["segment_id"]) == 22
    assert "2023-11-14 22:13:29 UTC" in shown.out


def test_only_segments_of_requested_topics_are_shown(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})

    result = run_on(files, "segments", "--topics", "clicks", "--json")

    assert [row["partition"] for row in result.rows] == ["clicks-0"]


# -------------------------------------------------------------------------------------------------------------- read


def test_records_are_read_from_the_log_start_on(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    result = run_on(files, "read", "orders", 0)

    assert result.exit_code == 0
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines if "UTC" in line] == [str(offset) for offset in range(10)]
    assert [line.split()[2].partition(".")[0] for line in lines if " value: " in line] == list("0123456789")
    assert max(map(len, lines)) <= 80
    assert "2023-11-14 22:13:23 UTC" in result.out


def test_records_are_shown_while_others_are_still_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_output, "_ROWS_AT_ONCE", 4)
    files = a_copied_remote_log(tmp_path)
    flip_bit(files.local_segments()[1].log_path, SEGMENT_BYTES - 1)

    result = run_on(files, "read", "orders", 0, "--end-offset", 20)

    assert result.exit_code == 1
    assert [offset for offset in range(20) if f"value {offset}." in result.out] == list(range(12))


def test_as_json_each_record_is_a_line_of_its_own(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    result = run_on(files, "read", "orders", 0, "--offset", 28, "--max-records", 3, "--json")

    found = [json.loads(line) for line in result.out.splitlines()]
    assert [one["offset"] for one in found] == [28, 29, 30]
    written = record(28)
    assert found[0] == {
        "offset": 28,
        "timestamp": written.timestamp,
        "key": base64.b64encode(b"key").decode(),
        "value": base64.b64encode(written.value or b"").decode(),
        "headers": [["trace", base64.b64encode(b"1").decode()]],
    }


def offsets_of(out: str) -> list[int]:
    return [json.loads(line)["offset"] for line in out.splitlines()]


def test_a_range_ends_before_its_end_offset(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    whole = run_on(files, "read", "orders", 0, "--offset", 7, "--end-offset", 33, "--json")
    part = run_on(files, "read", "orders", 0, "--offset", 7, "--end-offset", 33, "--max-records", 4, "--json")

    assert (offsets_of(whole.out), offsets_of(part.out)) == (list(range(7, 33)), [7, 8, 9, 10])


@pytest.mark.parametrize("moment", [NOW + 16_001, datetime.fromtimestamp((NOW + 17_000) / 1000, UTC).isoformat()])
def test_a_range_begins_with_the_first_record_that_is_not_earlier(tmp_path: Path, moment: int | str) -> None:
    files = a_copied_remote_log(tmp_path)

    result = run_on(files, "read", "orders", 0, "--time", moment, "--max-records", 2, "--json")

    assert offsets_of(result.out) == [17, 18]


def test_later_than_everything_there_is_nothing_and_two_beginnings_are_refused(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    later = run_on(files, "read", "orders", 0, "--time", NOW + 35_000, "--json")
    both = run_on(files, "read", "orders", 0, "--time", NOW, "--offset", 3)
    no_time = run_on(files, "read", "orders", 0, "--time", "yesterday")

    assert (later.exit_code, later.out) == (0, "")
    assert (both.exit_code, no_time.exit_code) == (1, 1)
    assert "--offset and --time " in both.err
    assert "--time: 'yesterday'" in no_time.err
    for option in ("--time", "--max-records", "--offset"):
        assert run_on(files, "read", "orders", 0, option, "9" * 5000).exit_code in (1, 2)


def with_transactions(root: Path) -> RemoteLogFiles:
    """Lay a log out with an aborted transaction at offset 1, a committed one at 2 and 3, and an open one from 6 on."""
    steps: list[Step] = [
        Sent([0]), Sent([1_000], producer=1), Sent([2_000, 3_000], producer=2),
        Ended(1, ABORT), Ended(2, COMMIT), Sent([6_000], producer=3), Sent([7_000]),
    ]  # fmt: skip
    files = write_modelled_log(root, steps)[0]
    files.open().close()
    return files


def test_read_committed_leaves_out_what_was_aborted_and_what_is_not_decided(tmp_path: Path) -> None:
    files = with_transactions(tmp_path)

    everything = run_on(files, "read", "orders", 0, "--json")
    committed = run_on(files, "read", "orders", 0, "--isolation", "read_committed", "--json")

    assert offsets_of(everything.out) == [0, 1, 2, 3, 6, 7]
    assert offsets_of(committed.out) == [0, 2, 3]


def test_a_long_read_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path)
    monkeypatch.setattr(cli_progress, "REPORT_SECONDS", 0)

    result = run_on(files, "read", "orders", 0, "--end-offset", 35, "--json")

    assert mentions(result.err, "35 of 35 offsets", "100 %")
    assert len(result.out.splitlines()) == 35


# ----------------------------------------------------------------------------------------------------------- offsets


def test_offsets_are_shown_by_their_names_and_by_time(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    result = run_on(files, "offsets", "orders", 0, "--time", NOW + 16_001, "--time", NOW + 35_000, "--json")

    assert [(row["of"], row["offset"], row["timestamp"], row["leader_epoch"]) for row in result.rows] == [
        ("earliest", 0, None, 0),
        ("latest", 35, None, 0),
        ("max-timestamp", 34, NOW + 34_000, 0),
        ("earliest-local", 0, None, 0),
        ("next-local", 0, None, 0),
        ("latest-tiered", 29, None, 0),
        ("earliest-pending-upload", 30, None, 0),
        (str(NOW + 16_001), 17, NOW + 17_000, 0),
        (str(NOW + 35_000), None, None, None),
    ]
    assert "2023-11-14 22:13:54 UTC" in run_on(files, "offsets", "orders", 0).out


def test_offsets_at_both_isolation_levels(tmp_path: Path) -> None:
    files = with_transactions(tmp_path)

    everything = run_on(files, "offsets", "orders", 0, "--json")
    committed = run_on(files, "offsets", "orders", 0, "--isolation", "read_committed", "--json")

    assert [everything.rows[1]["offset"], committed.rows[1]["offset"]] == [8, 6]


@pytest.mark.parametrize("is_json", [False, True])
def test_any_bytes_can_be_shown_on_one_line_and_without_effect(tmp_path: Path, is_json: bool) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    batch = encode_batch(
        [Record(offset, NOW, None if offset else b"[/]", value) for offset, value in enumerate(ODD_VALUES[:5])]
    )
    rewrite_segment(files.local_segments()[0].log_path, [batch])

    result = run_on(files, "read", "orders", 0, *(["--json"] if is_json else []))

    assert result.exit_code == 0
    if is_json:
        found = [json.loads(line) for line in result.out.splitlines()]
        assert [base64.b64decode(one["value"]) for one in found] == ODD_VALUES[:5]
        assert [one["key"] for one in found[1:]] == [None] * 4
        return
    assert "\x1b" not in result.out
    assert len([line for line in result.out.splitlines() if "2023-11-14 22:13:20 UTC" in line]) == 5
    for shown in (
        "[bold]brackets[/] [/nothing]",
        r"two\nlines\tand a \x1b[31m",
        r"\xff\xfe is no",
        "größe — ✓",
        "null",
    ):
        assert shown in result.out


def test_a_long_value_is_cut_and_says_how_long_it_is(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    values = [b"x" * 45, b"y" * 5000]
    batch = encode_batch([Record(offset, NOW, None, values[offset % 2]) for offset in range(5)])
    rewrite_segment(files.local_segments()[0].log_path, [batch])

    out = run_on(files, "read", "orders", 0).out

    assert f"{'x' * 45}\n" in out
    assert f"{'y' * 45}… (5,000 bytes)\n" in out
    assert "y" * 46 not in out


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("orders", 0, "--offset", 35), 0, ""),
        (("orders", 0, "--offset", 36), 1, "offsets 0 to 34"),
        (("orders", 7), 1, "orders-7 is neither in log.dirs nor"),
        (("clicks", 0), 1, "clicks-0 is neither in log.dirs nor"),
        (("orders", "one"), 2, "'partition'"),
        (("orders", 0, "--max-records", 0), 2, "max-records"),
    ],
)
def test_reading_what_is_not_there_is_an_error(
    tmp_path: Path, arguments: tuple[object, ...], code: int, expected: str
) -> None:
    result = run_on(a_copied_remote_log(tmp_path), "read", *arguments)

    assert result.exit_code == code
    assert expected in result.err


def test_as_json_an_error_comes_after_the_records_that_could_be_read(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.objects(".log")[1].unlink()
    files.properties["log.dirs"] = []

    result = run_on(files, "read", "orders", 0, "--max-records", 100, "--json")

    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["offset"] for line in lines[:-1]] == list(range(10))
    assert lines[-1]["error"] == "RemoteObjectNotFoundError"
    assert result.err.startswith("error: ")


# ------------------------------------------------------------------------------------------------------------- audit


def test_an_audit_of_a_whole_remote_log_succeeds(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    shown, result = run_on(files, "audit", "--deep"), run_on(files, "audit", "--json")

    assert shown.exit_code == result.exit_code == 0
    assert "3 segments, 9 objects, 2.8 kB: 0 anomalies" in shown.out
    assert result.document == {"rows": [], "segments": 3, "objects": 9, "bytes": 3 * SEGMENT_BYTES, "notices": []}


def test_an_audit_names_what_is_wrong_and_fails(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    lost = files.objects(".log")[1]
    lost.unlink()
    (files.store / "holiday.jpg").write_bytes(b"")

    shown, result = run_on(files, "audit"), run_on(files, "audit", "--json")

    assert shown.exit_code == result.exit_code == 1
    assert "3 segments, 9 objects, 2.8 kB: 1 anomalies" in shown.out
    assert lost.name in shown.out
    [row] = result.rows
    assert row["kind"] == "missing object"
    assert "younger than" in result.document["notices"][0]
    assert mentions(shown.err, "1 unreferenced objects", "repair --dry-run")


def test_only_a_deep_audit_reads_every_byte(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    path = files.objects(".log")[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    assert run_on(files, "audit").exit_code == 0
    assert run_on(files, "audit", "--deep", "--json").rows[0]["kind"] == "wrong checksum"
