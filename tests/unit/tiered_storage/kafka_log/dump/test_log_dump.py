from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions
from support.records import batches_of, some_records
from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.dump import log_dump
from tiered_storage.kafka_log.dump.dump_event import DumpNote, DumpProblem, RowKind
from tiered_storage.kafka_log.dump.log_dump import end_of_log
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.batch_header import TimestampType, check_crc, read_batch_header
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType, EndTransactionMarker, encode_end_marker
from tiered_storage.kafka_log.records.legacy_message import encode_messages
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, encode_empty_batch, restamp_batch
from unit.tiered_storage.kafka_log.dump.dumps import dumped, notes, problems, rows

NAME = "00000000000000000100.log"
TIME = 1_700_000_000_000
BASE = 100


def a_log(directory: Path, *batches: bytes) -> Path:
    path = directory / NAME
    path.write_bytes(b"".join(batches))
    return path


def three_batches() -> list[bytes]:
    return batches_of([2, 1, 3], BASE)


def test_each_batch_is_a_row_with_kafkas_names(tmp_path: Path) -> None:
    batch = encode_batch(
        [Record(BASE, TIME, b"k", b"v"), Record(BASE + 3, TIME + 5, None, None)],
        Compression.LZ4,
        partition_leader_epoch=4,
        producer_id=9,
        producer_epoch=2,
        base_sequence=(1 << 31) - 2,
        is_transactional=True,
        delete_horizon=TIME + 77,
    )
    events = dumped(a_log(tmp_path, batch))
    assert rows(events, RowKind.BATCH) == [
        {
            "baseOffset": BASE,
            "lastOffset": BASE + 3,
            "count": 2,
            "baseSequence": (1 << 31) - 2,
            "lastSequence": 1,
            "producerId": 9,
            "producerEpoch": 2,
            "partitionLeaderEpoch": 4,
            "isTransactional": True,
            "isControl": False,
            "deleteHorizonMs": TIME + 77,
            "position": 0,
            "CreateTime": TIME + 5,
            "size": len(batch),
            "magic": 2,
            "compresscodec": "lz4",
            "crc": read_batch_header(batch).crc,
            "isvalid": True,
        }
    ]
    assert len(events) == 1


def test_records_are_shown_when_asked_for(tmp_path: Path) -> None:
    headers = (("a", None), ("a", b"1"))
    batch = encode_batch(
        [Record(BASE, TIME, b"k", None, headers), Record(BASE + 2, TIME - 1, None, b"")],
        producer_id=9,
        producer_epoch=0,
        base_sequence=(1 << 31) - 1,
    )
    path = a_log(tmp_path, batch)
    assert rows(dumped(path), RowKind.RECORD) == []
    assert rows(dumped(path, with_records=True), RowKind.RECORD) == [
        {
            "offset": BASE,
            "CreateTime": TIME,
            "keySize": 1,
            "valueSize": -1,
            "sequence": (1 << 31) - 1,
            "headerKeys": ["a", "a"],
            "key": b"k",
            "value": None,
            "headers": headers,
        },
        {
            "offset": BASE + 2,
            "CreateTime": TIME - 1,
            "keySize": -1,
            "valueSize": 0,
            "sequence": 1,
            "headerKeys": [],
            "key": None,
            "value": b"",
            "headers": (),
        },
    ]


def test_a_batch_stamped_by_the_broker_shows_both_times(tmp_path: Path) -> None:
    batch = bytearray(encode_batch(some_records(BASE, 2), Compression.ZSTD))
    restamp_batch(batch, TIME + 999)
    events = dumped(a_log(tmp_path, bytes(batch)), with_records=True)
    [shown] = rows(events, RowKind.BATCH)
    assert shown["LogAppendTime"] == TIME + 999
    assert "CreateTime" not in shown
    times = [(row["LogAppendTime"], row["CreateTime"]) for row in rows(events, RowKind.RECORD)]
    assert times == [(TIME + 999, record.timestamp) for record in some_records(BASE, 2)]
    assert read_batch_header(batch).timestamp_type is TimestampType.LOG_APPEND_TIME


def test_control_records_are_dumped_decoded(tmp_path: Path) -> None:
    marker = EndTransactionMarker(ControlRecordType.ABORT, coordinator_epoch=3, timestamp=TIME)
    batch = encode_end_marker(marker, BASE, producer_id=9, producer_epoch=0)
    [record] = rows(dumped(a_log(tmp_path, batch), with_records=True), RowKind.RECORD)
    assert (record["endTxnMarker"], record["coordinatorEpoch"]) == ("ABORT", 3)
    assert not record.keys() & {"key", "value"}


def test_a_batch_without_records_is_shown(tmp_path: Path) -> None:
    events = dumped(a_log(tmp_path, encode_empty_batch(three_batches()[0])), with_records=True)
    [shown] = rows(events, RowKind.BATCH)
    assert (shown["count"], shown["lastOffset"], shown["size"]) == (0, BASE + 1, BATCH_OVERHEAD)
    assert len(events) == 1


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    assert dumped(a_log(tmp_path)) == []


def test_a_wrong_checksum_is_named_and_the_next_batch_follows(tmp_path: Path) -> None:
    first, second, third = three_batches()
    path = a_log(tmp_path, first, second[:-1] + b"!", third)
    events = dumped(path, with_records=True)
    assert [row["isvalid"] for row in rows(events, RowKind.BATCH)] == [True, False, True]
    [(name, position, reason)] = problems(events)
    assert (name, position) == (NAME, len(first))
    assert "CRC-32C" in reason


def test_records_that_cannot_be_read_are_named_and_the_next_batch_follows(tmp_path: Path) -> None:
    first, second, third = batches_of([2, 1, 3], BASE, compression=Compression.GZIP)
    broken = bytearray(second)
    broken[BATCH_OVERHEAD] ^= 1
    restamp_batch(broken, TIME)
    events = dumped(a_log(tmp_path, first, bytes(broken), third), with_records=True)
    assert [row["isvalid"] for row in rows(events, RowKind.BATCH)] == [True, True, True]
    assert len(rows(events, RowKind.RECORD)) == 5
    [(_, position, reason)] = problems(events)
    assert position == len(first)
    assert "gzip" in reason


@pytest.mark.parametrize("kept", [8, 16, 17, 60, 61, 70])
def test_a_torn_end_is_named_after_all_that_is_whole(tmp_path: Path, kept: int) -> None:
    first, second, third = three_batches()
    events = dumped(a_log(tmp_path, first, second, third[:kept]))
    assert len(rows(events, RowKind.BATCH)) == 2
    [(_, position, reason)] = problems(events)
    assert position == len(first) + len(second)
    assert "truncated" in reason


@pytest.mark.parametrize(
    ("at", "content", "reason"),
    [
        (8, b"\0\0\0\5", "batch length of 5 "),
        (16, b"\3", "magic 3"),
        (0, b"\0" * 7 + b"\1", "starts at offset 1"),
        (57, b"\x7f\xff\xff\xff", "records in a range"),
    ],
)
def test_a_broken_header_ends_the_dump_after_all_that_is_sound(
    tmp_path: Path, at: int, content: bytes, reason: str
) -> None:
    first, second, third = three_batches()
    broken = second[:at] + content + second[at + len(content) :]
    events = dumped(a_log(tmp_path, first, broken, third))
    assert [row["baseOffset"] for row in rows(events, RowKind.BATCH)] == [BASE]
    [(_, position, found)] = problems(events)
    assert position == len(first)
    assert reason in found


@pytest.mark.parametrize("zeros", [1, 17, 3 << 20])
def test_zeros_of_a_preallocated_file_are_no_damage(tmp_path: Path, zeros: int) -> None:
    path = a_log(tmp_path, *three_batches())
    size = path.stat().st_size
    with path.open("ab") as file:
        file.truncate(size + zeros)
    events = dumped(path)
    assert len(rows(events, RowKind.BATCH)) == 3
    assert problems(events) == []
    [note] = notes(events)
    assert mentions(note, zeros, size, "preallocated")


def test_a_batch_that_was_being_appended_is_no_damage(tmp_path: Path) -> None:
    first, second, third = three_batches()
    path = a_log(tmp_path, first, second, third)
    whole = len(first) + len(second)
    error = CorruptRecordError(path, whole, "truncated")
    seen = end_of_log(path, size=whole + 10, error=error, next_offset=BASE)
    assert "was being appended" in notes([seen])[0]
    flip(path, whole + 65)
    assert problems([end_of_log(path, size=path.stat().st_size, error=error, next_offset=BASE)])


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def a_preallocated_log(directory: Path, *batches: bytes) -> Path:
    path = a_log(directory, *batches)
    with path.open("ab") as file:
        file.truncate(1 << 20)
    return path


def write_into(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def test_a_batch_that_comes_into_a_preallocated_log_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three_batches()
    path = a_preallocated_log(tmp_path, first, second)
    at = len(first) + len(second)
    look = log_dump.end_of_log

    def appended(*seen: Any) -> DumpNote | DumpProblem:
        write_into(path, at, third)
        return look(*seen)

    monkeypatch.setattr(log_dump, "end_of_log", appended)
    events = dumped(path)
    assert len(rows(events, RowKind.BATCH)) == 2
    assert problems(events) == []
    [note] = notes(events)
    assert mentions(note, f"byte {at} ", "being appended")


def test_a_batch_that_is_half_written_in_a_preallocated_log_is_shown_as_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three_batches()
    path = a_preallocated_log(tmp_path, first, second, third[:70])

    def written_meanwhile(batch: memoryview, **place: Any) -> None:
        write_into(path, len(first) + len(second), third)
        check_crc(batch, **place)

    monkeypatch.setattr(log_dump, "check_crc", written_meanwhile)
    events = dumped(path)
    assert [row["isvalid"] for row in rows(events, RowKind.BATCH)] == [True, True, True]
    assert problems(events) == []


def test_an_offset_that_falls_is_damage_also_in_a_preallocated_log(tmp_path: Path) -> None:
    first, second, _ = three_batches()
    path = a_preallocated_log(tmp_path, first, second, first)
    [(_, position, reason)] = problems(dumped(path))
    assert position == len(first) + len(second)
    assert "offsets rise" in reason


def test_a_dump_of_a_long_log_does_not_depend_on_windows(tmp_path: Path) -> None:
    path = a_log(tmp_path, *batches_of([1] * 300, BASE, value=bytes(10_000)))
    shown = rows(dumped(path), RowKind.BATCH)
    assert [row["baseOffset"] for row in shown] == list(range(BASE, BASE + 300))
    assert all(row["isvalid"] for row in shown)


@pytest.mark.parametrize("damage", ["checksum", "content", "offsets"])
def test_a_damaged_message_is_shown_and_reported_and_the_next_one_follows(tmp_path: Path, damage: str) -> None:
    first, broken, third = (
        encode_messages([Record(BASE + at + i, TIME, b"k", b"v") for i in (0, 1)], 1, Compression.GZIP)
        for at in (0, 2, 4)
    )
    changed = bytearray(broken)
    if damage == "offsets":
        changed[:8] = bytes(8)
    else:
        changed[-6] ^= 1
    if damage != "checksum":
        changed[12:16] = zlib.crc32(changed[16:]).to_bytes(4, "big")
    events = dumped(a_log(tmp_path, first, bytes(changed), third), with_records=True)
    shown = rows(events, RowKind.BATCH)
    assert [row["isvalid"] for row in shown] == [True, damage != "checksum", True]
    assert [row["position"] for row in shown] == [0, len(first), len(first) + len(changed)]
    assert len(rows(events, RowKind.RECORD)) == 4
    [(_, position, _)] = problems(events)
    assert position == len(first)


def test_a_message_out_of_place_ends_the_dump(tmp_path: Path) -> None:
    first, early = (encode_messages([Record(offset, TIME, b"k", b"v")], 0) for offset in (BASE + 1, BASE))
    events = dumped(a_log(tmp_path, first, early), with_records=True)
    assert [row["lastOffset"] for row in rows(events, RowKind.BATCH)] == [BASE + 1]
    [(_, position, reason)] = problems(events)
    assert (position, "offsets rise" in reason) == (len(first), True)
