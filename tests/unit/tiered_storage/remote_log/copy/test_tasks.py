from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.metadata_stores import ORDERS_0, a_segment
from support.remote_logs import location_of
from tiered_storage.errors import ConfigurationError, RemoteStorageError, RemoteStorageRefusedError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyPlan, CopyTask, PlannedSegment
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.jobs.work_area import from_lines, to_lines
from tiered_storage.remote_log.model import Finding, Lease, RemoteLogSegmentMetadataUpdate, SegmentState
from tiered_storage.remote_log.source.partition_log import LocalSegment

LEASE = Lease(ORDERS_0, "copy/run 1", 7, 1_700_000_000_000)
LINEAGE = (EpochEntry(0, 0), EpochEntry(3, 4))
TASK = CopyTask(a_segment(LEASE, 0, 9, epochs=((0, 0), (3, 4))), LEASE, location_of(Path("/logs/größe/0.log")), LINEAGE)

PLANNED = PlannedSegment(ORDERS_0, location_of(Path("/logs/0.log")), 0, 9, 4096, LINEAGE)


def finished(custom_metadata: bytes) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        TASK.metadata.segment_id, SegmentState.COPY_SEGMENT_FINISHED, 5, custom_metadata, max_timestamp=4
    )


@given(st.binary(max_size=40), st.text(max_size=40), st.booleans())
def test_every_outcome_comes_back_as_it_was_written(custom_metadata: bytes, text: str, retriable: bool) -> None:
    outcomes = [
        CopyOutcome(TASK, finished(custom_metadata), None, 10, (text,), (text, "notice"), 0.25, text),
        CopyOutcome(TASK, None, JobFailure("CorruptRecordError", text, retriable)),
        CopyOutcome(replace(TASK, metadata=replace(TASK.metadata, custom_metadata=custom_metadata)), None),
    ]

    assert from_lines(to_lines(outcomes, CopyOutcome), CopyOutcome, "results") == outcomes


def test_a_topics_name_travels_though_it_is_no_part_of_its_identity() -> None:
    [task] = from_lines(to_lines([TASK], CopyTask), CopyTask, "tasks")

    assert task.metadata.topic_id_partition.topic == "orders"
    assert task.lease.topic_id_partition.topic == "orders"


def test_a_plan_comes_back_as_it_was_written() -> None:
    plan = CopyPlan((PLANNED,), (Finding("clicks", "compacted"),), (Finding("views-0", "torn"),), (Finding("", "x"),))

    raw = to_lines([plan], CopyPlan)

    assert from_lines(raw, CopyPlan, "plan") == [plan]
    assert raw.count(b"\n") == 1


@pytest.mark.parametrize("message", [PLANNED, TASK, LocalSegment(0, 9, 4096, PLANNED.location)])
def test_messages_of_an_earlier_release_are_read(message: PlannedSegment | CopyTask | LocalSegment) -> None:
    kind = type(message)
    written = to_lines([message], kind).replace(b'"location":', b'"log_path":')

    assert from_lines(written, kind, "plan") == [message]


def test_no_messages_are_no_lines() -> None:
    assert to_lines([], CopyTask) == b""
    assert from_lines(b"", CopyTask, "tasks") == []


@pytest.mark.parametrize("broken", [b"{}", b'{"task": 1', b"\xff"])
def test_a_broken_line_is_named(broken: bytes) -> None:
    raw = to_lines([TASK], CopyTask) + broken + b"\n"

    with pytest.raises(ConfigurationError, match=r"file:///work/tasks\.jsonl: line 2 .*CopyTask"):
        from_lines(raw, CopyTask, "file:///work/tasks.jsonl")


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (RemoteStorageError("the store is away"), True),
        (RemoteStorageRefusedError("no right"), False),
        (OSError(5, "Input/output error"), True),
    ],
)
def test_a_failure_names_the_error_and_says_whether_another_try_may_help(
    error: RemoteStorageError | OSError, retriable: bool
) -> None:
    assert JobFailure.of(error) == JobFailure(type(error).__name__, str(error), retriable)
