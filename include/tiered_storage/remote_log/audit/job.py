"""The deep audit of many segments as a job in groups; jobs/groups.py has the layout of the work area.

A task is a segment's metadata, a result an AuditOutcome. Workers only read the store; the submitter compares their
findings with the metadata again, since segments may have been deleted meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from pydantic import ConfigDict

from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.audit.deep_audit import audit_segment
from tiered_storage.remote_log.audit.report import Anomaly, AuditReport, AuditTally
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.jobs.groups import GroupResults, JobDescription, JobFailure, JobFolder, grouped
from tiered_storage.remote_log.jobs.progress import ProgressLog
from tiered_storage.remote_log.jobs.throttle import RateLimit, ReportingLimit, audit_limit, fetch_quota
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.jobs.worker import JobAccess, opened_job
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, listing_storage
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """A worker's findings for one segment, in `seconds`; `failure`: why the store could not be read."""

    segment: RemoteLogSegmentMetadata
    anomalies: tuple[Anomaly, ...]
    failure: JobFailure | None = None
    seconds: float = 0.0
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


@dataclass(frozen=True, slots=True)
class AuditJobDescription(JobDescription):
    """What every worker needs, and the bytes per second that each may read (-1: no limit)."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class AuditJob:
    """One try of a deep audit."""

    files: JobFolder
    groups: int

    @classmethod
    def write(
        cls,
        work: WorkArea,
        folder: str,
        segments: Iterable[RemoteLogSegmentMetadata],
        settings: Settings,
    ) -> AuditJob:
        """Write the job, holding only one group in memory; the segments of a partition must be consecutive."""
        files, count = JobFolder.of(work, folder), 0
        group_bytes: list[int] = []
        for group in grouped(segments, lambda each: each.segment_id, lambda each: each.size):
            files.write_tasks(count, group, RemoteLogSegmentMetadata)
            group_bytes.append(sum(each.size for each in group))
            count += 1
        files.describe(
            AuditJobDescription(
                count,
                settings.audit_worker_bytes_per_second,
                quota=fetch_quota(settings),
                group_bytes=tuple(group_bytes),
            )
        )
        return cls(files, count)

    def run_group(
        self, number: int, storage: RemoteStorageManager, limit: RateLimit, on_moved: OnMoved = unreported
    ) -> int:
        """Audit the segments of one group; return how many were read. `on_moved` is called as the progress is.

        Raises ConfigurationError for a foreign store class.
        """
        listable = listing_storage(storage)
        results = GroupResults(self.files, number, AuditOutcome)
        read = 0
        with ProgressLog(self.files, number) as progress:

            def moved(size: int) -> None:
                progress.moved(size)
                on_moved(size)

            reporting = ReportingLimit(limit, moved)
            for segment in self.files.tasks(number, RemoteLogSegmentMetadata):
                outcome = _audited(segment, listable, reporting)
                read += outcome.failure is None
                results.add(outcome)
                progress.ended()
                on_moved(0, 1)
            results.write()
        return read

    def outcomes(self) -> Iterator[AuditOutcome]:
        """Yield the outcome of every segment; one without a result ended with its worker."""
        for number in range(self.groups):
            results = self.files.results(number, AuditOutcome)
            known = {outcome.segment.segment_id for outcome in results}
            yield from results
            for segment in self.files.tasks(number, RemoteLogSegmentMetadata):
                if segment.segment_id not in known:
                    died = JobFailure("", "its worker died before it was read", retriable=True)
                    yield AuditOutcome(segment, (), died)


def with_outcomes(
    quick: AuditReport, outcomes: Iterable[AuditOutcome], metadata: RemoteLogMetadataManager
) -> AuditReport:
    """Return the report of a quick audit with the workers' findings added.

    Anomalies that a segment already has are not repeated, and segments deleted meanwhile are left out.
    """
    tally = AuditTally(quick)
    known = {(anomaly.segment_id, anomaly.kind) for anomaly in quick.anomalies}
    for partition, of_partition in groupby(outcomes, lambda outcome: outcome.segment.topic_id_partition):
        wrong = [outcome for outcome in of_partition if outcome.anomalies or outcome.failure]
        if not wrong:
            continue
        there = {segment.segment_id for segment in finished(metadata.list_remote_log_segments(partition))}
        for outcome in wrong:
            if outcome.segment.segment_id not in there:
                continue
            if outcome.failure is not None:
                failure = outcome.failure
                tally.could_not_read(outcome.segment, failure.message, is_lasting=not failure.retriable)
            tally.add(each for each in outcome.anomalies if (each.segment_id, each.kind) not in known)
    return tally.report()


def _audited(segment: RemoteLogSegmentMetadata, storage: ListableStorage, limit: RateLimit) -> AuditOutcome:
    begun = time.monotonic()
    try:
        anomalies = audit_segment(segment, storage, limit)
    except RemoteStorageError as error:
        return AuditOutcome(segment, (), JobFailure.of(error), time.monotonic() - begun)
    return AuditOutcome(segment, anomalies, seconds=time.monotonic() - begun)


def run_audit_groups(access: JobAccess, numbers: Sequence[int]) -> int:
    """Audit the segments of the groups `numbers` of a job, as one of its workers; return how many were read."""
    with opened_job(access, AuditJobDescription) as opened:
        job = AuditJob(opened.folder, opened.description.groups)
        limit = audit_limit(opened.description.bytes_per_second, opened.description.share(numbers))
        return sum(job.run_group(number, opened.storage, limit) for number in numbers)
