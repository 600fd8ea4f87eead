"""A partition on two brokers and its remote log, for tests of what may happen to both, in any order."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from scenarios.replicas.brokers import Brokers
from support.plain_reader import PlainReader
from support.remote_logs import (
    BATCH_BYTES,
    BATCH_RECORDS,
    CLUSTER_ID,
    ENABLED,
    RemoteLogFiles,
    begin,
    carry_out,
    unsynced,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome, CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.retention.permission.deletion_permissions import DeletionKind
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.object_names import partition_folder

_LAST_COPY = re.compile(r"an unfinished copy, .* nothing else holds offsets \d+ to (\d+): it stays")
_WRITTEN_AGAIN = "'tiered-storage repair' writes it again from the metadata"


class LivedPartition(RuleBasedStateMachine):
    """One partition on two brokers, its remote log, and what both should hold, whenever somebody reads or audits it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="random-lives-"))
        self.brokers = Brokers(self.root)
        self.files = RemoteLogFiles(self.root, properties={"topics": {"orders": dict(ENABLED)}})
        self.runs = 0
        self.zombies: list[list[CopyOutcome]] = []
        self.leader_was_seen = False
        self.lives: list[TopicIdPartition] = []
        self.marked: set[TopicIdPartition] = set()
        self.was_killed = False
        self.doubled = False
        """Whether the last audit, quick or deep, found overlaps in the current incarnation."""
        self.expirable = 0
        """The offset up to which retention and deletions of records ever allowed to delete this incarnation."""

    def teardown(self) -> None:
        try:
            self.read()
            self.clear_up_and_audit(expires=True)
        finally:
            shutil.rmtree(self.root)

    @property
    def partition(self) -> TopicIdPartition:
        return TopicIdPartition(CLUSTER_ID, self.brokers.topic_id, 0, "orders")

    def open(self, number: int | None = None) -> RemoteLogManager:
        """Open the remote log over a broker's directory, by default the leader's."""
        number = self.brokers.leader if number is None else number
        self.files.properties["log.dirs"] = [str(self.brokers.directory(number))]
        return self.files.open()

    def look(self, remote_log: RemoteLogManager) -> None:
        """Note whether the remote log knows the current leader."""
        # An empty log does not show who leads.
        self.leader_was_seen = bool(self.brokers.written_by) and not remote_log.plan_copy().lineages

    def copy_with(self, remote_log: RemoteLogManager, owner: str, **selection: Any) -> list[CopyOutcome]:
        self.runs += 1
        return carry_out(remote_log, begin(remote_log, owner, **selection), f"runs/{self.runs}")

    def expire_with(self, remote_log: RemoteLogManager, *, deletes: bool, most: int | None = None) -> None:
        plans, findings = remote_log.deletions.plan_expiry(EVERYTHING, self.files.clock.now, most)
        assert most is None or sum(plan.count for plan in plans) <= most
        assert not findings, findings
        _, left = remote_log.deletions.mark_expired(plans, "expire")
        assert not left, left
        if deletes:
            self.delete_marked(remote_log)

    def retention(self, *, local: int = -2, total: int = -1) -> None:
        """Set the limits, in bytes; negative ones are none."""
        if total >= 0:
            # No batch here has more bytes than that.
            self.expirable = max(self.expirable, self.brokers.end - total // BATCH_BYTES * BATCH_RECORDS)
        topic = {**ENABLED, "local.retention.bytes": local, "retention.bytes": total}
        self.files.properties["topics"] = {"orders": topic}
        with self.open() as remote_log:
            self.allow_deletions(remote_log)

    def copy_planned(self, remote_log: RemoteLogManager, copies: CopyPlan) -> CommitReport:
        self.runs += 1
        begun = remote_log.begin_copy(copies, "repair")
        return remote_log.commit_copy(carry_out(remote_log, begun, f"runs/{self.runs}"))

    def visible(self, remote_log: RemoteLogManager) -> set[str]:
        return {
            each.segment_id.id for each in self.segments(remote_log) if each.state is SegmentState.COPY_SEGMENT_FINISHED
        }

    def were_visible(self, remote_log: RemoteLogManager) -> set[str]:
        return {each.segment_id.id for each in self.segments(remote_log) if each.custom_metadata is not None}

    def segments(self, remote_log: RemoteLogManager) -> Iterator[RemoteLogSegmentMetadata]:
        for partition in (self.partition, *self.lives):
            yield from remote_log.context.segments.list_remote_log_segments(partition)

    def allow_deletions(self, remote_log: RemoteLogManager) -> None:
        """Decide again what the settings file has, because a decision in the metadata overrides it."""
        properties = {name: str(value) for name, value in self.files.properties["topics"]["orders"].items()}
        for topic in remote_log.context.topics.list():
            kept = {
                name: value for name, value in properties.items() if name.endswith(("retention.bytes", "retention.ms"))
            }
            remote_log.context.topics.put(
                replace(topic, local_deletion_allowed=True, remote_deletion_allowed=True, properties=kept)
            )

    @rule()
    def pass_time(self) -> None:
        self.files.clock.now += self.files.settings().remote_log_orphan_grace_ms + 1

    def let_leases_end(self, remote_log: RemoteLogManager) -> None:
        self.files.clock.now += remote_log.context.settings.lease_duration_ms + 1

    @rule()
    def read(self) -> None:
        """Read from the global log start: exactly what the leader has."""
        with self.open() as remote_log:
            global_log_start = remote_log.context.segments.log_start_offset(self.partition)
            reader = PlainReader(remote_log).open(self.partition)
            assert reader.log_end_offset == max(self.brokers.end, global_log_start or 0)
            if global_log_start is not None:
                assert reader.log_start_offset == global_log_start
            found = [record.value for record in reader.records(reader.log_start_offset)]
            assert found == self.brokers.values(reader.log_start_offset)

    @rule(expires=st.booleans())
    def clear_up_and_audit(self, expires: bool) -> None:
        """Let leases and grace times end, delete all due segments, and require a clean audit."""
        self.retention()
        with unsynced(), self.open() as remote_log:
            for _ in range(2):
                self.let_leases_end(remote_log)
                self.pass_time()
                self.delete_marked(remote_log)
            for old in self.marked:
                assert remote_log.context.segments.partition_state(old).delete_state is PartitionDeleteState.FINISHED
                files = [path for path in (self.files.store / partition_folder(old)).rglob("*") if path.is_file()]
                assert [path.parent.name for path in files] == ["state"]
            self.audit(remote_log, deep=True)
            if expires:
                self.expire_with(remote_log, deletes=True)
                self.audit(remote_log, deep=True)
                assert not self.doubled
            lineage = remote_log.context.segments.partition_state(self.partition).lineage
            assert list(lineage) == sorted(lineage, key=lambda entry: (entry.epoch, entry.start_offset))
            assert self.leader_was_seen is False or _leads(lineage, self.brokers.written_by)

    def audit(self, remote_log: RemoteLogManager, *, deep: bool = False) -> None:
        """Find only leftovers, and overlaps that the next expiry after the grace time removes.

        Overlaps of an earlier incarnation may stay: no local log shows any more that both copies are of one topic.
        """
        report = remote_log.checks.audit(deep=deep)
        if any(each.message.endswith(_WRITTEN_AGAIN) for each in report.anomalies):
            # A killed run may leave a manifest one step ahead, which no later run follows.
            assert self.was_killed
            plan = remote_log.repairs.plan(report, EVERYTHING)
            remote_log.repairs.carry_out(plan, "repair", lambda copies: self.copy_planned(remote_log, copies))
            report = remote_log.checks.audit(deep=deep)
        anomalies = [each for each in report.anomalies if not each.is_leftover]
        worse = [each for each in anomalies if each.kind is not AnomalyKind.OVERLAP]
        assert not worse, [each.message for each in worse]
        twice = {each.segment_id for each in anomalies if each.partition == self.partition}
        assert {each.partition for each in anomalies} <= {self.partition, *self.lives}
        later = self.files.clock.now + remote_log.context.settings.remote_log_orphan_grace_ms + 1
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, later)
        ending = {each.segment_id.id for plan in plans for each in (*plan.superseded, *plan.segments)}
        assert twice <= ending
        self.doubled = bool(twice) if deep else self.doubled

    def delete_marked(self, remote_log: RemoteLogManager) -> None:
        """Delete what is due; only unfinished whole copies whose offsets nothing else holds wait for a person.

        As all of the leader's offsets are readable, those are of an old incarnation or an earlier leader. Damaged ones
        also wait for a person if a decision on an earlier incarnation ended the settings file's right.
        """
        report = remote_log.deletions.delete_marked("expire")
        for failure in report.failures:
            if "deletion is no longer allowed" in failure.message:
                assert not remote_log.deletions.permissions.is_allowed(self.partition, DeletionKind.REMOTE)
                continue
            found = _LAST_COPY.search(failure.message)
            assert found is not None, failure
            [of] = [
                partition
                for partition in (self.partition, *self.lives)
                if any(each.segment_id.id in failure.message for each in segments_in(remote_log, partition))
            ]
            assert of != self.partition or int(found[1]) >= self.brokers.end, failure


def segments_in(remote_log: RemoteLogManager, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    return list(remote_log.context.segments.list_remote_log_segments(partition))


def _leads(lineage: tuple[EpochEntry, ...], written_by: list[int]) -> bool:
    """Whether `lineage` has the epoch of each offset, as far as it reaches back."""
    if not lineage:
        return not written_by
    known = range(lineage[0].start_offset, len(written_by))
    return all(
        next(entry.epoch for entry in reversed(lineage) if entry.start_offset <= at) == written_by[at] for at in known
    )
