"""A topic with preallocate=true: its active segment is read while zeros follow the batches, in log and indexes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from golden.checks import record_of
from servers.real_kafka import RealKafka
from support.command_line import run
from support.kafka_clients import Codec
from support.records import rows_of, varied_records
from support.transactions import split
from tiered_storage.kafka_log.columnar.decoder import iterate_columns
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.records.record import Record

SEGMENT_BYTES = 1 << 20
INDEX_BYTES = 64 << 10
TOPIC = "preallocated"
_CONFIG = {
    "preallocate": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "segment.index.bytes": str(INDEX_BYTES),
    "index.interval.bytes": "4096",
}
_SIZE_OF_AN_OFFSET_ENTRY, _SIZE_OF_A_TIME_ENTRY = 8, 12


@dataclass(frozen=True, slots=True)
class Preallocated:
    """A partition of a broker that runs, a closed and an active segment, and what a consumer got of it."""

    directory: Path
    consumed: list[Record]

    @property
    def active(self) -> LogSegment:
        return list_segments(self.directory)[-1]

    @property
    def consumed_of_active(self) -> list[Record]:
        return [record for record in self.consumed if record.offset >= self.active.base_offset]


@pytest.fixture(scope="module")
def written(real_kafka: RealKafka) -> Preallocated:
    client = real_kafka.client
    client.create_topic(TOPIC, 1, _CONFIG)
    client.produce(TOPIC, varied_records(12_000, seed=1), batch_num_messages=50)
    codecs: tuple[Codec, ...] = ("none", "lz4", "zstd")
    for seed, codec in enumerate(codecs, 2):
        client.produce(TOPIC, varied_records(1_000, seed=seed), codec=codec, batch_num_messages=50)
    written = Preallocated(real_kafka.log_dir / f"{TOPIC}-0", client.consume_all(TOPIC))
    assert 0 < written.active.base_offset < written.consumed[-1].offset
    return written


def test_the_active_segment_of_the_broker_has_zeros_after_its_batches_and_entries(written: Preallocated) -> None:
    active = written.active
    assert active.log_path.stat().st_size == SEGMENT_BYTES
    assert active.log_path.read_bytes()[-100_000:] == bytes(100_000)
    for path, entry_bytes in (
        (active.offset_index_path, _SIZE_OF_AN_OFFSET_ENTRY),
        (active.time_index_path, _SIZE_OF_A_TIME_ENTRY),
    ):
        assert path.stat().st_size == INDEX_BYTES // entry_bytes * entry_bytes


@pytest.mark.parametrize("value_views", [False, True])
def test_its_columns_are_what_a_consumer_gets(written: Preallocated, value_views: bool) -> None:
    names = ["offset", "timestamp", "key", "value", "headers"]
    for segment in list_segments(written.directory):
        batches = iterate_columns(segment.log_path, segment.base_offset, names, value_views=value_views)
        found = [record_of(row) for row in rows_of(batches)]
        end = found[-1].offset + 1
        assert found == [record for record in written.consumed if segment.base_offset <= record.offset < end]
    assert end == written.consumed[-1].offset + 1


def test_its_indexes_end_with_their_last_entry(written: Preallocated) -> None:
    active = written.active
    offsets = OffsetIndex.read(active.offset_index_path, active.base_offset).offsets
    times = TimeIndex.read(active.time_index_path, active.base_offset)
    assert 10 < len(offsets) < INDEX_BYTES // _SIZE_OF_AN_OFFSET_ENTRY
    assert (offsets[1:] > offsets[:-1]).all()
    assert {*offsets.tolist()} <= {record.offset for record in written.consumed_of_active}
    latest = {record.timestamp for record in written.consumed_of_active}
    assert {*times.timestamps.tolist()} <= latest


def test_it_is_shown_whole_and_its_zeros_are_no_damage(written: Preallocated) -> None:
    result = run("dump", "--json", "--records", written.directory)

    assert result.exit_code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    offsets = [line["offset"] for line in lines if line["type"] == "record"]
    assert offsets == [record.offset for record in written.consumed]
    notes = [line["message"] for line in lines if "bytes of zeros follow" in line.get("message", "")]
    assert len(notes) == 1


def test_a_log_that_its_broker_left_so_is_opened_with_all_of_it(written: Preallocated, tmp_path: Path) -> None:
    """As after a killed broker: the zeros are still there."""
    directory = shutil.copytree(written.directory, tmp_path / written.directory.name)
    end = written.consumed[-1].offset + 1
    with LocalLog.open(directory) as log:
        assert (log.topic, log.log_end_offset) == (TOPIC, end)
        assert list(_records_of(log)) == written.consumed
        log.append(list(varied_records(10, seed=9)))
        assert log.log_end_offset == end + 10
    with LocalLog.open(directory) as log:
        assert (log.truncated_bytes, log.log_end_offset) == (0, end + 10)


def _records_of(log: LocalLog) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while batches := log.fetch(offset, 100_000).batches:
        for header, records in split(batches):
            found += records
            offset = header.next_offset
    return found
