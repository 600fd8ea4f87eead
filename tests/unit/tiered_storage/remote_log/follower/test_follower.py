from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import (
    ORDERS_0,
    SEGMENT_OFFSETS,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    copy,
    end_below,
    local_log,
    offsets_read,
    ranges,
    segments_of,
    topic_id,
)
from support.storages import StagedStorage
from support.transactions import COMMIT, data
from tiered_storage.errors import (
    ClusterUnreachableError,
    ConfigurationError,
    InvalidLogDirectoryError,
    LineageContradictedError,
    LogDirectoryLockedError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import list_segments, producer_snapshot_path
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot
from tiered_storage.remote_log.follower.follower import Follower, follow
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from unit.tiered_storage.remote_log.follower.led_partition import LedPartition

REMOTE_END = 3 * SEGMENT_OFFSETS


@pytest.fixture
def led(tmp_path: Path) -> LedPartition:
    """A leader of 35 records, of which 30 are remote."""
    return LedPartition(a_copied_remote_log(tmp_path))


def _starts(led: LedPartition) -> list[int]:
    return [segment.base_offset for segment in list_segments(led.directory / "orders-0")]


def test_it_starts_at_the_leaders_first_local_offset_with_epochs_and_producers_of_the_store(led: LedPartition) -> None:
    led.trim(before=SEGMENT_OFFSETS)

    report = led.follow()

    assert [(start.offset, start.rebuilt_from) for start in report.starts] == [(SEGMENT_OFFSETS, None)]
    assert (report.log_start_offset, report.local_start_offset, report.log_end_offset) == (0, 10, 35)
    assert led.follower_content() == led.content(SEGMENT_OFFSETS)
    partition = led.directory / "orders-0"
    assert read_leader_epochs(partition / LEADER_EPOCH_CHECKPOINT) == (EpochEntry(0, 0),)
    assert read_producer_snapshot(producer_snapshot_path(partition, SEGMENT_OFFSETS)) == ()
    assert led.fetched[0] == SEGMENT_OFFSETS


@pytest.mark.parametrize("lacking", [None, IndexKind.PRODUCER_SNAPSHOT])
def test_it_knows_producers_whose_records_are_remote_only(led: LedPartition, lacking: IndexKind | None) -> None:
    with led.log() as log:
        for sequence in range(4):
            log.append_encoded_batch(data(0, 20, sequence, transactional=True))
        log.roll()
        log.append_encoded_batch(data(0, 20, 4, transactional=True))
        start = log.segments[-1].base_offset
        log.append_end_marker(20, 0, COMMIT)
    with led.files.open() as remote_log:
        assert copy(remote_log).is_whole
        led.trim(before=start)
        storage = StagedStorage(remote_log.context.storage)
        storage.lacks = lacking
        context = replace(led.beside(remote_log).context, storage=storage)
        with Follower.open(context, ORDERS_0, led.directory, leader=led) as follower:
            [begun] = follow(follower).starts

    assert (begun.offset, begun.rebuilt_from) == (start, None if lacking is None else 0)
    [producer] = read_producer_snapshot(producer_snapshot_path(led.directory / "orders-0", start))
    assert [producer] == list(read_producer_snapshot(producer_snapshot_path(led.files.partition_directory(), start)))
    assert (producer.producer_id, producer.current_transaction_first_offset) == (20, 35)


def test_it_reads_no_remote_index_before_it_has_caught_up(led: LedPartition) -> None:
    indexed: list[int] = []
    with led.follower() as follower:
        led.before_fetch = lambda: indexed.append(len(follower.index.segments))
        report = follow(follower)

    assert (indexed, report.indexed) == ([0], 3)


def test_it_may_start_after_the_last_remote_offset(led: LedPartition) -> None:
    report = led.follow(follower_fetch_last_tiered_offset_enable=True)

    assert [start.offset for start in report.starts] == [REMOTE_END]
    assert led.follower_content() == led.content(REMOTE_END)
    assert report.fetched_bytes == len(led.content(REMOTE_END))


def test_reads_below_its_local_start_come_from_the_remote_tier(led: LedPartition) -> None:
    led.trim(before=2 * SEGMENT_OFFSETS)

    with led.follower() as follower:
        follow(follower)
        remote_log = follower.remote_log()
        assert offsets_read(remote_log, 0) == list(range(35))
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            seen = reader.snapshot(ORDERS_0)
            assert (seen.log_start_offset, seen.local_start) == (0, 2 * SEGMENT_OFFSETS)

    with led.as_local_log().open() as remote_log:
        assert_clean(remote_log)


def test_it_continues_where_it_ended(led: LedPartition) -> None:
    led.trim(before=SEGMENT_OFFSETS)
    led.follow()
    led.append(3)
    led.fetched.clear()

    report = led.follow()

    assert report.starts == ()
    assert led.fetched[0] == 35
    assert led.follower_content() == led.content(SEGMENT_OFFSETS)


def test_its_segments_are_those_of_the_remote_tier(led: LedPartition) -> None:
    led.bytes_at_once = 1 << 20
    led.files.properties["topics"]["orders"]["segment.bytes"] = 1 << 20
    led.append(2)

    led.follow()

    assert _starts(led) == [0, 10, 20, 30]


def test_as_a_leader_it_copies_on_without_a_gap_or_a_double(led: LedPartition) -> None:
    led.trim(before=SEGMENT_OFFSETS)
    led.append(5)
    led.follow()

    with led.as_local_log().open() as remote_log:
        report = copy(remote_log)
        assert report.is_whole
        copied = ranges(segments_of(remote_log))
        assert_clean(remote_log)

    assert copied == [(start, start + 9) for start in range(0, 50, 10)]


def test_one_that_follows_may_copy_too(led: LedPartition) -> None:
    led.append(5)
    with led.follower() as follower:
        follow(follower)
        remote_log = follower.remote_log()
        assert copy(remote_log).is_whole
        assert ranges(segments_of(remote_log))[-1] == (40, 49)
        follower.maintain()
        assert follower.report().indexed == 5


def test_without_a_remote_log_it_follows_from_the_leaders_first_offset(tmp_path: Path) -> None:
    led = LedPartition(_without_remote(a_copied_remote_log(tmp_path)))

    report = led.follow()

    assert [start.offset for start in report.starts] == [0]
    assert led.follower_content() == led.content()


def test_a_log_that_begins_inside_a_batch_is_followed_from_that_batch(tmp_path: Path) -> None:
    led = LedPartition(_without_remote(a_copied_remote_log(tmp_path)))
    led.trim(before=13)

    report = led.follow()

    assert led.follower_content() == led.content(13)
    assert (report.log_start_offset, report.local_start_offset) == (13, SEGMENT_OFFSETS)


def test_records_may_be_deleted_into_the_batch_after_its_end(tmp_path: Path) -> None:
    led = LedPartition(_without_remote(a_copied_remote_log(tmp_path)))
    with led.log() as log:
        log.truncate_fully_and_start_at(log.log_end_offset)
    with led.follower() as follower:
        follow(follower)
        led.append(2)
        led.trim(before=37)
        report = follow(follower)

    assert [start.offset for start in report.starts] == [35, 37]
    assert (report.log_start_offset, report.local_start_offset, report.log_end_offset) == (37, 35, 45)
    assert led.follower_content() == led.content(37)


def _without_remote(files: RemoteLogFiles) -> RemoteLogFiles:
    shutil.rmtree(files.root / "state")
    return files


def test_a_gap_below_the_leaders_log_is_refused(led: LedPartition) -> None:
    led.append(4)
    led.trim(before=40)

    with pytest.raises(RemoteObjectNotFoundError, match="39"):
        led.follow()


def test_a_leader_that_trims_meanwhile_is_followed_from_its_new_start(led: LedPartition) -> None:
    led.before_fetch = lambda: led.trim(before=2 * SEGMENT_OFFSETS)

    report = led.follow()

    assert [start.offset for start in report.starts] == [0, 2 * SEGMENT_OFFSETS]
    assert led.follower_content() == led.content(2 * SEGMENT_OFFSETS)


def test_one_that_is_killed_after_its_start_leaves_a_directory_that_can_be_read(led: LedPartition) -> None:
    led.trim(before=SEGMENT_OFFSETS)
    killed = led.files.root / "killed"

    def kill() -> None:
        shutil.copytree(led.directory, killed)

    led.before_fetch = kill

    led.follow()

    files = replace(led.files, properties={**led.files.properties, "log.dirs": [str(killed)]})
    with files.open() as remote_log:
        assert local_log(remote_log).tiered_by_kafka is None


def test_a_follower_that_was_away_while_the_leader_trimmed_starts_again(led: LedPartition) -> None:
    led.follow()
    led.append(4)
    with led.files.open() as remote_log:
        assert copy(remote_log).is_whole
    led.trim(before=50)

    report = led.follow()

    assert [start.offset for start in report.starts] == [50]
    assert led.follower_content() == led.content(50)
    with led.as_local_log().open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(55))


def test_it_keeps_its_records_while_the_leader_lost_them_and_nothing_remote_has_them(led: LedPartition) -> None:
    led.follow()
    before = led.follower_content()
    led.append(4)
    led.trim(before=40)

    with pytest.raises(RemoteObjectNotFoundError):
        led.follow()

    assert led.follower_content() == before


def test_it_keeps_records_that_nobody_else_has(tmp_path: Path) -> None:
    led = LedPartition(_without_remote(a_copied_remote_log(tmp_path)))
    led.follow()
    before = led.follower_content()
    led.append(4)
    led.trim(before=40)

    with pytest.raises(RemoteObjectNotFoundError, match=r"has offsets 0 to 34.* offset 40.* offsets 0 to 34"):
        led.follow()

    assert led.follower_content() == before


def test_it_keeps_records_that_a_gap_of_the_remote_log_has(led: LedPartition) -> None:
    led.follow()
    before = led.follower_content()
    led.append(4)
    led.trim(before=40)
    led.files.properties["copy.over.gaps"] = True
    with led.files.open() as remote_log:
        copy(remote_log)
        assert ranges(segments_of(remote_log))[-1] == (40, 49)
    led.trim(before=50)

    with pytest.raises(RemoteObjectNotFoundError, match="holds offsets 30 to 34"):
        led.follow()

    assert led.follower_content() == before


def test_another_leader_truncates_it(led: LedPartition) -> None:
    led.append(3)
    led.follow()
    led.lead_from(40)
    led.append(2, shift=1000)

    report = led.follow()

    assert report.truncations == 1
    assert led.follower_content() == led.content()
    assert read_leader_epochs(led.directory / "orders-0" / LEADER_EPOCH_CHECKPOINT)[-1] == EpochEntry(1, 40)


def test_several_leaders_truncate_it_step_by_step(led: LedPartition) -> None:
    led.epoch = 1
    led.append(2)
    led.epoch = 2
    led.append(2)
    led.follow()
    led.lead_from(40)
    led.epoch = 5
    led.append(1, shift=1000)

    report = led.follow()

    assert report.truncations >= 1
    assert led.follower_content() == led.content()


def test_a_leader_that_changes_while_it_is_followed_truncates_it_too(led: LedPartition) -> None:
    led.append(3)
    with led.follower() as follower:
        follow(follower)
        led.lead_from(40)
        led.append(2, shift=1000)
        assert follow(follower).truncations == 1

    assert led.follower_content() == led.content()


def test_truncation_below_its_local_start_starts_it_again(led: LedPartition) -> None:
    led.follow(follower_fetch_last_tiered_offset_enable=True)
    led.lead_from(25)
    led.append(3, shift=1000)

    report = led.follow()

    [start] = report.starts
    assert start.offset == 25
    assert start.rebuilt_from is not None
    assert led.follower_content() == led.content(25)


def test_a_leader_that_contradicts_the_remote_tier_for_good_is_refused(led: LedPartition) -> None:
    led.follow(follower_fetch_last_tiered_offset_enable=True)
    with led.log() as log:
        log.truncate_to(25)

    with pytest.raises(LineageContradictedError):
        led.follow()


def test_a_leader_of_earlier_epochs_is_refused(led: LedPartition) -> None:
    led.epoch = 3
    led.append(3)
    led.follow()
    with led.log() as log:
        log.truncate_to(35)
    led.epoch = 0

    with pytest.raises(LineageContradictedError, match="epoch 3"):
        led.follow()


@pytest.mark.parametrize("offset", [SEGMENT_OFFSETS, REMOTE_END])
def test_without_a_snapshot_in_the_store_the_producers_follow_from_the_batches(led: LedPartition, offset: int) -> None:
    led.trim(before=offset)
    with led.files.open() as remote_log:
        storage = StagedStorage(remote_log.context.storage)
        storage.lacks = IndexKind.PRODUCER_SNAPSHOT
        context = replace(led.beside(remote_log).context, storage=storage)
        with Follower.open(context, ORDERS_0, led.directory, leader=led) as follower:
            [start] = follow(follower).starts

    assert (start.offset, start.rebuilt_from) == (offset, 0)
    assert read_producer_snapshot(producer_snapshot_path(led.directory / "orders-0", offset)) == ()


def test_a_lost_segment_ends_the_start_and_the_next_run_begins_again(led: LedPartition) -> None:
    led.trim(before=SEGMENT_OFFSETS)
    with led.files.open() as remote_log:
        storage = StagedStorage(remote_log.context.storage)
        storage.fail_with = RemoteStorageError("the store is down")
        context = replace(led.beside(remote_log).context, storage=storage)
        with (
            pytest.raises(RemoteStorageError, match="down"),
            Follower.open(context, ORDERS_0, led.directory, leader=led) as follower,
        ):
            follow(follower)

    assert [start.offset for start in led.follow().starts] == [SEGMENT_OFFSETS]
    assert led.follower_content() == led.content(SEGMENT_OFFSETS)


def test_an_outage_of_the_store_does_not_keep_it_from_following(led: LedPartition) -> None:
    led.follow()
    led.append(2)
    with led.files.open() as remote_log:
        copy(remote_log)
        storage = StagedStorage(remote_log.context.storage)
        storage.fail_with = RemoteStorageError("the store is down")
        context = replace(led.beside(remote_log).context, storage=storage)
        with Follower.open(context, ORDERS_0, led.directory, leader=led) as follower:
            report = follow(follower)

    assert ["down" in finding.message for finding in report.findings] == [True]
    assert report.log_end_offset == 45


def test_one_that_stays_follows_what_comes_and_survives_an_unreachable_cluster(led: LedPartition) -> None:
    def fail() -> None:
        raise ClusterUnreachableError("no broker answers")

    turns = iter([lambda: None, fail, led.append, lambda: None, lambda: None])
    errors: list[TieredStorageError] = []

    def is_wanted() -> bool:
        led.before_fetch = next(turns, None) or led.before_fetch
        return len(led.fetched) < 4

    with led.follower() as follower:
        report = follow(follower, stays=True, is_wanted=is_wanted, on_error=errors.append)

    assert [str(error) for error in errors] == ["no broker answers"]
    assert report.log_end_offset == 40
    assert led.follower_content() == led.content()


def test_it_begins_at_the_log_start_over_both_tiers(led: LedPartition) -> None:
    led.trim(before=SEGMENT_OFFSETS)
    with led.files.open() as remote_log:
        end_below(remote_log, 5)

    report = led.follow()

    assert report.log_start_offset == 5
    assert read_leader_epochs(led.directory / "orders-0" / LEADER_EPOCH_CHECKPOINT) == (EpochEntry(0, 5),)


def test_its_directory_is_locked_while_it_follows(led: LedPartition) -> None:
    with led.follower(), led.files.open() as remote_log, pytest.raises(LogDirectoryLockedError):
        Follower.open(led.beside(remote_log).context, ORDERS_0, led.directory, leader=led)


def test_a_directory_of_another_cluster_is_refused(led: LedPartition) -> None:
    led.directory.mkdir()
    MetaProperties(1, "another", 1, None).write(led.directory / META_PROPERTIES)

    with pytest.raises(ConfigurationError, match="another"):
        led.follow()


def test_a_folder_of_something_else_is_refused(led: LedPartition) -> None:
    led.directory.mkdir()
    (led.directory / "thesis.txt").write_text("mine")

    with pytest.raises(InvalidLogDirectoryError, match="other files"):
        led.follow()


def test_a_directory_inside_the_store_is_refused(led: LedPartition) -> None:
    with led.files.open() as remote_log, pytest.raises(ConfigurationError, match=r"rsm\.config\.url"):
        Follower.open(led.beside(remote_log).context, ORDERS_0, led.files.store / "logs", leader=led)


def test_a_log_of_a_deleted_topic_of_that_name_is_refused(led: LedPartition) -> None:
    led.follow()
    write_topic_id(led.directory / "orders-0" / PARTITION_METADATA, topic_id("another"))

    with pytest.raises(InvalidLogDirectoryError, match="created again"):
        led.follow()


def test_without_a_running_cluster_nothing_is_followed(led: LedPartition) -> None:
    with led.files.open() as remote_log, pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        Follower.open(remote_log.context, ORDERS_0, led.directory)
