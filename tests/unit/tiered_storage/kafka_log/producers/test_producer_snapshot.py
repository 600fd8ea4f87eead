from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.producers.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    in_broker_order,
    read_producer_snapshot,
    write_producer_snapshot,
)

int16, int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
producers = st.builds(ProducerSnapshotEntry, int64, int16, int32, int64, int32, int64, int32, int64)

BY_KAFKA = bytes.fromhex(
    "0001f9eec48600000002"
    "00000000000003e800030000003b000000000000003a000000090000018bcfe5687b000000070000000000000029"
    "00000000000007d1000000000000000000000000003b000000000000018bcfe569c8ffffffffffffffffffffffff"
)
"""Written by Kafka 4.3.1 for one producer in an open transaction and one that is idempotent only."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000060.snapshot"


@given(st.lists(producers, max_size=5))
def test_producers_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, entries: list[ProducerSnapshotEntry]
) -> None:
    path = tmp_path_factory.mktemp("snapshot") / "00000000000000000060.snapshot"

    write_producer_snapshot(path, entries)

    assert read_producer_snapshot(path) == tuple(entries)


def test_a_brokers_snapshot_is_read_and_written_byte_for_byte(path: Path) -> None:
    path.write_bytes(BY_KAFKA)

    entries = read_producer_snapshot(path)
    write_producer_snapshot(path, entries)

    assert entries == (
        ProducerSnapshotEntry(1000, 3, 59, 58, 9, 1700000000123, 7, current_transaction_first_offset=41),
        ProducerSnapshotEntry(2001, 0, 0, 59, 0, 1700000000456, -1, current_transaction_first_offset=-1),
    )
    assert path.read_bytes() == BY_KAFKA


def test_a_snapshot_without_producers_is_a_header(path: Path) -> None:
    write_producer_snapshot(path)

    assert path.read_bytes() == bytes.fromhex("000148674bc700000000")
    assert read_producer_snapshot(path) == ()


@pytest.mark.parametrize("length", range(len(BY_KAFKA)))
def test_a_snapshot_cut_anywhere_is_refused(path: Path, length: int) -> None:
    path.write_bytes(BY_KAFKA[:length])

    with pytest.raises(CorruptIndexError):
        read_producer_snapshot(path)


@given(st.integers(0, 8 * len(BY_KAFKA) - 1))
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, bit: int) -> None:
    path = tmp_path_factory.mktemp("snapshot") / "00000000000000000060.snapshot"
    content = bytearray(BY_KAFKA)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)

    with pytest.raises(CorruptIndexError):
        read_producer_snapshot(path)


@pytest.mark.parametrize("count", [-1, 1])
def test_a_count_that_its_bytes_belie_is_refused_though_the_checksum_is_right(path: Path, count: int) -> None:
    checked = count.to_bytes(4, "big", signed=True)
    path.write_bytes(b"\x00\x01" + crc32c(checked).to_bytes(4, "big") + checked)

    with pytest.raises(CorruptIndexError, match=f"{count} producers"):
        read_producer_snapshot(path)


def of_ids(*ids: int) -> list[ProducerSnapshotEntry]:
    return [ProducerSnapshotEntry(producer_id, 0, 0, 0, 0, 0, -1, -1) for producer_id in ids]


@pytest.mark.parametrize(
    ("came", "written"),
    [
        ((0, 1, 2), (0, 1, 2)),
        ((15, 16, 17), (16, 17, 15)),
        ((17, 1, 33), (17, 1, 33)),
        (tuple(range(15, 28)), (*range(15, 28),)),
        ((15, *range(20, 32), 32), (32, 15, *range(20, 32))),
        ((1 << 32, (1 << 32) + 1), ((1 << 32) + 1, 1 << 32)),
    ],
)
def test_producers_are_written_in_the_order_of_a_brokers_hash_table(
    came: tuple[int, ...], written: tuple[int, ...]
) -> None:
    assert in_broker_order(of_ids(*came)) == tuple(of_ids(*written))


def test_the_content_of_a_snapshot_needs_no_file(path: Path) -> None:
    write_producer_snapshot(path, of_ids(4, 5))

    assert encode_producer_snapshot(of_ids(4, 5)) == path.read_bytes()
