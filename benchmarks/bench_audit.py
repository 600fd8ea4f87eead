"""Audits: quickly over very many segments, and deeply, byte by byte, on one core.

The quick audit compares many small objects with the metadata of a database; it lists every object. The deep audit reads
copies of 64 MiB back from a local store: it checks the CRC-32C of each object, the CRC of every batch, and every index
against the batches. Its objects are in the page cache.

The peer of the quick audit is a walk over the same store that asks for the size of every file. The peer of the deep
audit reads the same objects with their CRC-32C and does nothing else.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from measuring import STATE, Goal, checked_read, judge, print_machine, walk_seconds
from sample_site import SampleLog, SampleSite

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.audit import audit_remote_log
from tiered_storage.remote_log.audit.deep_audit import audit_segment
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

QUICK_GOAL = 13.0
DEEP_GOAL = 0.32
SEGMENT_OFFSETS = 1000
INDEXES_BYTES = 700
BATCHES = SampleLog(2, segments=4, segment_bytes=64 << 20, batch_records=15)


def many_segments(partition: TopicIdPartition, count: int, lease: Lease) -> list[RemoteLogSegmentMetadata]:
    """Return `count` consecutive segments of `partition`."""
    return [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, random_uuid()),
            number * SEGMENT_OFFSETS,
            (number + 1) * SEGMENT_OFFSETS - 1,
            max_timestamp=-1,
            event_timestamp=wall_clock(),
            size=4096,
            leader_epochs=(EpochEntry(0, number * SEGMENT_OFFSETS),),
            fencing_number=lease.fencing_number,
        )
        for number in range(count)
    ]


def fill(root: Path, store: MetadataStore, partition: TopicIdPartition, count: int) -> None:
    """Put finished segments of `partition` into the metadata, and objects of their sizes into the store."""
    lease = store.leases.acquire(partition, "bench", 3_600_000)
    segments = many_segments(partition, count, lease)
    store.segments.add_remote_log_segments([(segment, lease) for segment in segments])
    finishing = []
    for segment in segments:
        marker = CommitMarker(segment.segment_id.id, segment.size, 0, INDEXES_BYTES, 0)
        update = RemoteLogSegmentMetadataUpdate(
            segment.segment_id, SegmentState.COPY_SEGMENT_FINISHED, wall_clock(), marker.custom_metadata(), 1
        )
        finishing.append((update, lease))
    finished = store.segments.update_remote_log_segments(finishing)
    storage = ObjectRemoteStorageManager(LocalDirectory(root))
    for number, outcome in enumerate(finished):
        if not isinstance(outcome, RemoteLogSegmentMetadata):
            raise SystemExit(f"nothing was measured: {outcome}")
        for name, size in storage.expected_objects(outcome).items():
            path = root / name
            if not number:
                path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                os.truncate(file.fileno(), size)


def quick(directory: Path, partitions: int, segments: int) -> tuple[float, float, int]:
    """Return the seconds of a quick audit and of a walk, and the largest memory of this process so far in MiB."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="audit-") as folder:
        site = SampleSite(Path(folder))
        site.configure()
        with site.open() as remote_log:
            store, storage = remote_log.context.store, ObjectRemoteStorageManager(LocalDirectory(site.store))
            for number in range(partitions):
                partition = TopicIdPartition("bench", random_uuid(), number % 10, f"topic-{number // 10}")
                fill(site.store, store, partition, segments // partitions)
                state, lease = store.segments.partition_state(partition), store.leases.fencing_number(partition)
                storage.partition_manifests.write(PartitionManifest(partition, lease, state, wall_clock()))
            begun = time.perf_counter()
            report = audit_remote_log(remote_log.context, EVERYTHING)
            seconds = time.perf_counter() - begun
        walked = walk_seconds(site.store)
    if report.anomalies or report.segments != segments:
        raise SystemExit(f"nothing was measured: {report.segments} segments, {report.anomalies[:3]}")
    return seconds, walked, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def deep(directory: Path, rounds: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return GB a second of CPU of each round, on one thread: of the audit, and of reading the same with CRC-32C."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="audit-") as folder:
        site = SampleSite(Path(folder))
        site.write(BATCHES)
        with site.open() as remote_log:
            job = site.begin_copy(remote_log)
            storage = remote_log.context.storage
            if not isinstance(storage, ObjectRemoteStorageManager):
                raise SystemExit("nothing was measured: the sample has another store")
            for group in range(job.groups):
                run_copy_groups(remote_log.context.access(job.files), [group])
            segments = [
                outcome.task.metadata.updated(outcome.finished) for outcome in job.outcomes() if outcome.finished
            ]
            size = sum(segment.size for segment in segments)
            objects = sorted(site.store.rglob("*.log"))
            rates, peers = [], []
            for number in range(rounds + 1):
                begun = time.process_time()
                anomalies = [each for segment in segments for each in audit_segment(segment, storage, RateLimit())]
                if anomalies or not segments:
                    raise SystemExit(f"nothing was measured: {len(segments)} segments, {anomalies[:3]}")
                if number:  # the first round compiles the kernels
                    rates.append(size / (time.process_time() - begun) / 1e9)
                    read, seconds = checked_read(objects, time.process_time)
                    peers.append(read / seconds / 1e9)
    return rates, peers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where stores are made (3 GB; %(default)s)")
    parser.add_argument("--segments", type=int, default=100_000, help="of the quick audit (%(default)s)")
    parser.add_argument("--partitions", type=int, default=2_000, help="of the quick audit (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of the deep audit (%(default)s)")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print_machine(directory)
    rates, peers = deep(directory, arguments.rounds)
    rate, peer = median(rates), median(peers)
    print(f"deep audit, 8 segments of 64 MiB, batches of 16 KiB: {rate:.2f} GB a second of CPU, best {max(rates):.2f}")
    seconds, walked, memory = quick(directory, arguments.partitions, arguments.segments)
    count = f"{arguments.segments:,} segments in {arguments.partitions:,} partitions"
    print(f"quick audit, {count}: {seconds:.1f} s; the process never had more than {memory} MiB")
    print_machine(directory)
    return judge(
        [
            Goal("deep audit, a core", f"{rate:.2f} GB/s", f"{peer:.2f} read with CRC-32C", rate / peer, DEEP_GOAL),
            Goal(
                f"quick audit, {arguments.segments:,} segments",
                f"{seconds:.1f} s",
                f"{walked:.1f} s walk with sizes",
                seconds / walked,
                QUICK_GOAL,
                is_most=True,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
