from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import mentions
from support.remote_logs import (
    ORDERS_0,
    a_copied_remote_log,
    offsets_read,
    segments_of,
)
from tiered_storage.errors import ConfigurationError, DeletionRefusedError, OffsetOutOfRangeError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.retention.expiry import Reason
from tiered_storage.remote_log.retention.expiry_planning import TO_THE_END


def delete_records(remote_log: RemoteLogManager, before: int) -> int:
    """Delete the records before an offset and return how many segments went."""
    plan = remote_log.deletions.plan_record_deletion(ORDERS_0, before)
    assert plan is not None
    assert remote_log.deletions.mark_expired([plan], "delete-records") == ((ORDERS_0,), ())
    return len(remote_log.deletions.delete_marked("delete-records").deleted)


@pytest.mark.parametrize(
    ("before", "log_start", "gone"),
    [(1, 1, 0), (10, 10, 1), (15, 15, 1), (30, 30, 3), (35, 35, 3), (TO_THE_END, 35, 3)],
)
def test_the_global_log_start_moves_there_and_what_is_wholly_below_is_deleted(
    tmp_path: Path, before: int, log_start: int, gone: int
) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        assert delete_records(remote_log, before) == gone

        assert remote_log.context.segments.log_start_offset(ORDERS_0) == log_start
        assert offsets_read(remote_log, log_start) == list(range(log_start, 35))
        with pytest.raises(OffsetOutOfRangeError):
            offsets_read(remote_log, log_start - 1)
        assert remote_log.checks.audit(deep=True).anomalies == ()


@pytest.mark.parametrize("before", [-2, -(2**63)])
def test_a_negative_offset_is_refused_with_the_valid_range(tmp_path: Path, before: int) -> None:
    with (
        a_copied_remote_log(tmp_path).open() as remote_log,
        pytest.raises(ConfigurationError, match=r"\b0 to 35\b.*-1"),
    ):
        remote_log.deletions.plan_record_deletion(ORDERS_0, before)


@pytest.mark.parametrize("before", [36, 2**63])
def test_an_offset_past_the_end_is_refused_with_the_valid_range(tmp_path: Path, before: int) -> None:
    with (
        a_copied_remote_log(tmp_path).open() as remote_log,
        pytest.raises(OffsetOutOfRangeError, match=r"offsets 0 to 35\b"),
    ):
        remote_log.deletions.plan_record_deletion(ORDERS_0, before)


def test_a_second_deletion_of_the_same_records_does_nothing(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        delete_records(remote_log, 20)
        assert remote_log.deletions.plan_record_deletion(ORDERS_0, 20) is None
        assert remote_log.deletions.plan_record_deletion(ORDERS_0, 5) is None
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 20


def test_a_deletion_of_records_needs_the_right_to_delete_remotely(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
        assert plan is not None
        assert plan.reason is Reason.RECORDS
        remote_log.context.topics.put(
            Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders", remote_storage_enable=True)
        )
        done, [left] = remote_log.deletions.mark_expired([plan], "delete-records")

        assert done == ()
        assert mentions(left.message, "orders-0", "topics allow-deletion")
        assert len(segments_of(remote_log)) == 3
        with pytest.raises(DeletionRefusedError, match="not allowed"):
            remote_log.deletions.plan_record_deletion(ORDERS_0, 20)


def test_stopped_deletions_are_planned_and_not_carried_out(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        remote_log.context.safety.stop("to look at it", "somebody")
        planned = remote_log.deletions.plan_record_deletion(ORDERS_0, 20)
        assert planned is not None
        with pytest.raises(DeletionRefusedError, match="somebody"):
            remote_log.deletions.mark_expired([planned], "delete-records")
        assert len(segments_of(remote_log)) == 3
