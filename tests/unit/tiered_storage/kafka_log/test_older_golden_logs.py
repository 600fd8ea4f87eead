"""The golden logs of message formats v0 and v1, which a real broker of 2.8 wrote, against all that reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from golden import checks
from golden.logs import GoldenLogs
from golden.older_formats import APPEND_TIME_CODECS, INDEX_INTERVAL_BYTES, OLDER_CODECS, OLDER_LOGS, TOPICS
from golden.topics import FIRST_TIMESTAMP
from support.local_logs import read_all
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.records.batch_header import BatchHeader, TimestampType
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.legacy_message import read_legacy_batch
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.kafka_log.records.segment_scan import scan_segment

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=INDEX_INTERVAL_BYTES)
ALIKE = (checks.check_columns, checks.check_dump_against_the_tool, checks.check_dump_finds_all_sound)


@pytest.mark.parametrize("check", ALIKE)
def test_older_logs_pass_the_checks_of_all_logs(check: Callable[[GoldenLogs], None]) -> None:
    check(OLDER_LOGS)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_record_is_read_as_a_consumer_got_it(topic: str) -> None:
    batches = checks.all_batches(OLDER_LOGS.partition(topic))
    assert [record for _, batch in batches for record in read_records(batch)] == OLDER_LOGS.consumed()[
        f"{topic}-0"
    ].records


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLDER_CODECS)
def test_each_format_has_each_codec(magic: int, codec: str) -> None:
    headers = [header for header, _ in checks.all_batches(OLDER_LOGS.partition(f"v{magic}-{codec}"))]
    assert {(header.magic, header.compression) for header in headers} == {(magic, Compression[codec.upper()])}


@pytest.mark.parametrize("codec", APPEND_TIME_CODECS)
def test_a_stamp_is_valid_for_all_messages_in_a_wrapper(codec: str) -> None:
    for header, batch in checks.all_batches(OLDER_LOGS.partition(f"v1-append-time-{codec}")):
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert {record.timestamp for record in read_records(batch)} == {header.max_timestamp}


def test_one_segment_mixes_all_formats_and_its_table_has_every_record() -> None:
    first, *_ = list_segments(OLDER_LOGS.partition("mixed"))
    found = list(checks.batches(first))
    assert {header.magic for header, _ in found} == {0, 1, 2}
    table = scan_segment(first.log_path, first.base_offset)
    records = [read_records(batch) for _, batch in found]
    assert table.base_offset.tolist() == [each[0].offset for each in records]
    assert table.last_offset.tolist() == [each[-1].offset for each in records]
    assert table.record_count.tolist() == [len(each) for each in records]
    assert table.max_timestamp.tolist() == [max(record.timestamp for record in each) for each in records]
    assert table.size.sum() == first.size()


@pytest.mark.parametrize("magic", [0, 1])
def test_compaction_leaves_gaps_between_the_messages_of_a_wrapper(magic: int) -> None:
    first, *_ = list_segments(OLDER_LOGS.partition(f"v{magic}-compacted"))
    table = scan_segment(first.log_path, first.base_offset)
    assert (table.record_count < table.last_offset - table.base_offset + 1).any()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_local_log_opens_what_the_broker_left_and_cuts_nothing_off(topic: str, tmp_path: Path) -> None:
    directory = shutil.copytree(OLDER_LOGS.partition(topic), tmp_path / f"{topic}-0")
    before = {path.name: path.read_bytes() for path in directory.glob("*.log")}
    with LocalLog.open(directory, CONFIG, clock=lambda: FIRST_TIMESTAMP) as log:
        assert log.truncated_bytes == 0
        assert read_all(log) == OLDER_LOGS.consumed()[f"{topic}-0"].records
    assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == before


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if not topic.endswith("compacted")])
def test_a_local_log_follows_a_broker_byte_for_byte(topic: str, tmp_path: Path) -> None:
    theirs = OLDER_LOGS.partition(topic)
    with LocalLog.create(tmp_path, topic, 0, random_uuid(), CONFIG, clock=lambda: FIRST_TIMESTAMP) as log:
        for _, batch in checks.all_batches(theirs):
            log.append_as_follower(bytes(batch))
    written = b"".join(segment.log_path.read_bytes() for segment in list_segments(log.directory))
    assert written == b"".join(segment.log_path.read_bytes() for segment in list_segments(theirs))
    bases = [segment.base_offset for segment in list_segments(log.directory)]
    first_offsets = {header.base_offset for segment in list_segments(theirs) for header in headers_of(segment)}
    assert len(bases) > 1
    assert set(bases) <= first_offsets


def headers_of(segment: LogSegment) -> list[BatchHeader]:
    return [
        read_legacy_batch(batch).header if header.magic < 2 else header for header, batch in checks.batches(segment)
    ]


@pytest.mark.parametrize("topic", [f"v{magic}-{codec}" for magic in (0, 1) for codec in OLDER_CODECS[1:]])
def test_rebuilt_indexes_of_compressed_messages_equal_the_brokers(topic: str) -> None:
    """It appends a wrapper at once; of messages that are not compressed it indexes a whole produce request at once."""
    for segment in list_segments(OLDER_LOGS.partition(topic)):
        built = rebuild_indexes(segment, index_interval_bytes=INDEX_INTERVAL_BYTES)
        assert built.offset_index == segment.offset_index_path.read_bytes()
        assert built.time_index == segment.time_index_path.read_bytes()
