"""What may happen to a partition, in any order: elections, copies that succeed or die, deletions, losses, repairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from scenarios.lineage.lived_partition import LivedPartition, segments_in
from support.metadata_files import remove_metadata
from support.plain_reader import PlainReader
from support.remote_logs import (
    ENABLED,
    NOW,
    SEGMENT_BYTES,
    begin,
    carry_out,
    copy,
    is_kept_by_the_store,
    topic_id,
    unsynced,
)
from support.simulated_crashes import dies_at
from tiered_storage.errors import ConfigurationError, DeletionRefusedError, TieredStorageError
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.lineage import contradiction
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    Finding,
    RemoteLogSegmentMetadata,
)
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.object_names import partition_folder

REPLICAS = (0, 1)
_OTHER_LEADERS = re.compile(r"offsets (\d+) to (\d+) were copied under other leader epochs than")
_NEVER_SENT = re.compile(r"is a fork of the log: at offsets (\d+) to (\d+), below the global log start")
STEPS = st.integers(0, 12)
MOST = st.none() | st.integers(1, 3)
ANY = st.integers(0, 10_000)
"""Chooses among things whose number may depend on the timing of threads; a draw must not depend on it."""


class PartitionLives(LivedPartition):
    """The rules of what may happen to the partition."""

    # ------------------------------------------------------------------------------------------------- the cluster

    @initialize(batches=st.integers(0, 9))
    def begin_with(self, batches: int) -> None:
        self.append(batches)
        # Without a reading nothing proves this machine's clock, and a time after the generation's is refused.
        with unsynced(), self.open() as remote_log:
            remote_log.deletions.clocks.note()

    @rule(batches=st.integers(1, 5))
    def append(self, batches: int) -> None:
        self.brokers.append(batches)

    @rule(number=st.sampled_from(REPLICAS), batches=st.none() | st.integers(0, 4))
    def replicate(self, number: int, batches: int | None) -> None:
        self.brokers.replicate(number, batches)

    @rule(number=st.sampled_from(REPLICAS))
    def elect(self, number: int) -> None:
        """Elect any broker: the cluster loses what it lacks, and regains what only it has."""
        if number != self.brokers.leader:
            self.brokers.elect(number)
            self.leader_was_seen = False

    @rule()
    def roll(self) -> None:
        with self.brokers.log(self.brokers.leader) as log:
            log.roll()

    @rule()
    def forget_epochs(self) -> None:
        """Restart the leader: its checkpoint drops the epochs before its log start."""
        with self.brokers.log(self.brokers.leader) as log:
            start = log.log_start_offset
        self.brokers.delete_records(start)

    # ---------------------------------------------------------------------------------------------- the remote log

    @rule(limit=st.none() | st.integers(1, 3))
    def copy(self, limit: int | None) -> None:
        with unsynced(), self.open() as remote_log:
            report = remote_log.commit_copy(self.copy_with(remote_log, "copy", max_segments=limit))
            assert report.is_whole, report
            self.look(remote_log)

    @rule(window=st.integers(0, 80))
    def backfill(self, window: int) -> None:
        with unsynced(), self.open() as remote_log:
            outcomes = self.copy_with(remote_log, "backfill", window_end=NOW + 1000 * window)
            assert remote_log.commit_copy(outcomes).is_whole
            self.look(remote_log)

    @rule(step=STEPS, after_it=st.booleans())
    def copy_and_die(self, step: int, after_it: bool) -> None:
        with unsynced(), self.open() as remote_log:
            self.was_killed = True
            with dies_at(step, after_it=after_it):
                remote_log.commit_copy(self.copy_with(remote_log, f"dead {self.runs}"))
            self.let_leases_end(remote_log)

    @rule()
    def begin_twice(self) -> None:
        """One run copies and does not commit; another takes over; the zombie commits late."""
        with unsynced(), self.open() as remote_log:
            first = self.copy_with(remote_log, "the same run")
            second = self.copy_with(remote_log, "the same run")
            assert remote_log.commit_copy(first).committed == ()
            assert remote_log.commit_copy(second).is_whole
            self.look(remote_log)

    @rule()
    def leave_a_zombie(self) -> None:
        with unsynced(), self.open() as remote_log:
            begun = begin(remote_log, f"zombie {self.runs}")
            self.runs += 1
            self.zombies.append(carry_out(remote_log, begun, f"runs/{self.runs}"))
            self.let_leases_end(remote_log)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_zombie_commits(self, data: st.DataObject) -> None:
        """Commit late: it may be refused, or still be valid like any other commit."""
        outcomes = self.zombies.pop(data.draw(st.integers(0, len(self.zombies) - 1)))
        with unsynced(), self.open() as remote_log:
            remote_log.commit_copy(outcomes)
            self.let_leases_end(remote_log)

    @precondition(lambda self: self.leader_was_seen)
    @rule()
    def copy_from_the_follower(self) -> None:
        """Copy the follower's log: it agrees with the leader's, or it is older and refused."""
        number = next(each for each in REPLICAS if each != self.brokers.leader)
        with self.brokers.log(number) as log:
            epochs, end = log.leader_epochs, log.log_end_offset
        with unsynced(), self.open(number) as remote_log:
            known = remote_log.context.segments.partition_state(self.partition).lineage
            plan = remote_log.plan_copy()
            agrees = self.brokers.logs[number] == self.brokers.written_by[:end]
            assert bool(plan.unreadable) == (contradiction(known, epochs, end) is not None)
            assert agrees or plan.unreadable or not epochs, (known, epochs, end)
            report = copy(remote_log)
            assert report.is_whole
            assert agrees or not report.committed

    @rule(kept=st.integers(0, 4), most=MOST)
    def trim(self, kept: int, most: int | None = None) -> None:
        self.retention(local=kept * SEGMENT_BYTES)
        with unsynced(), self.open() as remote_log:
            plans, findings = remote_log.deletions.plan_local_retention(
                EVERYTHING, self.files.clock.now, max_segments=most
            )
            assert not findings, findings
            report = remote_log.deletions.enforce_local_retention(plans)
            assert all(
                _is_of_a_deposed_leader(each) or self.was_never_sent(remote_log, each) for each in report.failures
            ), report.failures

    def was_never_sent(self, remote_log: RemoteLogManager, failure: Finding) -> bool:
        """Whether local records below the global log start stay because the copied leader did not write them."""
        found = _NEVER_SENT.search(failure.message)
        if found is None:
            return False
        start, end = int(found[1]), int(found[2]) + 1
        sent = remote_log.context.segments.list_deleted_segments(self.partition, start, end - 1)
        compared = [
            (segment, range(max(start, segment.start_offset), min(end, segment.end_offset + 1)))
            for segment in (*sent, *segments_in(remote_log, self.partition))
        ]
        return any(
            _epochs_of(segment, offsets) != self.brokers.written_by[offsets.start : offsets.stop]
            for segment, offsets in compared
            if offsets
        )

    @rule(kept=st.integers(1, 8), deletes=st.booleans(), most=MOST)
    def expire(self, kept: int, deletes: bool, most: int | None = None) -> None:
        self.retention(total=kept * SEGMENT_BYTES)
        with unsynced(), self.open() as remote_log:
            self.expire_with(remote_log, deletes=deletes, most=most)

    @rule(kept=st.integers(1, 8), step=STEPS, after_it=st.booleans())
    def expire_and_die(self, kept: int, step: int, after_it: bool) -> None:
        self.retention(total=kept * SEGMENT_BYTES)
        with unsynced(), self.open() as remote_log:
            self.was_killed = True
            with dies_at(step, after_it=after_it):
                self.expire_with(remote_log, deletes=True)
            self.let_leases_end(remote_log)

    @rule(which=ANY)
    def delete_records(self, which: int) -> None:
        self.retention()
        with unsynced(), self.open() as remote_log:
            reader = PlainReader(remote_log).open(self.partition)
            offsets = range(reader.log_start_offset, reader.log_end_offset + 1)
            before = offsets[which % len(offsets)]
            if not remote_log.deletions.permissions.is_allowed(self.partition, DeletionKind.REMOTE):
                # A right from the settings file ends with the first decision on the topic's name.
                return
            plan = remote_log.deletions.plan_record_deletion(self.partition, before)
            if plan is None:
                return
            self.expirable = max(self.expirable, before)
            _, left = remote_log.deletions.mark_expired([plan], "delete records")
            assert not left, left
            assert remote_log.context.segments.log_start_offset(self.partition) == before

    @rule(dry_run=st.booleans())
    def undelete(self, dry_run: bool) -> None:
        """Undelete marked segments that still exist, without a gap up to the global log start."""
        with unsynced(), self.open() as remote_log:
            before = remote_log.context.segments.log_start_offset(self.partition)
            with suppress(ConfigurationError):
                done, left = remote_log.deletions.undelete(
                    "orders", "ada", topic_id=self.brokers.topic_id, dry_run=dry_run
                )
                assert all("cannot be brought back" in finding.message for finding in left), left
                after = remote_log.context.segments.log_start_offset(self.partition)
                assert after == (before if dry_run or not done else done[0].log_start_offset)
            self.let_leases_end(remote_log)

    @rule()
    def delete_the_topic_and_create_it_again(self) -> None:
        """Recreate the topic in the cluster; its old remote data stay until a person allows their deletion."""
        self.lives.append(self.partition)
        self.brokers.recreate(topic_id(f"orders {len(self.lives)}"))
        self.leader_was_seen = False
        self.doubled = False
        self.expirable = 0

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def delete_the_remote_log_of_an_old_life(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.lives))
        with unsynced(), self.open() as remote_log:
            known = [each.topic for each in remote_log.context.segments.partition_states() if each == old]
            if not known:
                return
            assert known == ["orders"]
            if not remote_log.deletions.permissions.is_allowed(old, DeletionKind.REMOTE):
                with pytest.raises(DeletionRefusedError):
                    remote_log.deletions.plan_topic_deletion("orders", old.topic_id)
                return
            plan = remote_log.deletions.plan_topic_deletion("orders", old.topic_id)
            assert [each.topic_id_partition for each in plan.partitions] == [old]
            marked, left = remote_log.deletions.mark_topic_deleted(plan, "delete")
            assert (marked, left) == ((old,), ())
            self.marked.add(old)

    @rule(which=ANY)
    def lose_an_object_and_repair(self, which: int) -> None:
        """Lose an object: the repair copies what the leader still has; anything else is restored, as a person would."""
        objects = self.objects_of_segments()
        if not objects:
            return
        lost = objects[which % len(objects)]
        content = lost.read_bytes()
        lost.unlink()
        with unsynced(), self.open() as remote_log:
            # No run may have read the clock yet, or only long ago: a person confirms it.
            remote_log.deletions.clocks.trust()
            plan = remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)
            report = remote_log.repairs.carry_out(plan, "repair", lambda copies: self.copy_planned(remote_log, copies))
            assert all(
                _is_of_a_deposed_leader(each) or self.has_lost_indexes_of_a_deposed_leader(remote_log, each)
                for each in report.failures
            ), report.failures
            # A rebuild of the metadata would report the rest of the damaged segment: delete it, if that is allowed.
            self.delete_marked(remote_log)
            if any(path.stem == lost.stem for path in self.objects_of_segments()):
                lost.write_bytes(content)
            # Nothing local is deleted until an audit finds nothing.
            self.audit(remote_log)
            self.look(remote_log)

    def has_lost_indexes_of_a_deposed_leader(self, remote_log: RemoteLogManager, failure: Finding) -> bool:
        """Whether indexes were not rebuilt because other leaders than the segment's finally wrote its offsets.

        Nothing has the producers and epochs for those indexes, and nobody reads that segment.
        """
        found = _OTHER_LEADERS.search(failure.message)
        if found is None:
            return False
        offsets = range(int(found[1]), int(found[2]) + 1)
        return all(
            _epochs_of(segment, offsets) != self.brokers.written_by[offsets.start : offsets.stop]
            for segment in segments_in(remote_log, self.partition)
            if (segment.start_offset, segment.end_offset) == (offsets.start, offsets.stop - 1)
        )

    def objects_of_segments(self) -> list[Path]:
        folder = self.files.store / partition_folder(self.partition)
        return [path for path in self.files.objects() if path.parent == folder]

    @precondition(lambda self: self.files.objects())
    @rule()
    def lose_the_metadata(self) -> None:
        """Rebuild them from the store. Runs continue, and earlier zombies are refused."""
        with self.open() as remote_log:
            marked = self.were_visible(remote_log) - self.visible(remote_log)
        with unsynced():
            self.rebuild()
        self.doubled = False
        with self.open() as remote_log:
            # The last copy may be long ago, so that nothing proves the clock.
            remote_log.deletions.clocks.trust()
            self.allow_deletions(remote_log)
            assert self.visible(remote_log).isdisjoint(marked)
            for old in self.marked:
                assert remote_log.context.segments.partition_state(old).delete_state is not None
        # The rebuild found copies that a dead run never committed, perhaps with a gap before them: fill it.
        self.copy(None)

    def rebuild(self) -> None:
        """Remove the metadata, and rebuild them from the store."""
        remove_metadata(self.files)
        settings = self.files.settings()
        report = rebuild_metadata(settings, store_options(settings, {}), self.files.clock)
        assert report.unreadable == ()

    @rule(data=st.data())
    def stop_and_lift(self, data: st.DataObject) -> None:
        """Delete nothing while deletions are stopped, whatever is due; then lift the stop."""
        with self.limits(local=0, total=SEGMENT_BYTES), unsynced(), self.open() as remote_log:
            remote_log.context.bind_store()
            remote_log.context.safety.stop("look first", "somebody")
            before = self.all_files()
            for action in data.draw(st.permutations([self.try_expire, self.try_deletion, self.try_trim])):
                with suppress(TieredStorageError):
                    action(remote_log)
            assert self.all_files() == before
            remote_log.context.safety.lift("somebody")

    def try_expire(self, remote_log: RemoteLogManager) -> None:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, self.files.clock.now)
        remote_log.deletions.mark_expired(plans, "try")

    def try_deletion(self, remote_log: RemoteLogManager) -> None:
        remote_log.deletions.delete_marked("try")

    def try_trim(self, remote_log: RemoteLogManager) -> None:
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, self.files.clock.now)
        remote_log.deletions.enforce_local_retention(plans)

    def all_files(self) -> dict[Path, int]:
        """Return all that could be deleted or copied to, with its size."""
        roots = [self.files.store, *(self.brokers.directory(number) for number in REPLICAS)]
        paths = [path for root in roots for path in root.rglob("*") if not is_kept_by_the_store(path)]
        return {path: path.stat().st_size for path in paths if path.is_file() and path.name != ".lock"}

    @contextmanager
    def limits(self, *, local: int, total: int) -> Iterator[None]:
        """Change the limits in the settings file, and not the decisions, within the block."""
        kept = self.files.properties["topics"]
        topic = {**ENABLED, "local.retention.bytes": local, "retention.bytes": total}
        self.files.properties["topics"] = {"orders": topic}
        yield
        self.files.properties["topics"] = kept


def _is_of_a_deposed_leader(failure: Finding) -> bool:
    """Whether `failure` is an unfinished copy by a leader deposed since, which stays as it is."""
    return "under leader epochs that no longer hold" in failure.message


def _epochs_of(segment: RemoteLogSegmentMetadata, offsets: range) -> list[int]:
    """Return the leader epoch of each offset, as the segment's own metadata have it."""
    return [
        next(entry.epoch for entry in reversed(segment.leader_epochs) if entry.start_offset <= at) for at in offsets
    ]
