"""Files that a crash left half done in a log's directory are handled as a broker handles them.

Each partition of one topic has something else planted; a broker starts on one copy of them all, we open another one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.files import files_in
from support.kafka_clients import RealKafkaClient, send
from support.records import varied_records
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.files.offset_checkpoint import RECOVERY_POINT_CHECKPOINT
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.log.recovery.clean_shutdown import CLEAN_SHUTDOWN
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.records.record_batch import BatchHeader, read_batch_header
from tiered_storage.kafka_log.records.segment_scan import iterate_segment

TOPIC = "leftovers"
SMALL_LOG = LogConfig(segment_bytes=16_384)
LEFT_OVER = (".deleted", ".cleaned", ".swap")


@dataclass(frozen=True, slots=True)
class Site:
    """A partition of a broker that stopped, in which something is left half done of its second and third segment."""

    directory: Path
    segments: list[LogSegment]
    """The first four that the broker left."""

    @classmethod
    def of(cls, directory: Path) -> Site:
        segments = list_segments(directory)
        assert len(segments) > 4
        return cls(directory, segments[:4])

    @property
    def replaced(self) -> list[LogSegment]:
        return self.segments[1:3]

    def files_of(self, segment: LogSegment) -> list[Path]:
        """The files of a segment itself: snapshots stay when compaction takes it."""
        return [path for path in (segment.log_path, *segment.index_paths) if path.exists()]

    def snapshots_of_replaced(self) -> set[str]:
        """The names of the snapshots of the segments that compaction replaces."""
        return {producer_snapshot_path(self.directory, each.base_offset).name for each in self.segments[2:]}

    def compact(self, suffix: str, most: int | None = None) -> list[Path]:
        """Write what compaction makes of both segments, under the name of the first one; return its files.

        It leaves the markers, and of each transaction the first and the last batch; in all `most` batches.
        """
        batches = [batch for segment in self.replaced for batch in _batches(segment)]
        is_data = [not header.is_control for header, _ in batches]
        inner = {i for i in range(1, len(batches) - 1) if all(is_data[i - 1 : i + 2])}
        assert inner
        kept = [batch for i, batch in enumerate(batches) if i not in inner]
        return self._write(self.replaced, self.replaced[0].base_offset, kept[:most], suffix)

    def split(self, first_suffix: str, second_suffix: str) -> None:
        """Write the two halves of the second segment, as where its offsets are too many for one index."""
        split = self.replaced[:1]
        batches = list(_batches(split[0]))
        middle = len(batches) // 2
        first, second = batches[:middle], batches[middle:]
        self._write(split, split[0].base_offset, first, first_suffix)
        self._write(split, second[0][0].base_offset, second, second_suffix)

    def _write(
        self, instead_of: list[LogSegment], base_offset: int, batches: list[tuple[BatchHeader, bytes]], suffix: str
    ) -> list[Path]:
        """Write a segment of `batches`, with the indexes that it has once the others are out of its way."""
        elsewhere = shutil.copytree(self.directory, self.directory.with_name("elsewhere"))
        for segment in instead_of:
            for path in self.files_of(replace(segment, directory=elsewhere)):
                path.unlink()
        segment = LogSegment(base_offset, elsewhere)
        segment.log_path.write_bytes(b"".join(content for _, content in batches))
        rebuild_indexes(segment).write(segment)
        written = [path.replace(self.directory / f"{path.name}{suffix}") for path in self.files_of(segment)]
        shutil.rmtree(elsewhere)
        return written


def _batches(segment: LogSegment) -> Iterator[tuple[BatchHeader, bytes]]:
    for window, table in iterate_segment(segment.log_path, segment.base_offset):
        start = int(table.position[0])
        for position, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
            batch = bytes(window[position - start : position - start + size])
            yield read_batch_header(batch), batch


def mark_deleted(paths: list[Path]) -> None:
    for path in paths:
        path.rename(path.with_name(path.name + ".deleted"))


def nothing(_: Site) -> None:
    """Here both only open the log, so that any other difference comes from the leftovers."""


def deleted(site: Site) -> None:
    """Retention took the first segment."""
    mark_deleted(site.files_of(site.segments[0]))


def cleaned(site: Site) -> None:
    """Compaction was writing its new segment."""
    log, *_ = site.compact(".cleaned")
    os.truncate(log, log.stat().st_size // 2)


def swap(site: Site) -> None:
    """Compaction was done, and both old segments are still there."""
    site.compact(".swap")


def swap_of_few(site: Site) -> None:
    """Compaction kept nothing of the third segment, so it begins after the end of its replacement."""
    site.compact(".swap", most=2)


def swap_of_nothing(site: Site) -> None:
    """Compaction left an empty segment."""
    site.compact(".swap", most=0)


def swap_without_its_indexes(site: Site) -> None:
    """The swap was cut off after the indexes had been renamed, and before the log was."""
    for path in site.compact(".swap")[1:]:
        path.replace(path.with_name(path.name.removesuffix(".swap")))


def swap_of_indexes_alone(site: Site) -> None:
    """The swap was cut off after the log had been renamed, and before the indexes were."""
    log, *_ = site.compact(".swap")
    log.replace(log.with_name(log.name.removesuffix(".swap")))
    mark_deleted(site.files_of(site.replaced[1]))


def cleaned_beside_a_swap(site: Site) -> None:
    """A split was cut off when one of its parts had been renamed: the last one is renamed first."""
    site.split(".cleaned", ".swap")


def swap_of_both_parts(site: Site) -> None:
    """A split was done, and the segment is still there."""
    site.split(".swap", ".swap")


def indexes_without_a_log(site: Site) -> None:
    for path in site.replaced[0].index_paths:
        offset = site.replaced[0].base_offset + 1
        shutil.copy(path, path.with_name(f"{offset:020d}{path.suffix}"))


SITES: list[Callable[[Site], None]] = [
    nothing,
    deleted,
    cleaned,
    swap,
    swap_of_few,
    swap_of_nothing,
    swap_without_its_indexes,
    swap_of_indexes_alone,
    cleaned_beside_a_swap,
    swap_of_both_parts,
    indexes_without_a_log,
]
"""What is left in the partition of the same number."""


def differences(plant: Callable[[Site], None], site: Site, crashed: bool) -> set[str]:
    """The names of the files that we and a broker leave differently, and mean to."""
    names: set[str] = set()
    if plant is deleted:
        # A broker removes the snapshot at the log's very start; here it records what producers did before that.
        names.add(producer_snapshot_path(site.directory, site.segments[1].base_offset).name)
    if plant is swap_of_nothing:
        # A broker leaves the aborts of the old segment with the new one that has no batch.
        names.add(site.replaced[0].transaction_index_path.name)
    if plant in (swap_of_few, swap_of_nothing) and crashed:
        # A broker that recovers a log writes all snapshots again, from what batches there still are. Here those stay
        # that were written when the segments ended: they know the producers whose batches are gone.
        names |= site.snapshots_of_replaced()
    if plant is swap_without_its_indexes and not crashed:
        # No crash leaves the mark of a stop in order. A broker that believes it takes for indexes what it made itself
        # to read the .swap: 10 MiB of zeros for offsets, nothing for times, and no aborts.
        names |= {path.name for path in site.replaced[0].index_paths}
    return names


@pytest.fixture(scope="module")
def written(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of a broker that stopped in order."""
    with RealKafka(kafka_programs, tmp_path_factory.mktemp("written")) as kafka:
        kafka.client.create_topic(TOPIC, len(SITES), {"internal.segment.bytes": str(SMALL_LOG.segment_bytes)})
        _produce(kafka.client)
    return kafka.log_dir


def _produce(client: RealKafkaClient) -> None:
    """Send transactions, each to all partitions, and abort every other one."""
    producer = client.producer(transactional_id=TOPIC, enable_idempotence="true", batch_num_messages=20)
    producer.init_transactions()
    for turn in range(8):
        producer.begin_transaction()
        for partition in range(len(SITES)):
            send(producer, TOPIC, partition, varied_records(60, seed=turn))
        if turn % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


@pytest.mark.parametrize("crashed", [False, True])
def test_crash_leftovers_are_cleared_as_by_a_broker(
    kafka_programs: KafkaPrograms, written: Path, tmp_path: Path, crashed: bool
) -> None:
    """After a crash all logs are recovered from their beginning on; without one, indexes and snapshots are believed."""
    ours = shutil.copytree(written, tmp_path / "ours")
    sites = [Site.of(ours / f"{TOPIC}-{number}") for number in range(len(SITES))]
    for site, plant in zip(sites, SITES, strict=True):
        before = files_in(site.directory, LEADER_EPOCH_CHECKPOINT)
        plant(site)
        assert (files_in(site.directory, LEADER_EPOCH_CHECKPOINT) == before) == (plant is nothing)
    if crashed:
        for name in (CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT):
            (ours / name).unlink()
    theirs = shutil.copytree(ours, tmp_path / "theirs")
    with RealKafka(kafka_programs, tmp_path / "broker", log_dir=theirs):
        pass
    LogDirectoryWriter.open(ours, SMALL_LOG).close()

    for site, plant in zip(sites, SITES, strict=True):
        found = files_in(site.directory, LEADER_EPOCH_CHECKPOINT)
        expected = files_in(theirs / site.directory.name, LEADER_EPOCH_CHECKPOINT)
        assert not [name for name in expected if name.endswith(LEFT_OVER)]
        differing = {name for name in {*found, *expected} if found.get(name) != expected.get(name)}
        assert differing == differences(plant, site, crashed), plant.__name__
        assert epochs(site.directory) == epochs(theirs / site.directory.name)[:-1]


def epochs(directory: Path) -> tuple[EpochEntry, ...]:
    return read_leader_epochs(directory / LEADER_EPOCH_CHECKPOINT)
