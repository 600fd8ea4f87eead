"""Expires many small remote segments in a local store: plan, mark, delete their objects, update the metadata.

Each segment has its three objects, which are small because only their number matters. Every step is durable when it
returns: folders and SQLite are synced. The peer unlinks as many files of that size and syncs their folders.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import yaml
from measuring import STATE, Goal, judge, print_machine

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.settings.settings import load_settings

GOAL = 60.0
SEGMENTS = 10_000
SEGMENT_OFFSETS = 100
OBJECT_BYTES = 200
TOPIC_ID = random_uuid()


def a_site(root: Path) -> RemoteLogManager:
    """Open an empty remote log below `root`, with a topic whose retention keeps almost nothing."""
    topic = {"remote.storage.enable": True, "remote.deletion.allowed": True, "retention.ms": 1}
    path = root / "settings.yaml"
    path.write_text(
        yaml.safe_dump(
            {"state.directory": str(root / "state"), "remote.log.deletion.grace.ms": 0, "topics": {"benchmark": topic}}
        )
    )
    settings = load_settings(path, environ={})
    return RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True)


def fill(remote_log: RemoteLogManager, store: Path, partitions: int, segments: int) -> None:
    """Write `segments` finished segments in each partition, metadata and objects."""
    remote_log.context.bind_store()
    asked = [TopicIdPartition("benchmark", TOPIC_ID, number, "benchmark") for number in range(partitions)]
    held = remote_log.context.leases.acquire_many(asked, "benchmark", 600_000).granted
    for lease in held:
        started = [_segment(lease, number) for number in range(segments)]
        remote_log.context.segments.add_remote_log_segments([(segment, lease) for segment in started])
        steps = [(_finished(segment, _write_objects(segment, store)), lease) for segment in started]
        remote_log.context.segments.update_remote_log_segments(steps)
    remote_log.context.leases.release_many(held)


def _segment(lease: Lease, number: int) -> RemoteLogSegmentMetadata:
    start = number * SEGMENT_OFFSETS
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(lease.topic_id_partition, random_uuid()),
        start,
        start + SEGMENT_OFFSETS - 1,
        max_timestamp=-1,
        event_timestamp=wall_clock(),
        size=OBJECT_BYTES,
        leader_epochs=(EpochEntry(0, start),),
        fencing_number=lease.fencing_number,
    )


def _write_objects(segment: RemoteLogSegmentMetadata, store: Path) -> bytes:
    names = segment_object_names(segment.segment_id, segment.start_offset)
    marker = CommitMarker(segment.segment_id.id, OBJECT_BYTES, 0, OBJECT_BYTES, 0)
    (store / names.data).parent.mkdir(parents=True, exist_ok=True)
    for name in (names.data, names.indexes):
        (store / name).write_bytes(bytes(OBJECT_BYTES))
    (store / names.commit_marker).write_bytes(marker.to_bytes())
    return marker.custom_metadata()


def _finished(segment: RemoteLogSegmentMetadata, custom_metadata: bytes) -> RemoteLogSegmentMetadataUpdate:
    state = SegmentState.COPY_SEGMENT_FINISHED
    return RemoteLogSegmentMetadataUpdate(segment.segment_id, state, wall_clock(), custom_metadata, max_timestamp=0)


def measure(directory: Path, partitions: int, segments: int) -> float:
    """Print how long each step of one run took; return the seconds of all steps."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="deletion-") as root, a_site(Path(root)) as remote_log:
        fill(remote_log, Path(root) / "state" / "remote", partitions, segments)
        begun = time.perf_counter()
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, wall_clock())
        planned = time.perf_counter()
        remote_log.deletions.mark_expired(plans, "benchmark")
        marked = time.perf_counter()
        deleted = len(remote_log.deletions.delete_marked("benchmark").deleted)
        ended = time.perf_counter()
        if deleted != partitions * segments:
            raise SystemExit(f"{deleted} segments were deleted, not {partitions * segments}: nothing was measured")
    print(
        f"  {partitions:5} partitions of {segments:6} segments: plan {planned - begun:5.2f} s, "
        f"mark {marked - planned:5.2f} s, delete {ended - marked:5.2f} s, together {ended - begun:5.2f} s"
    )
    return ended - begun


def unlink_files(directory: Path, folders: int, files: int) -> float:
    """Return the seconds that it takes to unlink `files` in each of `folders`, and to sync each folder."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="unlink-") as root:
        for folder in range(folders):
            (Path(root) / str(folder)).mkdir()
            for file in range(files):
                (Path(root) / str(folder) / str(file)).write_bytes(bytes(OBJECT_BYTES))
        begun = time.perf_counter()
        for folder in range(folders):
            for file in range(files):
                os.unlink(f"{root}/{folder}/{file}")  # noqa: PTH108 - as fast as a peer can be
            descriptor = os.open(f"{root}/{folder}", os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where the store goes (200 MB; %(default)s)")
    directory = parser.parse_args().directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print(f"Deletion of {SEGMENTS} remote segments, {3 * SEGMENTS} objects, on a local store")
    print_machine(directory)
    goals = []
    for partitions in (1, 100, 1000):
        ours = measure(directory, partitions, SEGMENTS // partitions)
        peer = unlink_files(directory, partitions, 3 * SEGMENTS // partitions)
        what = f"deletion, {SEGMENTS:,} segments of {partitions:,} partitions"
        goals.append(Goal(what, f"{ours:.1f} s", f"{peer:.2f} s unlink and sync", ours / peer, GOAL, is_most=True))
    print_machine(directory)
    return judge(goals)


if __name__ == "__main__":
    sys.exit(main())
