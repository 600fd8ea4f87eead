from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.command_line import mentions
from support.tiered_site import CLUSTER_ID, RECORDS, TieredSite
from tiered_storage.errors import InvalidLogDirectoryError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage_airflow.demo.comparison import Compared, compare
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition, log_end_offset
from tiered_storage_airflow.demo.sample import PrivateCopy, copy_log_directory

PRODUCER = 7


@pytest.fixture
def original(tmp_path: Path) -> TieredSite:
    site = TieredSite(tmp_path / "original")
    site.write_logs({"orders-0": 3})
    return site


def copied(original: TieredSite) -> tuple[PrivateCopy, TieredSite]:
    """Return what the demo expects of a private copy, and a site on that copy with everything copied."""
    site = TieredSite(original.root.parent / "private")
    private = copy_log_directory(original.logs, site.logs)
    tiered = {"remote.storage.enable": True}
    topics = {expected.topic: tiered for expected in private.expected}
    site.configure(topics, log_end_is_stable=True)
    site.copy()
    return private, site


def compare_all(private: PrivateCopy, site: TieredSite) -> list[Compared]:
    with site.open() as remote_log:
        return [compare(remote_log, expected, expected.log_start_offset) for expected in private.expected]


def append_batches(original: TieredSite, batches: Sequence[bytes]) -> None:
    """Write batches after those of the active segment."""
    active = LogSegment(original.local("orders-0")[-1], original.logs / "orders-0")
    with active.log_path.open("ab") as file:
        file.writelines(batches)


def in_transaction(offset: int, count: int) -> bytes:
    records = [Record(offset + i, 1_700_000_000_000, b"key", b"in a transaction") for i in range(count)]
    return encode_batch(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=0, is_transactional=True)


def commit(offset: int) -> bytes:
    record = Record(offset, 1_700_000_000_000, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7))
    return encode_batch([record], producer_id=PRODUCER, producer_epoch=0, is_transactional=True, is_control=True)


def test_high_watermarks_that_lag_behind_hold_nothing_back(original: TieredSite) -> None:
    write_offset_checkpoint(original.logs / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): 25})

    private, site = copied(original)

    assert not (site.logs / HIGH_WATERMARK_CHECKPOINT).exists()
    assert (original.logs / HIGH_WATERMARK_CHECKPOINT).exists()
    assert site.finished("orders-0") == [0, 10, 20]
    assert compare_all(private, site) == [Compared(0, 4 * RECORDS)]
    assert private.notices == ()


def test_records_after_the_start_of_an_open_transaction_are_neither_copied_nor_expected(
    original: TieredSite,
) -> None:
    end = 4 * RECORDS
    later = encode_batch([Record(end + 5, 1_700_000_000_000, b"key", b"of no transaction")])
    append_batches(original, [in_transaction(end, 5), later])

    private, site = copied(original)

    assert compare_all(private, site) == [Compared(0, end)]
    [notice] = private.notices
    assert mentions(notice, "orders-0: ", "transaction", f"offsets {end} to {end + 5}")


def test_a_transaction_that_has_ended_is_compared_without_its_marker(original: TieredSite) -> None:
    end = 4 * RECORDS
    append_batches(original, [in_transaction(end, 5), commit(end + 5)])

    private, site = copied(original)

    assert log_end_offset(original.logs / "orders-0") == end + 6
    assert compare_all(private, site) == [Compared(0, end + 5)]
    assert private.notices == ()


def test_a_batch_that_was_cut_off_is_not_expected(original: TieredSite) -> None:
    append_batches(original, [in_transaction(4 * RECORDS, 5)[:-1]])

    private, site = copied(original)

    assert log_end_offset(original.logs / "orders-0") == 4 * RECORDS
    assert compare_all(private, site) == [Compared(0, 4 * RECORDS)]


def test_a_log_is_expected_from_where_it_began(original: TieredSite) -> None:
    LogSegment(0, original.logs / "orders-0").log_path.unlink()

    private, site = copied(original)

    assert [expected.log_start_offset for expected in private.expected] == [RECORDS]
    assert compare_all(private, site) == [Compared(RECORDS, 3 * RECORDS)]


def test_a_log_that_begins_inside_a_segment_is_expected_from_there(original: TieredSite) -> None:
    write_offset_checkpoint(original.logs / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 15})

    private, site = copied(original)

    assert [expected.log_start_offset for expected in private.expected] == [15]
    assert compare_all(private, site) == [Compared(15, 4 * RECORDS - 15)]


def test_missing_checkpoints_and_folders_left_out_are_reported(original: TieredSite) -> None:
    (original.logs / LOG_START_OFFSET_CHECKPOINT).unlink()
    (original.logs / "payments-0.0123456789abcdef-delete").mkdir()

    private = copy_log_directory(original.logs, original.root.parent / "copy")

    assert len(private.notices) == 2
    assert "log-start-offset-checkpoint is missing" in private.notices[0]
    assert "payments-0.0123456789abcdef-delete is left out" in private.notices[1]
    assert not (original.root.parent / "copy" / "payments-0.0123456789abcdef-delete").exists()


def test_a_directory_of_nothing_but_kafkas_own_topics_is_refused(tmp_path: Path) -> None:
    with LogDirectoryWriter.create(tmp_path / "logs", CLUSTER_ID) as writer:
        writer.create_log("__consumer_offsets", 0, random_uuid())

    with pytest.raises(DemoError, match="Kafka's own"):
        copy_log_directory(tmp_path / "logs", tmp_path / "copy")


def test_a_folder_that_is_no_log_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidLogDirectoryError):
        copy_log_directory(tmp_path, tmp_path / "copy")


def test_an_expected_partition_is_named_as_its_directory_is() -> None:
    assert str(ExpectedPartition("orders", 3, 0, lambda: iter(()))) == "orders-3"
