"""Outcomes of a copy for tests, and the names of the states that they lead to."""

from __future__ import annotations

from collections.abc import Iterable

from support.metadata_stores import a_step
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState

STARTED, FINISHED, DELETING, _ = (state.name for state in SegmentState)
FAILURE = JobFailure("RemoteStorageError", "the store is away", retriable=True)


def done(tasks: Iterable[CopyTask]) -> list[CopyOutcome]:
    """Return how successful copies end, without any bytes."""
    update = SegmentState.COPY_SEGMENT_FINISHED
    return [CopyOutcome(task, a_step(task.metadata, update, custom_metadata=b"where it is")) for task in tasks]


def failed(outcome: CopyOutcome, failure: JobFailure = FAILURE) -> CopyOutcome:
    return CopyOutcome(outcome.task, None, failure)


def start_offsets(segments: Iterable[RemoteLogSegmentMetadata]) -> list[int]:
    return [segment.start_offset for segment in segments]
