"""Segments are rolled from fetched batches exactly where a log that appends them rolls, with the same files."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tiered_storage.errors import CorruptRecordError, MalformedAnswerError, UnexpectedAppendOffsetError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot
from tiered_storage.kafka_log.records.control_record import ControlRecordType, EndTransactionMarker, encode_end_marker
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.tasks import CopyTask
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.source.fetched_log import FetchedLog, RolledPartition, RollRange
from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, RollRules, SegmentLocation
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from unit.tiered_storage.remote_log.fake_cluster import FakeCluster, base_of, path_of

NOW = 1_700_000_000_000
ORDERS_0 = TopicIdPartition("cluster", random_uuid(), 0, "orders")
ROLLS = {
    "size": {"segment_bytes": 3000},
    "time": {"segment_ms": 5000},
    "a full index": {"segment_index_bytes": 48},
    "all of them": {"segment_bytes": 9000, "segment_ms": 9000, "segment_index_bytes": 120},
}


def rules(*, segment_bytes: int = 1 << 20, segment_ms: int = 1 << 50, segment_index_bytes: int = 1 << 20) -> RollRules:
    return RollRules(segment_bytes, segment_ms, segment_index_bytes, index_interval_bytes=500, fetch_bytes=2000)


def some_batches(seed: int, start: int = 0, *, times: bool = True, gaps: Sequence[int] = (0,)) -> list[bytes]:
    """Return batches of several producers, some in transactions, with times out of order and `gaps` between offsets."""
    chance = random.Random(seed)  # noqa: S311 -- content, no secret
    batches: list[bytes] = []
    offset, sequences, is_open = start, dict.fromkeys(range(4), 0), dict.fromkeys((2, 3), False)
    for _ in range(200):
        producer = chance.randrange(4)
        time = NOW + 100 * len(batches) + chance.randrange(-2000, 2000) if times else -1
        if is_open.get(producer) and chance.random() < 0.3:
            marker = EndTransactionMarker(chance.choice([ControlRecordType.ABORT, ControlRecordType.COMMIT]), 0, time)
            who = {"producer_id": producer, "producer_epoch": 0}
            batches.append(encode_end_marker(marker, offset, **who, partition_leader_epoch=0))
            is_open[producer] = False
            offset += 1
            continue
        records = [Record(offset + at, time, b"k", chance.randbytes(chance.randrange(200))) for at in range(3)]
        has_producer = producer > 0
        if has_producer and producer in is_open:
            is_open[producer] = True
        batches.append(
            encode_batch(
                records,
                producer_id=producer if has_producer else -1,
                producer_epoch=0 if has_producer else -1,
                base_sequence=sequences[producer] if has_producer else -1,
                is_transactional=producer in is_open,
            )
        )
        sequences[producer] += 3
        offset += 3 + chance.choice(gaps)
    return batches


def fetched(folder: Path, given: RollRules, start: int, end: int, now: int = NOW) -> FetchedLog:
    folder.mkdir()
    return FetchedLog(RolledPartition(ORDERS_0, given, folder, lambda: now), RollRange(start, end), ())


def segments_of(log: FetchedLog, cluster: FakeCluster) -> Iterator[LocalSegment]:
    buffer = FetchBuffer(1 << 20)
    while (segment := log.next_segment(cluster, buffer)) is not None:  # type: ignore[arg-type]
        yield segment


def rolled(folder: Path, given: RollRules, start: int, batches: Iterable[bytes]) -> list[LogSegment]:
    """Append `batches` to a LocalLog with the same rules; return its closed segments."""
    config = LogConfig(
        segment_bytes=given.segment_bytes,
        segment_ms=given.segment_ms,
        segment_index_bytes=given.segment_index_bytes,
        index_interval_bytes=given.index_interval_bytes,
        retention_ms=-1,
    )
    log = LocalLog.create(folder, "orders", 0, ORDERS_0.topic_id, config, clock=lambda: NOW, base_offset=start)
    with log:
        log.append_as_follower(b"".join(batches))
    return list_segments(log.directory)[:-1]


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize("changed", ROLLS.values(), ids=ROLLS)
def test_segments_are_those_of_a_log_that_rolls_by_the_same_rules(
    tmp_path: Path, changed: dict[str, int], start: int
) -> None:
    batches = some_batches(seed=1, start=start)
    cluster = FakeCluster(batches)
    expected = rolled(tmp_path / "log", rules(**changed), start, batches)
    log = fetched(tmp_path / "fetched", rules(**changed), start, cluster.ends[-1])

    found = list(segments_of(log, cluster))

    log.close()
    directory = tmp_path / "fetched" / "orders-0"
    assert [each.base_offset for each in found] == [each.base_offset for each in expected]
    assert len(found) > 2
    for ours, theirs in zip(found, expected, strict=True):
        mine = LogSegment(ours.base_offset, directory)
        assert content(mine.log_path) == content(theirs.log_path)
        assert ours.size == theirs.size()
        assert [content(path) for path in mine.index_paths] == [content(path) for path in theirs.index_paths]
        assert ours.end_offset is not None
        snapshots = [producer_snapshot_path(each.directory, ours.end_offset + 1) for each in (mine, theirs)]
        assert len({read_producer_snapshot(each) for each in snapshots}) == 1


def test_records_without_times_age_with_the_segment(tmp_path: Path) -> None:
    times = iter(range(NOW, NOW + 1000 * 500, 500))
    batches = some_batches(seed=2, times=False)
    cluster = FakeCluster(batches)
    folder = tmp_path / "fetched"
    folder.mkdir()
    place = RolledPartition(ORDERS_0, rules(segment_ms=2000), folder, lambda: next(times))
    log = FetchedLog(place, RollRange(0, cluster.ends[-1]), ())

    found = list(segments_of(log, cluster))

    log.close()
    assert len(found) > 2


def test_released_segments_leave_no_file_once_those_before_them_are_released(tmp_path: Path) -> None:
    cluster = FakeCluster(some_batches(seed=3))
    log = fetched(tmp_path / "fetched", rules(segment_bytes=3000), 0, cluster.ends[-1])
    first, second, third, *_ = segments_of(log, cluster)
    directory = tmp_path / "fetched" / "orders-0"

    log.release(second)
    # The copy of the first one compares the producers after it.
    assert [path.name for path in directory.glob(f"{second.base_offset:020}.*")] == [
        f"{second.base_offset:020}.snapshot"
    ]
    assert path_of(first).exists()
    log.release(first)
    log.release(third)

    log.close()
    assert third.end_offset is not None
    left = {path.name for path in directory.iterdir()}
    assert min(left)[:20] == f"{third.end_offset + 1:020}"


def test_where_nobody_knows_the_producers_no_copy_needs_the_segment_before(tmp_path: Path) -> None:
    cluster, folder = FakeCluster(some_batches(seed=8, start=500)), tmp_path / "fetched"
    folder.mkdir()
    place = RolledPartition(ORDERS_0, rules(segment_bytes=3000), folder, lambda: NOW)
    log = FetchedLog(place, RollRange(500, cluster.ends[-1]), None)
    found = list(segments_of(log, cluster))
    by_the_log = [LogDirectorySegment.at(SegmentLocation(str(path_of(each)))).producers.before() for each in found]
    assert not list(folder.rglob("*.snapshot"))

    for segment, expected in zip(found, by_the_log, strict=True):
        producers = open_segment(segment.location).producers
        assert producers.before() == producers.by_log() == expected
        assert expected.seen_from == 500
        log.release(segment)

    log.close()
    assert len(found) > 5
    assert any(each.open_transactions for each in by_the_log)
    assert {path.suffix for path in (folder / "orders-0").iterdir()} == {".seen"}


class Aborting(FakeCluster):
    """Counts its answers; each says that the next of `aborted` were aborted."""

    aborted: Sequence[tuple[AbortedTransaction, ...]] = ()
    answers = 0

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits | None = None
    ) -> FetchAnswer:
        answer = super().fetch(positions, buffer, limits)
        aborted = self.aborted[self.answers] if self.answers < len(self.aborted) else ()
        self.answers += 1
        return replace(answer, partitions=tuple(replace(each, aborted=aborted) for each in answer.partitions))


@pytest.mark.parametrize(
    "other",
    [AbortedTransaction(2, 401), AbortedTransaction(3, 400), None],
    ids=["another offset", "another producer", "none"],
)
def test_two_answers_must_agree_on_aborted_transactions_where_nobody_knows_the_producers(
    tmp_path: Path, other: AbortedTransaction | None
) -> None:
    aborted = (AbortedTransaction(2, 400),)
    for number, second in enumerate([(*aborted, AbortedTransaction(3, 505)), () if other is None else (other,)]):
        cluster, folder = Aborting(some_batches(seed=8, start=500)), tmp_path / str(number)
        cluster.aborted = [aborted, second]
        folder.mkdir()
        wanted = RollRange(500, cluster.ends[-1])
        log = FetchedLog(RolledPartition(ORDERS_0, rules(segment_bytes=3000), folder, lambda: NOW), wanted, None)
        if number == 0:
            # Both have the same one from before the log's start.
            assert log.next_segment(cluster, FetchBuffer(1 << 20)) is not None  # type: ignore[arg-type]
        else:
            with pytest.raises(MalformedAnswerError, match="different aborted transactions"):
                log.next_segment(cluster, FetchBuffer(1 << 20))  # type: ignore[arg-type]
        log.close()


def test_an_end_that_the_log_does_not_have_costs_one_answer_however_many_segments_it_promised(tmp_path: Path) -> None:
    cluster, end = Aborting(some_batches(seed=1)), 1 << 50
    log = fetched(tmp_path / "fetched", rules(segment_bytes=3000), 0, end)
    buffer = FetchBuffer(1 << 20)
    found = list(segments_of(log, cluster))
    answers = cluster.answers

    assert [log.next_segment(cluster, buffer) for _ in range(1000)] == [None] * 1000  # type: ignore[arg-type]

    log.close()
    assert len(found) > 5
    assert cluster.answers == answers


def test_a_segment_that_is_written_over_a_longer_one_has_nothing_of_it(tmp_path: Path) -> None:
    batches = some_batches(seed=7)
    cluster, buffer = FakeCluster(batches), FetchBuffer(1 << 20)
    log = fetched(tmp_path / "fetched", rules(segment_ms=3000), 0, cluster.ends[-1])
    read: list[bytes] = []
    while (segment := log.next_segment(cluster, buffer)) is not None:  # type: ignore[arg-type]
        read.append(path_of(segment).read_bytes())
        log.release(segment)
    log.close()

    sizes = [len(each) for each in read]
    assert any(later < earlier for earlier, later in pairwise(sizes))
    assert b"".join(batches).startswith(b"".join(read))


def test_the_file_of_a_failed_copy_is_not_written_over(tmp_path: Path) -> None:
    cluster, buffer = FakeCluster(some_batches(seed=7)), FetchBuffer(1 << 20)
    log = fetched(tmp_path / "fetched", rules(segment_bytes=3000), 0, cluster.ends[-1])
    first = log.next_segment(cluster, buffer)  # type: ignore[arg-type]
    assert first is not None
    with path_of(first).open("rb") as reader:
        before = path_of(first).read_bytes()
        log.release(first, is_reused=False)
        assert log.next_segment(cluster, buffer) is not None  # type: ignore[arg-type]
        assert not path_of(first).exists()
        assert reader.read() == before
    log.close()


def test_a_segment_ends_below_what_is_wanted(tmp_path: Path) -> None:
    cluster = FakeCluster(some_batches(seed=4))
    later = NOW + 1_000_000
    log = fetched(tmp_path / "fetched", rules(segment_ms=100_000), 0, cluster.ends[100] - 1, later)

    found = list(segments_of(log, cluster))

    log.close()
    assert found[-1].end_offset == cluster.ends[99] - 1


def test_a_batch_with_a_broken_header_ends_the_log_after_what_is_sound(tmp_path: Path) -> None:
    batches = some_batches(seed=5)
    broken = bytearray(batches[50])
    broken[57:61] = (1 << 30).to_bytes(4, "big")
    batches[50] = bytes(broken)
    cluster = FakeCluster(batches)
    log = fetched(tmp_path / "fetched", rules(segment_bytes=1000), 0, cluster.ends[-1])
    found: list[LocalSegment] = []

    with pytest.raises(CorruptRecordError, match="orders-0"):
        found.extend(segments_of(log, cluster))

    log.close()
    assert found
    assert all((each.end_offset or 0) < base_of(batches[50]) for each in found)


def test_a_broker_that_sends_older_batches_again_is_refused(tmp_path: Path) -> None:
    cluster = FakeCluster(some_batches(seed=6))
    log = fetched(tmp_path / "fetched", rules(segment_bytes=3000), 0, cluster.ends[-1])
    buffer = FetchBuffer(1 << 20)
    log.next_segment(cluster, buffer)  # type: ignore[arg-type]
    cluster.ends = [end + 1_000_000 for end in cluster.ends]

    with pytest.raises(UnexpectedAppendOffsetError, match="orders-0"):
        while log.next_segment(cluster, buffer):  # type: ignore[arg-type]
            pass

    log.close()


def test_a_gap_that_compaction_left_is_never_at_the_end_of_a_segment(tmp_path: Path) -> None:
    batches = some_batches(seed=10, gaps=(0, 1, 7))
    cluster = FakeCluster(batches)
    log = fetched(tmp_path / "fetched", rules(segment_bytes=1500), 0, cluster.ends[-1])
    found = list(segments_of(log, cluster))
    log.close()

    assert len(found) > 20
    assert all(earlier.end_offset == later.base_offset - 1 for earlier, later in pairwise(found))
    for segment in found:
        *_, (_, last) = open_segment(segment.location).windows()
        assert last.last_offset[-1] == segment.end_offset


class Nowhere:
    """A store that takes everything and keeps nothing."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        assert sum(len(chunk) for chunk in data.chunks) == metadata.size
        data.indexes()
        return b""


def test_the_copy_of_a_fetched_segment_compares_every_checksum(tmp_path: Path) -> None:
    batches = some_batches(seed=9)
    flipped = bytearray(batches[30])
    flipped[-1] ^= 1
    batches[30] = bytes(flipped)
    cluster = FakeCluster(batches)
    log = fetched(tmp_path / "fetched", rules(segment_bytes=3000), 0, cluster.ends[-1])

    failures: dict[int, str | None] = {}
    for segment in segments_of(log, cluster):
        assert segment.end_offset is not None
        metadata = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(ORDERS_0, random_uuid()),
            segment.base_offset,
            segment.end_offset,
            max_timestamp=-1,
            event_timestamp=NOW,
            size=segment.size,
            leader_epochs=(EpochEntry(0, segment.base_offset),),
        )
        task = CopyTask(metadata, Lease(ORDERS_0, "test", 1, 0), segment.location, (EpochEntry(0, 0),))
        outcome = copy_segment(task, Nowhere(), CopySizes(1 << 20, 500, 1 << 20), lambda: NOW)  # type: ignore[arg-type]
        failures[segment.end_offset] = None if outcome.failure is None else outcome.failure.error

    log.close()
    hit = min(end for end in failures if end >= base_of(batches[30]))
    assert failures == dict.fromkeys(failures) | {hit: "CorruptRecordError"}
