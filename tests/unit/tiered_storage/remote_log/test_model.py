"""Any course of appends, copies, trims, expiries and reopenings, against a list of records."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.plain_reader import PlainReader
from support.records import USUAL_EXAMPLES
from support.remote_logs import (
    BATCH_RECORDS,
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    a_remote_log,
    begin,
    carry_out,
    offsets_read,
    segments_of,
    unsynced,
)
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING


class RemoteLogAgainstRecords(RuleBasedStateMachine):
    """What was ever appended is read back from the global log start on; nothing else moves that start but expiry."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.files = a_remote_log(Path(self.temporary.name), {("orders", 0): 0})
        self.remote_log = self.files.open()
        self.end = BATCH_RECORDS
        self.log_start = 0
        self.runs = 0
        self.committed: list[CopyOutcome] = []

    def teardown(self) -> None:
        self.remote_log.close()
        self.temporary.cleanup()

    @rule(batches=st.integers(1, 5), compression=st.sampled_from(Compression))
    def append(self, batches: int, compression: Compression) -> None:
        self.files.append(batches, compression=compression)
        self.end += BATCH_RECORDS * batches

    @rule(max_segments=st.integers(1, 4))
    def copy(self, max_segments: int) -> None:
        outcomes = self._carry_out(max_segments)
        assert self.remote_log.commit_copy(outcomes).is_whole
        self.committed = outcomes or self.committed

    @rule()
    def copy_and_die_before_the_commit(self) -> None:
        self._carry_out(4)
        self.files.clock.now += self.remote_log.context.settings.lease_duration_ms + 1

    @rule()
    def commit_the_last_copy_once_more(self) -> None:
        self.remote_log.commit_copy(self.committed)

    @rule(kept=st.integers(0, 5))
    def trim(self, kept: int) -> None:
        self._set("local.retention.bytes", kept * SEGMENT_BYTES)
        plans, unreadable = self.remote_log.deletions.plan_local_retention(EVERYTHING, self.files.clock.now)
        report = self.remote_log.deletions.enforce_local_retention(plans)
        assert unreadable == []
        assert report.failures == ()

    @rule(kept=st.integers(1, 8))
    def expire(self, kept: int) -> None:
        self._set("retention.bytes", kept * SEGMENT_BYTES)
        plans, _ = self.remote_log.deletions.plan_expiry(EVERYTHING, self.files.clock.now)
        done, left = self.remote_log.deletions.mark_expired(plans, "expire")
        assert (len(done), left) == (len(plans), ())
        assert self.remote_log.deletions.delete_marked("expire").failures == ()

        log_start = self.remote_log.context.segments.log_start_offset(ORDERS_0) or 0
        # What is past total retention before it was copied ends too; the active segment never does.
        assert self.log_start <= log_start <= self.end - BATCH_RECORDS
        self.log_start = log_start

    @rule()
    def time_passes(self) -> None:
        self.files.clock.now += self.remote_log.context.settings.remote_log_orphan_grace_ms

    @rule()
    def reopen(self) -> None:
        self.remote_log.close()
        self.remote_log = self.files.open()

    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.log_start, self.end))
        assert offsets_read(self.remote_log, start) == list(range(start, self.end))

    @invariant()
    def everything_is_read_exactly_once(self) -> None:
        assert PlainReader(self.remote_log).log_start_offset(ORDERS_0) == self.log_start
        assert offsets_read(self.remote_log, self.log_start) == list(range(self.log_start, self.end))

    @invariant()
    def the_store_is_whole(self) -> None:
        report = self.remote_log.checks.audit(deep=True)
        assert report.anomalies == ()
        finished = [one for one in segments_of(self.remote_log) if one.state is SegmentState.COPY_SEGMENT_FINISHED]
        assert report.segments == len(finished)

    def _carry_out(self, max_segments: int) -> list[CopyOutcome]:
        self.runs += 1
        begun = begin(self.remote_log, f"run {self.runs}", max_segments=max_segments)
        assert begun.left == ()
        return carry_out(self.remote_log, begun, f"runs/{self.runs}/1")

    def _set(self, name: str, value: int) -> None:
        """Change a setting of the topic, in the settings file."""
        self.files.properties["topics"] = {"orders": {**ENABLED, name: value}}
        self.reopen()


RemoteLogAgainstRecords.TestCase.settings = settings(
    max_examples=USUAL_EXAMPLES // 5, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_any_course_of_appends_copies_trims_and_expiries_loses_no_record() -> None:
    with unsynced():
        RemoteLogAgainstRecords.TestCase("runTest").runTest()
