"""Checks of a remote log, which change nothing except the audit results that later deletions ask for.

Orphans and duplicate offsets are no reason to keep anything: nothing is missing because of them, and trimming reads
back every byte that it relies on. A quick audit does not check bytes, so its result never replaces a deep one's. An
audit of some partitions can find fault with a topic, but cannot clear it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tiered_storage.errors import ConfigurationError, OutdatedMetadataError, TieredStorageError
from tiered_storage.remote_log.audit.audit import DeepCheck, audit_remote_log
from tiered_storage.remote_log.audit.deep_audit import audit_segment
from tiered_storage.remote_log.audit.job import AuditJob, with_outcomes
from tiered_storage.remote_log.audit.native_audit import audit_native_tier
from tiered_storage.remote_log.audit.offsets import LocalLogs
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, AuditReport, TopicFindings
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.jobs.throttle import RateLimit, ReportingLimit, audit_limit, fetch_quota
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.metadata.safety import AuditResult, Safety
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.native.read_only_storage import native_storage
from tiered_storage.remote_log.progress import Amount, OnMoved, unreported
from tiered_storage.remote_log.retention.permission.deletion_permissions import store_audit_result
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition, name_of
from tiered_storage.remote_log.storage.listable_storage import listing_storage
from tiered_storage.remote_log.tiering_policy import decide, is_wanted


@dataclass(frozen=True, slots=True)
class RemoteLogChecks:
    """Checks over an open `context`; each is documented where it is implemented."""

    context: RemoteLogContext

    def audit(
        self, selection: Selection = EVERYTHING, *, deep: bool = False, on_moved: OnMoved = unreported
    ) -> AuditReport:
        """Compare the store with the metadata, and record the result; see audit_remote_log and keep_audit_results.

        In a deep audit, `on_moved` is called with the bytes read, and with each finished segment.

        Raises ConfigurationError if the selection matches nothing known, and for a store that cannot be listed;
        StoreMismatchError if store and metadata do not belong together.
        """
        if nothing := self.context.why_nothing_matches(selection):
            raise ConfigurationError(nothing)
        storage = native_storage(self.context.storage)
        if storage is not None:
            # Kafka's own remote tier: no deletion of ours asks for a result.
            return audit_native_tier(
                self.context, storage, selection, ReportingLimit(self.limit(), on_moved) if deep else None, on_moved
            )
        lacking = tuple(self._lacking())
        report = audit_remote_log(
            self.context,
            selection,
            local_logs=self._local_logs(selection) if self.context.source.is_configured else None,
            deep=self._deep_check(on_moved) if deep else None,
        )
        self._keep_audit_results(report, selection, deep=deep)
        return replace(report, anomalies=(*lacking, *report.anomalies))

    def _lacking(self) -> Iterator[Anomaly]:
        """Yield an anomaly if the metadata are not those of the store."""
        storage = listing_storage(self.context.storage)
        try:
            self.context.guard.ensure_same()
        except OutdatedMetadataError as error:
            yield Anomaly(AnomalyKind.OUTDATED_METADATA, storage.generations.place, str(error))

    def write_audit_job(self, folder: str, selection: Selection = EVERYTHING) -> AuditJob:
        """Write the deep part of an audit into the work area, for workers; run a quick audit before it."""
        listing_storage(self.context.storage)
        return AuditJob.write(self.context.work, folder, self._copied(selection), self.context.settings)

    def to_read(self, selection: Selection = EVERYTHING) -> Amount:
        """Return how much a deep audit of `selection` reads."""
        return Amount.of(self._copied(selection))

    def _copied(self, selection: Selection) -> Iterator[RemoteLogSegmentMetadata]:
        segments = self.context.segments
        return (
            segment
            for partition in segments.list_partitions()
            if selection.matches(partition.topic, partition.partition)
            for segment in segments.list_remote_log_segments(partition)
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED
        )

    def limit(self) -> RateLimit:
        """Return the limit of a deep audit that one thread of this process does alone."""
        settings = self.context.settings
        return audit_limit(settings.audit_worker_bytes_per_second, fetch_quota(settings))

    def conclude_deep_audit(self, quick: AuditReport, job: AuditJob, selection: Selection) -> AuditReport:
        """Add the workers' findings to the earlier quick audit of `selection`, and record the result."""
        report = with_outcomes(quick, job.outcomes(), self.context.segments)
        self._keep_audit_results(report, selection, deep=True)
        return report

    def _keep_audit_results(self, report: AuditReport, selection: Selection, *, deep: bool) -> None:
        most = self.context.settings.remote_log_unreferenced_max_percent
        is_outdated = any(each.kind is AnomalyKind.OUTDATED_METADATA for each in report.anomalies)
        # Outdated metadata do not publish their findings.
        safety = self.context.store.safety if is_outdated else self.context.safety
        keep_audit_results(report, safety, selection, most, deep=deep)

    def _deep_check(self, on_moved: OnMoved) -> DeepCheck:
        storage = listing_storage(self.context.storage)
        limit = ReportingLimit(self.limit(), on_moved)

        def check(segment: RemoteLogSegmentMetadata) -> Sequence[Anomaly]:
            found = audit_segment(segment, storage, limit)
            on_moved(0, 1)
            return found

        return check

    def _local_logs(self, selection: Selection) -> LocalLogs:
        def is_asked_for(log: PartitionLog | UnreadablePartition) -> bool:
            return selection.matches(*name_of(log)) and self._is_copied(log)

        segments = self.context.segments
        identities = LostIdentities(segments.list_partitions(), segments)
        return LocalLogs(self.context.source, is_asked_for, identities)

    def _is_copied(self, log: PartitionLog | UnreadablePartition) -> bool:
        if isinstance(log, UnreadablePartition):
            return is_wanted(log.topic, self.context.topics, self.context.settings)
        try:
            return decide(log, self.context.topics, self.context.settings).copies
        except TieredStorageError:
            return log.tiered_by_kafka is not None


def keep_audit_results(
    report: AuditReport, safety: Safety, selection: Selection, unreferenced_max_percent: int, *, deep: bool
) -> None:
    """Record the result of the audit of `selection` for each topic; what was not read is not cleared.

    There is one on the store as a whole, too: at most `unreferenced_max_percent` of the objects may be unreferenced,
    known orphans of ours excepted. An audit of some topics can find fault with the store, but cannot clear it.
    """
    of_store = store_audit_result(
        report.unreferenced, report.objects, unreferenced_max_percent, report.audited_at, deep=False
    )
    if of_store.anomalies or not selection.is_narrowed:
        safety.put_audit_result(of_store)
    for topic in report.topics:
        if topic.anomalies or selection.partitions is None:
            for result in _audit_results(topic, report.audited_at, deep=deep):
                safety.put_audit_result(result)


def _audit_results(topic: TopicFindings, audited_at: int, *, deep: bool) -> Iterator[AuditResult]:
    """Yield a result for each audited depth: a deep audit includes a quick one."""
    for depth in (False, True) if deep else (False,):
        if depth and topic.unread and not topic.anomalies:
            continue
        yield AuditResult(topic.cluster_id, topic.topic_id, depth, audited_at, topic.anomalies, topic.first)
