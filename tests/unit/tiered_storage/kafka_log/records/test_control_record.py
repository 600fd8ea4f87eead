from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.control_record import (
    ControlRecordType,
    EndTransactionMarker,
    encode_end_marker,
    read_control_type,
    read_end_marker,
)
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import (
    encode_batch,
    encode_empty_batch,
    read_batch_header,
    read_records,
)

MARKER = EndTransactionMarker(ControlRecordType.ABORT, coordinator_epoch=7, timestamp=1_700_000_000_123)


def control_batch(key: bytes | None, value: bytes | None) -> bytes:
    return encode_batch([Record(5, 0, key, value)], producer_id=1, producer_epoch=0, is_control=True)


@given(
    st.sampled_from([ControlRecordType.ABORT, ControlRecordType.COMMIT]),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**15 - 1),
)
def test_an_end_marker_survives_its_batch(
    kind: ControlRecordType, coordinator_epoch: int, timestamp: int, offset: int, epoch: int
) -> None:
    marker = EndTransactionMarker(kind, coordinator_epoch, timestamp)

    batch = encode_end_marker(marker, offset, producer_id=9, producer_epoch=epoch, partition_leader_epoch=3)

    assert read_end_marker(batch) == marker
    assert marker.is_abort == (kind is ControlRecordType.ABORT)
    header = read_batch_header(batch)
    assert (header.base_offset, header.last_offset, header.producer_id, header.producer_epoch) == (
        offset,
        offset,
        9,
        epoch,
    )
    assert header.is_control
    assert header.is_transactional
    assert (header.base_sequence, header.partition_leader_epoch) == (-1, 3)


def test_an_end_marker_has_the_bytes_that_kafka_gives_it() -> None:
    [record] = read_records(encode_end_marker(MARKER, 5, producer_id=1, producer_epoch=0))

    assert (record.key, record.value) == (bytes.fromhex("00000000"), bytes.fromhex("000000000007"))


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 7, 99, -5])
def test_control_records_of_other_types_are_no_end_marker(kind: int) -> None:
    key = struct.pack(">hh", 0, kind)

    assert read_control_type(key) is (ControlRecordType(kind) if 2 <= kind <= 6 else ControlRecordType.UNKNOWN)
    assert read_end_marker(control_batch(key, b"whatever")) is None


def test_fields_of_later_versions_are_ignored() -> None:
    key, value = struct.pack(">hh", 1, 1) + b"more", struct.pack(">hi", 1, 4) + b"more"

    assert read_end_marker(control_batch(key, value)) == EndTransactionMarker(ControlRecordType.COMMIT, 4, 0)


@pytest.mark.parametrize("byte", [0, 1, 2, 0x08, 0x18, 0x30, 0x7F, 0x80, 0xFF])
def test_a_marker_that_differs_from_the_usual_is_read_as_its_record_says(byte: int) -> None:
    usual = encode_end_marker(MARKER, 5, producer_id=1, producer_epoch=0)
    for position in range(len(usual)):
        batch = usual[:position] + bytes([byte]) + usual[position + 1 :]
        assert read_marker_or_error(batch) == marker_of_record_or_error(batch), position


@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_a_marker_has_the_time_that_its_record_has(timestamp_type: TimestampType) -> None:
    records = [Record(5, 77, bytes(4), bytes(6))]
    batch = encode_batch(records, timestamp_type=timestamp_type, is_transactional=True, is_control=True)

    assert read_marker_or_error(batch) == marker_of_record_or_error(batch)


def read_marker_or_error(batch: bytes | bytearray) -> EndTransactionMarker | str | None:
    try:
        return read_end_marker(batch)
    except CorruptRecordError as error:
        return str(error)


def marker_of_record_or_error(batch: bytes | bytearray) -> EndTransactionMarker | str | None:
    """The same by the batch's record, decoded as that of any batch."""
    try:
        records = read_records(batch, verify_crc=False)
        if not records or (kind := read_control_type(records[0].key)) > ControlRecordType.COMMIT or kind < 0:
            return None
    except CorruptRecordError as error:
        return str(error)
    value = records[0].value
    if value is None or len(value) < 6:
        return "<memory>: at byte 0: the marker is cut"
    version, epoch = struct.unpack_from(">hi", value)
    if version < 0:
        return f"<memory>: at byte 0: an end marker has version {version}"
    return EndTransactionMarker(kind, epoch, records[0].timestamp)


def test_a_control_batch_that_compaction_has_emptied_has_no_marker() -> None:
    batch = encode_end_marker(MARKER, 5, producer_id=1, producer_epoch=0)

    assert read_end_marker(encode_empty_batch(batch)) is None


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "record is cut"),
        (b"\0\0\0", b"", "record is cut"),
        (b"\xff\xff\0\0", b"", "record has version -1"),
        (b"\0\0\0\0", None, "marker is cut"),
        (b"\0\0\0\1", b"\0\0\0\0\0", "marker is cut"),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\0", "marker has version -1"),
    ],
)
def test_a_marker_that_cannot_be_read_is_refused_with_its_place(
    key: bytes | None, value: bytes | None, reason: str
) -> None:
    with pytest.raises(CorruptRecordError, match=f"x.log: at byte 77: .*{reason}"):
        read_end_marker(control_batch(key, value), source="x.log", source_position=77)
