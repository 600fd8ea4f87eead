from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.kafka_log.dump.control_record_fields import describe_control_record
from tiered_storage.kafka_log.records.record import Record

UUID = bytes(range(16))
UUID_TEXT = "AAECAwQFBgcICQoLDA0ODw"


def control(kind: int, value: bytes | None, version: int = 0) -> Record:
    return Record(0, 0, struct.pack(">hh", version, kind), value)


@pytest.mark.parametrize(("kind", "word"), [(0, "ABORT"), (1, "COMMIT")])
def test_an_end_marker_is_shown_field_by_field(kind: int, word: str) -> None:
    assert describe_control_record(control(kind, b"\0\0\0\0\0\7")) == {"endTxnMarker": word, "coordinatorEpoch": 7}


@pytest.mark.parametrize(
    ("kind", "value", "word", "fields"),
    [
        (
            2,
            b"\0\0" + b"\0\0\0\1" + b"\3" + b"\0\0\0\1\0" + b"\0\0\0\2\0" + b"\2" + b"\0\0\0\2\0" + b"\0",
            "LEADER_CHANGE",
            {
                "version": 0,
                "leaderId": 1,
                "voters": [{"voterId": 1}, {"voterId": 2}],
                "grantingVoters": [{"voterId": 2}],
            },
        ),
        (
            2,
            b"\0\1" + b"\0\0\0\1" + b"\2" + b"\0\0\0\1" + UUID + b"\1\7\2ab" + b"\1" + b"\0",
            "LEADER_CHANGE",
            {
                "version": 1,
                "leaderId": 1,
                "voters": [{"voterId": 1, "voterDirectoryId": UUID_TEXT}],
                "grantingVoters": [],
            },
        ),
        (3, b"\0\0" + struct.pack(">q", 9) + b"\0", "SNAPSHOT_HEADER", {"version": 0, "lastContainedLogTimestamp": 9}),
        (4, b"\0\0\0", "SNAPSHOT_FOOTER", {"version": 0}),
        (5, b"\0\0\0\1\0", "KRAFT_VERSION", {"version": 0, "kRaftVersion": 1}),
        (
            6,
            b"\0\0\2\0\0\0\3" + UUID + b"\2\5NAME\5host\x23\x85\0" + b"\0\0\0\1\0" + b"\0\0",
            "KRAFT_VOTERS",
            {
                "version": 0,
                "voters": [
                    {
                        "voterId": 3,
                        "voterDirectoryId": UUID_TEXT,
                        "endpoints": [{"name": "NAME", "host": "host", "port": 9093}],
                        "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1},
                    }
                ],
            },
        ),
    ],
)
def test_kraft_control_records_are_shown_field_by_field(
    kind: int, value: bytes, word: str, fields: dict[str, object]
) -> None:
    assert describe_control_record(control(kind, value)) == {"controlType": word, "control": fields}


@pytest.mark.parametrize(
    ("kind", "value", "word"),
    [
        (0, b"\0\0", "ABORT"),
        (1, None, "COMMIT"),
        (2, b"\0\0\0\0\0\1\xff\xff\xff\xff\x0f", "LEADER_CHANGE"),
        (2, b"\0\2" + bytes(20), "LEADER_CHANGE"),
        (5, b"\xff\xff\0\1\0", "KRAFT_VERSION"),
        (77, b"later", "UNKNOWN"),
    ],
)
def test_an_unknown_control_record_is_shown_raw(kind: int, value: bytes | None, word: str) -> None:
    record = control(kind, value)
    assert describe_control_record(record) == {"controlType": word, "key": record.key, "value": value}


@given(st.none() | st.binary(max_size=6), st.none() | st.binary(max_size=40))
def test_any_bytes_are_shown_somehow(key: bytes | None, value: bytes | None) -> None:
    assert describe_control_record(Record(0, 0, key, value)).keys() & {"endTxnMarker", "controlType"}


@given(st.integers(0, 6), st.binary(max_size=60))
def test_any_value_of_a_known_type_is_shown_somehow(kind: int, value: bytes) -> None:
    assert describe_control_record(control(kind, b"\0\0" + value)).keys() & {"endTxnMarker", "controlType"}
