"""What a log takes from a producer, and what it makes of it, is what a broker's own LogValidator takes and makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from golden.framings import BROKEN_FRAMINGS, FRAMINGS, ODD_FRAMINGS, WRONGLY_SUMMED, batch_in
from servers.kafka_programs import KafkaPrograms
from support.local_logs import NOW, create
from support.records import record_of, varied_records
from support.transactions import data, marker
from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, CRC_END, LOG_OVERHEAD
from tiered_storage.kafka_log.records.compression import Compression, compress
from tiered_storage.kafka_log.records.record import Record, encode_records
from tiered_storage.kafka_log.records.record_batch import TimestampType, correct_max_timestamp, encode_batch

VALIDATOR = Path(__file__).parents[1] / "ValidateProduced.java"
BASE_OFFSET, LEADER_EPOCH = 100, 5
HOUR = 60 * 60 * 1000
NAMES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}

ONLY_OURS = (
    "append time",
    "deltas with a gap, uncompressed",
    "deltas not from 0, uncompressed",
    "deltas that repeat, uncompressed",
    "delete horizon",
    "id below -1",
    "lz4, a wrong checksum of the frame",
    "no epoch",
    "transaction without an id",
)
"""Beginnings of the names of batches that only we refuse."""
HEADERS_BEHIND_GZIP = {"gzip, a header behind it", "gzip, too few bytes for a member behind it"}
"""What Java 17 and 21 do not look at and Java 25 refuses: a broker may run on any of them, and so may this test."""


def numbered(*times: int) -> list[Record]:
    return [Record(i, time, b"key", b"value", (("h", None),)) for i, time in enumerate(times)]


def mended(batch: bytes | bytearray) -> bytes:
    """The batch with its length and its checksum set right."""
    changed = bytearray(batch)
    changed[8:LOG_OVERHEAD] = (len(changed) - LOG_OVERHEAD).to_bytes(4, "big")
    changed[CRC_END - 4 : CRC_END] = crc32c(memoryview(changed)[CRC_END:]).to_bytes(4, "big")
    return bytes(changed)


def header_with(position: int, field: bytes) -> bytes:
    """A batch of two records of a producer, in which one field is another one."""
    batch = bytearray(data(0, 7, 0, count=2))
    batch[position : position + len(field)] = field
    return mended(batch)


def batches_of(codec: Compression) -> Mapping[str, bytes]:
    """Batches of a codec that a producer might send, sound ones and others, by what they are."""
    name = "uncompressed" if codec is Compression.NONE else codec.name.lower()
    header = encode_batch(numbered(NOW, NOW, NOW), codec)[:BATCH_OVERHEAD]

    def with_records(content: bytes) -> bytes:
        return mended(header + compress(codec, content))

    def with_offsets(*offsets: int) -> bytes:
        return with_records(encode_records([Record(offset, NOW, None, b"x") for offset in offsets], 0, NOW))

    sound = encode_records(numbered(NOW, NOW, NOW), 0, NOW)
    untrue = bytearray(encode_batch(numbered(NOW, NOW + 9, NOW - 4), codec))
    correct_max_timestamp(untrue, NOW + 10**9)
    append_time = TimestampType.LOG_APPEND_TIME

    def with_record(fields: list[int], key_length: bytes = b"") -> bytes:
        """A batch of one record, its key's length maybe of other bytes than `fields` has."""
        record = record_of(fields)
        if key_length:
            record = bytes([record[0] + 2 * len(key_length) - 2]) + record[1:4] + key_length + record[5:]
        return mended(encode_batch(numbered(NOW), codec)[:BATCH_OVERHEAD] + compress(codec, record))

    batches = {
        "sound": encode_batch(numbered(NOW, NOW), codec),
        "many": encode_batch(list(varied_records(200, seed=codec)), codec),
        "idempotent": encode_batch(numbered(NOW, NOW), codec, producer_id=7, producer_epoch=0, base_sequence=5),
        "largest timestamp not true": bytes(untrue),
        "long ago": encode_batch(numbered(NOW, 0), codec),
        "without times": encode_batch(numbered(-1, -1), codec),
        "an hour ahead": encode_batch(numbered(NOW, NOW + HOUR), codec),
        "more than an hour ahead": encode_batch(numbered(NOW + HOUR + 1, NOW), codec),
        "append time": encode_batch(numbered(NOW, NOW), codec, timestamp_type=append_time),
        "append time without times": encode_batch(numbered(-1), codec, timestamp_type=append_time),
        "delete horizon": encode_batch(numbered(NOW, NOW), codec, delete_horizon=NOW),
        "a byte left over": with_records(sound + b"\0"),
        "a byte missing": with_records(sound[:-1]),
        "garbage": with_records(b"garbage"),
        "deltas with a gap": with_offsets(0, 1, 3),
        "deltas not from 0": with_offsets(1, 2, 3),
        "deltas that repeat": with_records(encode_records(numbered(NOW), 0, NOW) * 3),
        "a key of length -2": with_record([0, 0, -2, -1, 0]),
        "a value of length -5": with_record([0, 0, -1, -5, 0]),
        "a header's value of length -3": with_record([0, 0, -1, -1, 1, 0, -3]),
        "a header's key of length -1": with_record([0, 0, -1, -1, 1, -1, -1]),
        "a varint of more than 32 bits": with_record([0, 0, -1, -1, 0], bytes.fromhex("8180808010")),
        "a varint of more than 5 bytes": with_record([0, 0, -1, -1, 0], bytes.fromhex("818080808000")),
        "a varint that is longer than it need be": with_record([0, 0, -1, -1, 0], bytes.fromhex("818000")),
    }
    return {f"{what}, {name}": batch for what, batch in batches.items()}


def not_as_it_says(codec: int) -> bytes:
    batch = bytearray(encode_batch(numbered(NOW)))
    batch[CRC_END + 1] |= codec
    return mended(batch)


def produced() -> dict[str, bytes]:
    """All batches to look at, by what they are."""
    found = {
        "fewer records than offsets": header_with(57, b"\0\0\0\1"),
        "no records": header_with(57, bytes(4)),
        "more offsets than records": header_with(23, b"\0\0\0\5"),
        "control batch": marker(0, 7),
        "no sequence": header_with(53, b"\xff" * 4),
        "no epoch": header_with(51, b"\xff\xff"),
        "id below -1": header_with(43, b"\xff" * 7 + b"\xfe"),
        "transaction without an id": encode_batch(numbered(NOW), is_transactional=True),
        "wrong checksum": data()[:-1] + b"\1",
        **{f"not codec {codec}": not_as_it_says(codec) for codec in range(1, 8)},
    }
    for codec in Compression:
        found |= batches_of(codec)
    framings = {**FRAMINGS, **ODD_FRAMINGS, **BROKEN_FRAMINGS, "lz4, a wrong checksum of the frame": WRONGLY_SUMMED}
    return found | {name: batch_in(framing, numbered(NOW, NOW, NOW)) for name, framing in framings.items()}


def by_the_broker(programs: KafkaPrograms, files: list[Path], timestamp_type: TimestampType) -> list[bytes | None]:
    """What a broker would append for each file, None where it refuses it."""
    arguments: list[str | Path] = [str(NOW), NAMES[timestamp_type], str(BASE_OFFSET), str(LEADER_EPOCH), *files]
    lines = [
        line.split(maxsplit=1)
        for line in programs.source(VALIDATOR, files[0].parent / "classes", *arguments).splitlines()
    ]
    assert {verdict for verdict, _ in lines} == {"taken", "refused"}
    return [bytes.fromhex(stored) if verdict == "taken" else None for verdict, stored in lines]


def by_us(directory: Path, batch: bytes, timestamp_type: TimestampType) -> bytes | None:
    """What a log appends for `batch`, None where it refuses it."""
    with create(directory, base_offset=BASE_OFFSET) as log:
        try:
            log.append_encoded_batch(batch, leader_epoch=LEADER_EPOCH, timestamp_type=timestamp_type)
        except TieredStorageError:
            assert log.log_end_offset == BASE_OFFSET
            return None
        return log.read(BASE_OFFSET, 1)


@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_a_log_accepts_the_batches_that_a_broker_accepts_and_stores_the_same_bytes(
    kafka_programs: KafkaPrograms, tmp_path: Path, timestamp_type: TimestampType
) -> None:
    batches = produced()
    files = []
    for number, batch in enumerate(batches.values()):
        files.append(tmp_path / f"{number}.batch")
        files[-1].write_bytes(batch)

    theirs = dict(zip(batches, by_the_broker(kafka_programs, files, timestamp_type), strict=True))
    ours = {
        name: by_us(tmp_path / str(number), batch, timestamp_type)
        for number, (name, batch) in enumerate(batches.items())
    }

    assert sum(taken is not None for taken in ours.values()) >= 5 * 7
    only_older_java = {name for name in (*FRAMINGS, *ODD_FRAMINGS) if theirs[name] is None}
    assert only_older_java in (set(), HEADERS_BEHIND_GZIP)
    assert [name for name in BROKEN_FRAMINGS if theirs[name] is not None] == []
    only_ours = {name for name in batches if ours[name] is None and theirs[name] is not None}
    assert all(name.startswith(ONLY_OURS) for name in only_ours), only_ours
    left_out = only_ours | only_older_java
    assert {name: taken for name, taken in ours.items() if name not in left_out} == {
        name: taken for name, taken in theirs.items() if name not in left_out
    }
