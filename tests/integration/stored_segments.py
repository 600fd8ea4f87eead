"""What a site beside a broker has stored: its records, and comparisons of its segments with the broker's files."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Literal

from support.live_sites import LiveSite, finished
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import read_leader_epochs
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot, read_producer_snapshot
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


def ensure_as_stored(
    site: LiveSite, partition: int = 0, *, indexes: bool = True, times_of: Literal["batches", "records"] = "batches"
) -> int:
    """Compare every remote segment with the broker's files of the same base offset; return how many there were.

    A broker that was restarted in the middle of a segment has other entries in its `indexes`. The time indexes of
    earlier brokers have the same times, and the offsets of records, where those of 4.3 have the ends of their batches.
    """
    with site.open() as remote_log:
        storage = remote_log.context.storage
        assert isinstance(storage, ListableStorage)
        segments = finished(remote_log, partition)
        remote = {each.start_offset: (each, storage.fetch_bundle(each)) for each in segments}
        local = site.local(partition)
        closed = {one.base_offset: (one, after.base_offset) for one, after in pairwise(local)}
        shared = sorted(remote.keys() & closed.keys())
        for base in shared:
            (metadata, bundle), (files, end) = remote[base], closed[base]
            assert metadata.end_offset == end - 1
            assert b"".join(storage.fetch_log_segment(metadata)) == files.log_path.read_bytes()
            if indexes:
                assert bundle[IndexKind.OFFSET] == files.offset_index_path.read_bytes()
                ours, theirs = bundle[IndexKind.TIMESTAMP], files.time_index_path.read_bytes()
                assert ours == theirs if times_of == "batches" else _times(ours) == _times(theirs)
            aborted = files.transaction_index_path
            assert bundle.get(IndexKind.TRANSACTION, b"") == (aborted.read_bytes() if aborted.exists() else b"")
            snapshot = producer_snapshot_path(files.directory, end)
            producers = parse_producer_snapshot(bundle[IndexKind.PRODUCER_SNAPSHOT], "ours")
            assert set(producers) == set(read_producer_snapshot(snapshot))
        epochs = read_leader_epochs(files.directory / "leader-epoch-checkpoint")
        assert segments[-1].leader_epochs[-1].epoch == epochs[-1].epoch
    return len(shared)


def _times(time_index: bytes) -> list[int]:
    return [timestamp for timestamp, _ in struct.iter_unpack(">qi", time_index)]


def read(site: LiveSite, isolation: Isolation, start: int = 0) -> list[Record]:
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        [partition] = [one for one in remote_log.context.segments.list_partitions() if one.partition == 0]
        return list(reader.records(partition, start, isolation=isolation))
