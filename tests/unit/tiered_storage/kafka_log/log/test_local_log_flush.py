from __future__ import annotations

from pathlib import Path

import pytest

from support.local_logs import NOW, create, records
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.segment_scan import scan_segment


def on_disk(log: LocalLog) -> int:
    """How many batches the active segment's file has."""
    segment = log.segments[-1]
    return len(scan_segment(segment.log_path, segment.base_offset))


def test_the_log_is_flushed_by_itself_after_so_many_offsets(tmp_path: Path) -> None:
    with create(tmp_path, config=LogConfig(flush_messages=5)) as log:
        log.append(records(3))
        assert (log.recovery_point, on_disk(log)) == (0, 0)
        log.append(records(2))
        assert (log.recovery_point, on_disk(log)) == (5, 2)
        log.append(records(4))
        assert (log.recovery_point, on_disk(log)) == (5, 2)


def test_the_log_is_flushed_by_itself_after_so_long(tmp_path: Path) -> None:
    now = [NOW]
    with create(tmp_path, clock=lambda: now[0], config=LogConfig(flush_ms=100)) as log:
        for elapsed, recovery_point in ((99, 0), (100, 2), (199, 2), (201, 4)):
            now[0] = NOW + elapsed
            log.append(records())
            assert log.recovery_point == recovery_point


def test_a_roll_and_a_close_leave_nothing_to_be_recovered(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.roll()
        assert [segment.base_offset for segment in log.segments] == [0]
        log.append(records(3))
        log.roll()
        assert (log.recovery_point, [segment.base_offset for segment in log.segments]) == (3, [0, 3])
        log.append(records(2))
        assert log.recovery_point == 3
    assert log.recovery_point == 5


@pytest.mark.parametrize(("recovery_point", "kept"), [(None, 3), (0, 0), (2, 2), (99, 5)])
def test_the_recovery_point_of_before_is_kept_until_the_next_flush(
    tmp_path: Path, recovery_point: int | None, kept: int
) -> None:
    with create(tmp_path) as log:
        log.append(records(3))
        log.roll()
        log.append(records(2))

    with LocalLog.open(log.directory, clock=lambda: NOW, recovery_point=recovery_point) as reopened:
        assert reopened.recovery_point == kept
        reopened.flush()
        assert reopened.recovery_point == 5


def test_a_log_that_is_abandoned_keeps_what_was_written_out(tmp_path: Path) -> None:
    log = create(tmp_path)
    log.append(records(3), leader_epoch=2)
    log.flush()
    log.append(records(2), leader_epoch=4)
    log.abandon()

    with LocalLog.open(log.directory) as reopened:
        assert reopened.log_end_offset == 3
        assert reopened.leader_epochs == (EpochEntry(2, 0),)
