"""A segment of Kafka's remote tier shows what the same segment in a log directory shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.sources import log_directory_under_test
from support.command_line import run_on
from support.native_tier import NativeTier, a_native_tier, finish_of, tiered
from support.remote_logs import (
    BATCH_BYTES,
    ORDERS_0,
    RemoteLogFiles,
    assert_clean,
    ranges,
    segments_of,
    topic_id,
    unsynced,
)
from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.remote_log.adopt import tier_logs
from tiered_storage.remote_log.adopt.tier_logs import TierLogs
from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, SegmentLocation
from tiered_storage.remote_log.source.segment_source import OpenSegment


@pytest.fixture
def tier(tmp_path: Path) -> NativeTier:
    """A log with transactions over the borders of segments; its closed segments are in both tiers."""
    log_directory_under_test(tmp_path)
    return tiered(RemoteLogFiles(tmp_path), keeps_local=True)


@pytest.fixture
def logs(tier: NativeTier) -> Iterator[TierLogs]:
    with tier.files.open() as native, tier_logs.opened(native.context) as logs:
        yield logs


def pairs(tier: NativeTier, logs: TierLogs) -> Iterator[tuple[LocalSegment, OpenSegment, OpenSegment]]:
    """Yield each segment, as the tier has it and as the log directory has it."""
    log, history = logs.partition(ORDERS_0), ProducerHistory()
    assert log is not None
    assert len(log.segments) > 3
    for segment in log.segments:
        path = tier.files.partition_directory() / f"{segment.base_offset:020}.log"
        yield segment, open_segment(segment.location), LogDirectorySegment.at(SegmentLocation(str(path)), history)


def test_its_bytes_and_indexes_are_the_same(tier: NativeTier, logs: TierLogs) -> None:
    for segment, of_tier, local in pairs(tier, logs):
        assert (of_tier.base_offset, of_tier.size(), of_tier.head()) == (
            segment.base_offset,
            segment.size,
            local.head(),
        )
        assert (of_tier.crc32c(), of_tier.exists()) == (local.crc32c(), True)
        windows = [bytes(window) for window, _ in of_tier.windows(window_bytes=300)]
        assert len(windows) > 1
        assert b"".join(windows) == b"".join(bytes(window) for window, _ in local.windows())
        for one, other in (
            (of_tier.offset_index.read(), local.offset_index.read()),
            (of_tier.time_index.read(), local.time_index.read()),
        ):
            assert one is not None
            assert other is not None
            assert one.to_bytes() == other.to_bytes()
        aborted = of_tier.transaction_index.read()
        assert (aborted and aborted.transactions) == ((found := local.transaction_index.read()) and found.transactions)


@pytest.mark.parametrize("is_index_false", [False, True])
def test_every_offset_is_found_at_the_same_place(tier: NativeTier, logs: TierLogs, is_index_false: bool) -> None:
    if is_index_false:
        for path in tier.remote.rglob("*.index"):
            path.write_bytes(path.read_bytes()[:4] + b"\0\0\0\7")
    for segment, of_tier, local in pairs(tier, logs):
        assert segment.end_offset is not None
        for offset in range(segment.base_offset, segment.end_offset + 2):
            assert of_tier.read(offset) == local.read(offset)
            scanned = [
                None if found is None else (found[0], found[1].base_offset.tolist(), found[2])
                for found in (of_tier.scan(offset), local.scan(offset))
            ]
            assert scanned[0] == scanned[1]
            assert (scanned[0] is None) == (offset > segment.end_offset)


@pytest.mark.parametrize("has_snapshots", [True, False])
def test_its_producers_are_the_same(tier: NativeTier, logs: TierLogs, has_snapshots: bool) -> None:
    if not has_snapshots:
        for root in (tier.remote, tier.files.log_directory):
            for path in root.rglob("*.snapshot"):
                path.unlink()
    for _, of_tier, local in pairs(tier, logs):
        assert of_tier.producers.before() == local.producers.before()
        assert of_tier.producers.by_log() == local.producers.by_log()


def test_segments_of_a_next_leader_may_overlap(tmp_path: Path) -> None:
    """Kafka's leader copies whole segments of its own from the end of the remote log on."""
    tier = a_native_tier(tmp_path / "kafka")
    tier.files.properties["log.dirs"] = []
    first, second = tier.segments[:2]
    batches = tier.object_of(first).read_bytes()[BATCH_BYTES:] + tier.object_of(second).read_bytes()[:BATCH_BYTES]
    between = replace(
        first,
        segment_id=RemoteLogSegmentId(ORDERS_0, topic_id("a segment of another leader")),
        start_offset=5,
        end_offset=14,
        leader_epochs=(EpochEntry(0, 5),),
    )
    folder = tier.object_of(first).parent
    (folder / f"{5:020}-{between.segment_id.id}.log").write_bytes(batches)
    tier.add(between, finish_of(between))
    (tmp_path / "ours").mkdir()
    ours = RemoteLogFiles(tmp_path / "ours", properties={"log.dirs": []})

    with tier.files.open() as native, tier_logs.opened(native.context) as logs:
        log = logs.partition(ORDERS_0)
        assert log is not None
        known = [open_segment(each.location).producers.before().end_offset for each in log.segments]
    with unsynced():
        adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config)

    assert known == [0, 5, 10, 20]
    assert adopted.exit_code == 0, adopted.err
    with ours.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9), (5, 14), (10, 19), (20, 29)]
        assert [each.kind for each in remote_log.checks.audit(deep=True).anomalies] == []
        assert_clean(remote_log)


def test_locations_are_opened_only_meanwhile(tier: NativeTier) -> None:
    with tier.files.open() as native:
        with tier_logs.opened(native.context) as logs:
            log = logs.partition(ORDERS_0)
            assert log is not None
            with pytest.raises(InvalidLogDirectoryError):
                open_segment(SegmentLocation(f"{tier_logs.SCHEME}://orders-0/another.log"))
            with pytest.raises(ConfigurationError), tier_logs.opened(native.context):
                pass
            assert open_segment(log.segments[0].location).exists()
        with pytest.raises(InvalidLogDirectoryError):
            open_segment(log.segments[0].location)
