"""Writes of segments to a metadata topic.

A write checks the life cycle against the state after a catch-up and the lease in SQL, writes its record, applies the
log up to it, and checks the lease again, and that the segments did not move meanwhile. So every later call of every
process sees it, and who lost the lease meanwhile gets LeaseLostError although the record is written: the next holder's
records follow it in the log.

What a record cannot hold stays in SQL: a copy whose end is not known yet, and a segment without leader epochs. When
such a copy finishes, its beginning, with the true offsets, and its end are written together. If only the first of them
was written, the row in SQL is still there, and a repeated call writes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, delete

from tiered_storage.errors import InvalidTransitionError, LeaseLostError
from tiered_storage.remote_log.metadata.life_cycle import (
    check_addition,
    check_lease_of,
    stepped,
    why_deleted,
    why_lost,
    why_not_added,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Addition, Outcome, Step
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema import partition_deletions, segments
from tiered_storage.remote_log.metadata.sql.leases import newest_leases
from tiered_storage.remote_log.metadata.sql.partition_states import take_back_deletion
from tiered_storage.remote_log.metadata.sql.segment_changes import (
    insert_segments,
    known_segments,
    undelete_segments,
    update_segments,
)
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    bound_key,
    has_bound_key,
    in_batches,
    rows_by_partition,
)
from tiered_storage.remote_log.metadata.sql.topic_segments import (
    permit_undeletes,
    write_beginnings,
    write_max_timestamps,
)
from tiered_storage.remote_log.metadata.topic.topic_state import TopicState, Written
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RolledSegment,
    SegmentState,
    TopicIdPartition,
)

_MOST_BYTES = 2**31 - 1
"""The largest size that a record can hold."""


def fits_a_record(segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether a record can hold the segment's beginning; the others stay in SQL."""
    return not segment.is_bounded_only and segment.size <= _MOST_BYTES and bool(segment.leader_epochs)


@dataclass(slots=True)
class _Plan:
    """The outcomes of a batch, and what is written for them: to the topic by the index of an outcome, and to SQL."""

    outcomes: list[Outcome] = field(default_factory=list)
    records: list[tuple[int, Written]] = field(default_factory=list)
    beginnings: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    largest: dict[RemoteLogSegmentId, int] = field(default_factory=dict)
    in_sql: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    steps_in_sql: list[Step] = field(default_factory=list)
    left_sql: list[tuple[int, RemoteLogSegmentId]] = field(default_factory=list)
    """The segments whose rows in SQL are deleted once their records are in the topic, by the index of an outcome."""


class TopicSegmentWrites:
    """Writes to the topic of `state`, beside the SQL store's `database`."""

    def __init__(self, state: TopicState, database: Database) -> None:
        """Write nothing yet."""
        self._state = state
        self._database = database

    def add(self, additions: Sequence[Addition]) -> list[Outcome]:
        """As RemoteLogMetadataManager.add_remote_log_segments."""
        for segment, lease in additions:
            check_addition(segment, lease)
        outcomes: list[Outcome] = []
        for batch in in_batches(additions):
            in_topic = self._in_topic(segment.segment_id for segment, _ in batch)
            with self._database.writing() as connection:
                plan = self._planned_additions(connection, batch, in_topic)
                self._write_sql(connection, plan)
            outcomes += self._finished(plan, [lease for _, lease in batch])
        return outcomes

    def update(self, steps: Sequence[Step]) -> list[Outcome]:
        """As RemoteLogMetadataManager.update_remote_log_segments."""
        for step, lease in steps:
            check_lease_of(step.segment_id.topic_id_partition, lease)
        outcomes: list[Outcome] = []
        for batch in in_batches(steps):
            in_topic = self._in_topic(step.segment_id for step, _ in batch)
            with self._database.writing() as connection:
                plan = self._planned_steps(connection, batch, in_topic)
                self._write_sql(connection, plan)
            outcomes += self._finished(plan, [lease for _, lease in batch])
        return outcomes

    def undelete(
        self,
        partition: TopicIdPartition,
        segment_ids: Sequence[RemoteLogSegmentId],
        log_start_offset: int,
        event_timestamp: int,
        lease: Lease,
    ) -> list[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager.undelete.

        The log start and the permission for the segments are one transaction in SQL; the records follow. If the process
        ends between them, the segments are still marked, and the call can be repeated.
        """
        for each in (partition, *(segment_id.topic_id_partition for segment_id in segment_ids)):
            check_lease_of(each, lease)
        in_topic = self._in_topic(segment_ids)
        in_sql = [each for each in segment_ids if each not in in_topic]
        returned = {each.segment_id: each.undeleted(event_timestamp) for each in in_topic.values()}
        with self._database.writing() as connection:
            take_back_deletion(connection, partition, log_start_offset, lease, self._database.where)
            for batch in in_batches(in_sql):
                undeleted = undelete_segments(connection, batch, event_timestamp, self._database.where)
                returned |= {each.segment_id: each for each in undeleted}
            permit_undeletes(connection, [returned[each] for each in in_topic], event_timestamp)
        plan = _Plan(outcomes=[returned[each] for each in segment_ids])
        plan.records = [(at, _end_of(returned[each])) for at, each in enumerate(segment_ids) if each in in_topic]
        outcomes = self._finished(plan, [lease] * len(segment_ids))
        for outcome in outcomes:
            if not isinstance(outcome, RemoteLogSegmentMetadata):
                raise outcome
        return [returned[each] for each in segment_ids]

    def _in_topic(self, ids: Iterable[RemoteLogSegmentId]) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
        """Catch up, and return those of `ids`, at most ROWS_A_STATEMENT at once, that the topic has."""
        wanted = list(dict.fromkeys(ids))
        partitions = self._state.partitions_of(each.topic_id_partition for each in wanted)
        found: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        for batch in in_batches(wanted):
            found |= self._state.known(partitions, batch)
        return found

    def _planned_additions(
        self,
        connection: Connection,
        batch: Sequence[Addition],
        in_topic: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata],
    ) -> _Plan:
        partitions = [segment.topic_id_partition for segment, _ in batch]
        newest = newest_leases(connection, partitions)
        deleted = set(rows_by_partition(connection, partition_deletions, partitions))
        ids = [segment.segment_id for segment, _ in batch]
        known = known_segments(connection, ids, self._database.where) | in_topic
        plan = _Plan()
        for at, (segment, lease) in enumerate(batch):
            there = known.get(segment.segment_id)
            refused = why_lost(lease, newest) or why_not_added(segment, there) or why_deleted(segment, there, deleted)
            plan.outcomes.append(refused or segment)
            if refused is not None or there is not None:
                continue
            known[segment.segment_id] = segment
            if fits_a_record(segment):
                plan.beginnings.append(segment)
                plan.records.append((at, segment))
            else:
                plan.in_sql.append(segment)
        return plan

    def _planned_steps(
        self,
        connection: Connection,
        batch: Sequence[Step],
        in_topic: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata],
    ) -> _Plan:
        newest = newest_leases(connection, [step.segment_id.topic_id_partition for step, _ in batch])
        in_sql = known_segments(connection, [step.segment_id for step, _ in batch], self._database.where)
        known, plan = in_sql | in_topic, _Plan()
        for at, (asked, lease) in enumerate(batch):
            before = known.get(asked.segment_id)
            step = asked if asked.segment_id not in in_sql else _without_known_offsets(asked, before)
            outcome = why_lost(lease, newest) or stepped(before, step, lease)
            plan.outcomes.append(outcome)
            is_in_topic = asked.segment_id in in_topic
            if is_in_topic and asked.segment_id in in_sql and isinstance(outcome, RemoteLogSegmentMetadata):
                plan.left_sql.append((at, asked.segment_id))
            if before is None or outcome is before or not isinstance(outcome, RemoteLogSegmentMetadata):
                continue
            known[outcome.segment_id] = outcome
            if is_in_topic:
                plan.records.append((at, _end_of(outcome, step)))
                if outcome.max_timestamp != before.max_timestamp:
                    plan.largest[outcome.segment_id] = outcome.max_timestamp
            elif fits_a_record(outcome):
                in_topic[outcome.segment_id] = outcome
                plan.beginnings.append(_beginning_of(outcome, before))
                plan.records += [(at, plan.beginnings[-1]), (at, _end_of(outcome, step))]
                plan.left_sql.append((at, outcome.segment_id))
            else:
                plan.steps_in_sql.append((step, lease))
        return plan

    def _write_sql(self, connection: Connection, plan: _Plan) -> None:
        write_beginnings(connection, plan.beginnings)
        write_max_timestamps(connection, plan.largest)
        insert_segments(connection, plan.in_sql)
        if plan.steps_in_sql:
            update_segments(connection, plan.steps_in_sql, self._database.where)

    def _finished(self, plan: _Plan, held: Sequence[Lease]) -> list[Outcome]:
        """Write the records of `plan`, and return its outcomes with what became of them."""
        if not plan.records and not plan.left_sql:
            return plan.outcomes
        led = {each.segment_id: each.broker_id for each in plan.outcomes if isinstance(each, RemoteLogSegmentMetadata)}
        skipped = self._state.write([record for _, record in plan.records], led)
        for number, (at, _) in enumerate(plan.records):
            if number in skipped:
                plan.outcomes[at] = InvalidTransitionError(skipped[number])
        written = {at for at, _ in plan.records}
        refused = {plan.records[number][0] for number in skipped}
        left = [each for at, each in plan.left_sql if at not in refused]
        with self._database.writing() if left else self._database.reading() as connection:
            self._state.check_use(connection)
            newest = newest_leases(connection, [held[at].topic_id_partition for at in written])
            _delete_rows(connection, left)
        lost: dict[int, LeaseLostError | None] = {at: why_lost(held[at], newest) for at in written}
        return [lost.get(at) or outcome for at, outcome in enumerate(plan.outcomes)]


def _delete_rows(connection: Connection, ids: Sequence[RemoteLogSegmentId]) -> None:
    for each in ids:
        statement = delete(segments).where(has_bound_key(segments), segments.c.segment_id == each.id)
        connection.execute(statement, bound_key(each.topic_id_partition))


def _beginning_of(segment: RemoteLogSegmentMetadata, before: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Return how a copy began whose end has set offsets and size."""
    return replace(
        segment,
        state=SegmentState.COPY_SEGMENT_STARTED,
        event_timestamp=before.event_timestamp,
        custom_metadata=before.custom_metadata,
    )


def _end_of(
    segment: RemoteLogSegmentMetadata, step: RemoteLogSegmentMetadataUpdate | None = None
) -> RemoteLogSegmentMetadataUpdate:
    """Return the update to the state of `segment`, as a record holds it."""
    custom = segment.custom_metadata if step is None else step.custom_metadata
    return RemoteLogSegmentMetadataUpdate(segment.segment_id, segment.state, segment.event_timestamp, custom)


def _without_known_offsets(
    step: RemoteLogSegmentMetadataUpdate, known: RemoteLogSegmentMetadata | None
) -> RemoteLogSegmentMetadataUpdate:
    """Return `step` without the offsets that an earlier try has written to the topic already."""
    if known is None or known.is_bounded_only or step.rolled is None:
        return step
    written = RolledSegment(known.start_offset, known.end_offset, known.size, known.leader_epochs)
    return replace(step, rolled=None) if step.rolled == written else step
