from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions
from support.plain_reader import PlainReader
from support.remote_logs import (
    CLUSTER_ID,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    be_the_original,
    begin,
    carry_out,
    copy,
    flip_bit,
    held_by,
    local_log,
    offsets_read,
    partition_of,
    ranges,
    segments_of,
    topic_id,
)
from tiered_storage.errors import (
    ConfigurationError,
    LeaseLostError,
    OffsetOutOfRangeError,
    RemoteStorageError,
    StoreMismatchError,
)
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.rebuild.metadata_rebuild import (
    FENCING_JUMP,
    MetadataRebuild,
    RebuildReport,
    rebuild_metadata,
)
from tiered_storage.remote_log.repair.redundancy import held_twice
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest, PartitionManifests
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

TWO = {("clicks", 0): 1, ("orders", 0): 3}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, TWO)


def lose_metadata(files: RemoteLogFiles) -> Path:
    """Move the metadata away, as if they were lost; return where a copy of them is."""
    kept = files.root / "old.db"
    for path in files.root.glob("state/remote_log_metadata.db*"):
        if path.suffix == ".db":
            shutil.copy(path, kept)
        path.unlink()
    return kept


def rebuilt(files: RemoteLogFiles, **options: Any) -> RebuildReport:
    settings = files.settings()
    return rebuild_metadata(settings, store_options(settings, {}), files.clock, **options)


def answers(remote_log: RemoteLogManager, partition: TopicIdPartition = ORDERS_0) -> dict[str, Any]:
    """Return what anybody can ask of a partition's metadata."""
    segments = remote_log.context.segments
    found = [segments.remote_log_segment_metadata(partition, offset, 0) for offset in range(-1, 45)]
    return {
        "by offset": [each and _plain(each) for each in found],
        "by epoch": [segments.highest_offset_for_epoch(partition, epoch) for epoch in range(-1, 3)],
        "listed": [_plain(each) for each in segments_of(remote_log, partition)],
        "state": segments.partition_state(partition),
        "log start": segments.log_start_offset(partition),
        "partitions": segments.list_partitions(),
    }


def _plain(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    """Return a segment without when its copy ended and under which lease it began: the store does not tell."""
    return (
        segment.segment_id, segment.start_offset, segment.end_offset, segment.max_timestamp, segment.size,
        segment.leader_epochs, segment.state, segment.broker_id, segment.custom_metadata,
    )  # fmt: skip


def test_all_answers_are_the_same_as_before(files: RemoteLogFiles) -> None:
    partitions = (ORDERS_0, partition_of("clicks"))
    with files.open() as remote_log:
        before = [answers(remote_log, partition) for partition in partitions]
    lose_metadata(files)
    report = rebuilt(files)

    assert (report.partitions, report.segments, report.unfinished, report.unreadable) == (2, 4, 0, ())
    with files.open() as remote_log:
        assert [answers(remote_log, partition) for partition in partitions] == before
        assert_clean(remote_log)
        files.append(2)
        assert ranges(copy(remote_log).committed) == [(30, 39)]
        assert_clean(remote_log)


def test_a_dry_run_writes_nothing(files: RemoteLogFiles) -> None:
    lose_metadata(files)
    files.settings()
    before = {path: path.read_bytes() for path in files.root.rglob("*") if path.is_file()}

    assert rebuilt(files, dry_run=True).segments == 4
    assert {path: path.read_bytes() for path in files.root.rglob("*") if path.is_file()} == before


def test_expired_segments_stay_expired(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        state = remote_log.context.segments.partition_state(ORDERS_0)
        _documents(remote_log).write(
            PartitionManifest(ORDERS_0, lease.fencing_number, PartitionState(10, state.lineage), files.clock.now)
        )
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 10, lease)
        remote_log.context.leases.release(lease)
    lose_metadata(files)
    rebuilt(files)

    with files.open() as remote_log:
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 10
        with pytest.raises(OffsetOutOfRangeError):
            offsets_read(remote_log, 5)
        assert offsets_read(remote_log, 10) == list(range(10, 35))


def test_unfinished_copies_are_marked_and_deleted_as_usual(files: RemoteLogFiles) -> None:
    files.append(2)
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log))
    marker = files.objects(".commit")[-1]
    marker.unlink()
    lose_metadata(files)

    assert rebuilt(files).unfinished == 1
    with files.open() as remote_log:
        assert [segment.state for segment in segments_of(remote_log)] == [
            *[SegmentState.COPY_SEGMENT_FINISHED] * 3, SegmentState.DELETE_SEGMENT_STARTED,
        ]  # fmt: skip
        assert remote_log.checks.audit().anomalies == ()
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        remote_log.deletions.clocks.trust()
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 1
        assert len(files.objects(".log")) == 4
        assert_clean(remote_log)


@pytest.mark.parametrize("reached", list(PartitionDeleteState))
def test_the_deletion_of_a_topic_continues_where_it_was(files: RemoteLogFiles, reached: PartitionDeleteState) -> None:
    with files.open() as remote_log:
        remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=False))
        plan = remote_log.deletions.plan_topic_deletion("orders")
        remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
        lease = held_by(remote_log, "expire")
        state = replace(remote_log.context.segments.partition_state(ORDERS_0), delete_state=reached)
        _documents(remote_log).write(PartitionManifest(ORDERS_0, lease.fencing_number, state, files.clock.now))
    files.properties["topics"]["orders"]["remote.storage.enable"] = False
    lose_metadata(files)

    report = rebuilt(files)
    assert (report.segments, report.marked) == ((4, 0) if reached is PartitionDeleteState.MARKED else (1, 3))
    with files.open() as remote_log:
        # What had ended begins again where something is left.
        continues = min(reached, PartitionDeleteState.STARTED)
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is continues
        remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=True))
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.FINISHED
        assert [path.parent.name for path in files.store.rglob("orders-*/**/*.*")] == ["state"]
        assert_clean(remote_log)


def test_a_run_of_before_is_refused_whatever_it_still_does(files: RemoteLogFiles) -> None:
    files.append(2)
    with files.open() as remote_log:
        zombie = held_by(remote_log, "a run of before")
    lose_metadata(files)
    rebuilt(files)

    with files.open() as remote_log:
        for _ in range(3):
            with pytest.raises(LeaseLostError):
                remote_log.context.segments.advance_log_start_offset(ORDERS_0, 30, zombie)
            with pytest.raises(LeaseLostError):
                remote_log.context.segments.put_lineage(ORDERS_0, (), zombie)
            lease = held_by(remote_log, "a run of now")
            assert lease.fencing_number > FENCING_JUMP
            remote_log.context.leases.release(lease)


def test_a_second_rebuild_continues_above_the_first(files: RemoteLogFiles) -> None:
    numbers = []
    for _ in range(2):
        lose_metadata(files)
        rebuilt(files)
        with files.open() as remote_log:
            lease = held_by(remote_log, "test")
            numbers.append(lease.fencing_number)
            remote_log.context.leases.release(lease)

    assert numbers[1] - numbers[0] > FENCING_JUMP // 2


def test_the_old_metadata_are_refused_afterwards(files: RemoteLogFiles) -> None:
    kept = lose_metadata(files)
    rebuilt(files)
    files.properties["rlmm.config.url"] = f"sqlite:///{kept}"

    with files.open(outdated=True) as remote_log, pytest.raises(StoreMismatchError):
        remote_log.context.bind_store()


def test_a_rebuild_that_fails_leaves_the_store_to_the_old_metadata(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = lose_metadata(files)
    before = {path: path.read_bytes() for path in files.store.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise RemoteStorageError("down for a while")

        patched.setattr(ObjectRemoteStorageManager, "read_metadata", fail)
        with pytest.raises(RemoteStorageError):
            rebuilt(files)

    assert {path: path.read_bytes() for path in files.store.rglob("*") if path.is_file()} == before
    assert not list(files.root.glob("state/remote_log_metadata.db*"))
    files.properties["rlmm.config.url"] = f"sqlite:///{kept}"
    be_the_original(kept)
    with files.open() as remote_log:
        remote_log.context.bind_store()
        assert_clean(remote_log)


@pytest.mark.parametrize("step", ["read", "take_over"])
def test_an_interrupted_rebuild_leaves_no_metadata_and_can_be_repeated(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lose_metadata(files)
    do = getattr(MetadataRebuild, step)
    found: list[Path] = []

    def then_end(self: MetadataRebuild, *arguments: Any) -> None:
        do(self, *arguments)
        found.extend(files.root.glob("state/remote_log_metadata.db*"))
        raise RemoteStorageError("the answer never came")

    with monkeypatch.context() as patched:
        patched.setattr(MetadataRebuild, step, then_end)
        with pytest.raises(RemoteStorageError):
            rebuilt(files)
    assert found == []
    assert [path.name for path in (files.root / "state").iterdir() if "remote_log_metadata" in path.name] == []

    assert rebuilt(files).segments == 4
    assert [path.name for path in files.root.glob("state/remote_log_metadata.db*")] == ["remote_log_metadata.db"]
    with files.open() as remote_log:
        remote_log.context.bind_store()
        assert_clean(remote_log)


def test_a_file_that_comes_while_the_store_is_read_is_not_replaced(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_metadata(files)
    store = (files.store / "store.json").read_bytes()
    do = MetadataRebuild.read

    def meanwhile(self: MetadataRebuild) -> RebuildReport:
        open_metadata_store(f"sqlite:///{files.root}/state/remote_log_metadata.db", files.clock).close()
        return do(self)

    monkeypatch.setattr(MetadataRebuild, "read", meanwhile)
    with pytest.raises(ConfigurationError, match="never changes one"):
        rebuilt(files)
    assert (files.store / "store.json").read_bytes() == store


def test_everything_that_deletes_is_off_afterwards_and_settings_are_those_of_the_file(files: RemoteLogFiles) -> None:
    files.properties["topics"]["orders"]["retention.bytes"] = 1
    lose_metadata(files)
    rebuilt(files)

    with files.open() as remote_log:
        topic = remote_log.context.topics.get(CLUSTER_ID, topic_id("orders"))
        assert topic is not None
        assert (topic.local_deletion_allowed, topic.remote_deletion_allowed) == (False, False)
        assert topic.remote_storage_enable
        assert topic.properties["retention.bytes"] == "1"
        assert remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)[0] == []


def test_a_segment_that_cannot_be_known_is_reported_and_hides_no_other(files: RemoteLogFiles) -> None:
    broken = next(path for path in files.objects(".indexes") if "00000000000000000010-" in path.name)
    flip_bit(broken, 100)
    lose_metadata(files)
    report = rebuilt(files)

    assert report.segments == 3
    assert mentions(report.unreadable[0].message, "offset 10 ", broken.stem.partition("-")[2])
    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9), (20, 29)]


def test_a_damaged_copy_that_a_repair_ended_does_not_come_back(files: RemoteLogFiles) -> None:
    damaged, sound = copied_twice(files)
    flip_data_of(files, damaged)
    lose_metadata(files)
    report = rebuilt(files)

    [finding] = report.unreadable
    assert mentions(finding.message, damaged.segment_id.id, "offsets 10 to 19", "several copies")
    assert "marked for deletion" in finding.message
    assert report.segments == 4
    with files.open() as remote_log:
        states = {segment.segment_id: segment.state for segment in segments_of(remote_log)}
        assert states[damaged.segment_id] is SegmentState.DELETE_SEGMENT_STARTED
        assert states[sound.segment_id] is SegmentState.COPY_SEGMENT_FINISHED
        assert_clean(remote_log)
        assert remote_log.deletions.delete_marked("expire").deleted == ()


def test_no_copy_is_given_up_if_none_is_whole(files: RemoteLogFiles) -> None:
    for segment in copied_twice(files):
        flip_data_of(files, segment)
    lose_metadata(files)
    report = rebuilt(files)

    assert ["it stays: " in finding.message for finding in report.unreadable] == [True, True]
    assert report.segments == 5


def test_the_later_of_two_whole_copies_is_read(files: RemoteLogFiles) -> None:
    earlier, later = copied_twice(files)
    lose_metadata(files)

    assert rebuilt(files).unreadable == ()
    with files.open() as remote_log:
        read = [each.segment_id for each in finished(segments_of(remote_log)) if each.start_offset == 10]
        assert read == [later.segment_id, earlier.segment_id]


def test_a_damaged_copy_is_found_between_others_that_meet_in_it(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        first, second, third = segments_of(remote_log)
        one = replace(first, end_offset=14)
        three = replace(third, start_offset=15)
        assert held_twice([one, second, three], (), 0) == [one, second, three]
        assert held_twice([first, second, three], (), 0) == []
        assert held_twice([second, three], (), 15) == [second, three]
        assert held_twice([first, second, third], (), 10) == []


@pytest.mark.parametrize("earlier", [True, False])
def test_a_broken_document_loses_no_segment_and_it_is_said_what_is_lost(files: RemoteLogFiles, earlier: bool) -> None:
    for path in files.store.rglob("orders-*/0/state/*.json"):
        path.unlink()
    with files.open() as remote_log:
        _documents(remote_log).write(PartitionManifest(ORDERS_0, 6, PartitionState(10), files.clock.now))
    [document] = files.store.rglob("orders-*/0/state/*.json")
    newer = document.with_name(document.name.replace("6.", "7."))
    newer.write_bytes(b"{")
    if not earlier:
        document.unlink()
    lose_metadata(files)
    report = rebuilt(files)

    [finding] = report.unreadable
    assert finding.partition == "orders-0" and "corrupt" in finding.message
    assert ("lease 6" in finding.message) is earlier
    assert (mentions(finding.message, "log start", "lineage")) is not earlier
    with files.open() as remote_log:
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == (10 if earlier else None)
        assert (
            ranges(finished(segments_of(remote_log))) == [(10, 19), (20, 29)]
            if earlier
            else [(0, 9), (10, 19), (20, 29)]
        )
        assert remote_log.context.leases.fencing_number(ORDERS_0) > 2**32 + 6
        assert not newer.exists()
        assert_clean(remote_log)


def test_a_document_that_is_gone_is_reported(files: RemoteLogFiles) -> None:
    shutil.rmtree(next(files.store.glob("*/orders-*/0/state")))
    lose_metadata(files)
    report = rebuilt(files)

    assert report.unreadable == ()
    [finding] = report.notices
    assert finding.partition == "orders-0" and "no document" in finding.message


def test_a_file_that_is_there_is_never_changed(files: RemoteLogFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="never changes one"):
        rebuilt(files)
    other = tmp_path / "other.db"
    rebuilt(files, into=other)

    files.properties["rlmm.config.url"] = f"sqlite:///{other}"
    with files.open() as remote_log:
        assert_clean(remote_log)


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_the_write_ahead_log_of_a_lost_file_is_never_put_into_the_new_one(files: RemoteLogFiles, suffix: str) -> None:
    lose_metadata(files)
    left = files.root / "state" / f"remote_log_metadata.db{suffix}"
    left.write_bytes(b"commits")

    with pytest.raises(ConfigurationError, match=f"{suffix} exists"):
        rebuilt(files)
    assert left.read_bytes() == b"commits"


def test_an_empty_store_is_refused(files: RemoteLogFiles) -> None:
    lose_metadata(files)
    shutil.rmtree(files.store)

    with pytest.raises(ConfigurationError, match="holds no partition"):
        rebuilt(files)
    assert not list(files.root.glob("state/remote_log_metadata.db*"))


def _documents(remote_log: RemoteLogManager) -> PartitionManifests:
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    return remote_log.context.storage.partition_manifests


def copied_twice(files: RemoteLogFiles) -> tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]:
    """Let offsets 10 to 19 of orders be copied again, as a repair does; return the earlier copy and the later one."""
    with files.open() as remote_log:
        files.clock.now += 1
        earlier = segments_of(remote_log)[1]
        path = local_log(remote_log).segments[1].location
        due = PlannedSegment(ORDERS_0, path, 10, 19, earlier.size, local_log(remote_log).leader_epochs)
        begun = remote_log.begin_copy(CopyPlan((due,), replacing=frozenset({earlier.segment_id.id})), "repair")
        [later] = remote_log.commit_copy(carry_out(remote_log, begun, "runs/repair/1")).committed
    return earlier, later


def flip_data_of(files: RemoteLogFiles, segment: RemoteLogSegmentMetadata) -> None:
    flip_bit(next(path for path in files.objects(".log") if segment.segment_id.id in path.name), 100)
