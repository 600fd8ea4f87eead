"""Apply the records of the metadata topic to the cache, in the order of the log.

A segment's records are in one metadata partition, so their order is the same for every reader. A record that the life
cycle refuses changes nothing and is recorded as skipped, with the reason; so its writer learns of it too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sqlalchemy import Connection, insert
from sqlalchemy.dialects import sqlite

from tiered_storage.errors import InvalidTransitionError, MalformedMetadataRecordError
from tiered_storage.kafka_log.kernels.constants import HIGHEST_OFFSET
from tiered_storage.remote_log.metadata.life_cycle import why_not_added
from tiered_storage.remote_log.metadata.sql.database.engine import insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import (
    deleted_segments,
    partition_deletions,
    partitions,
    segments,
)
from tiered_storage.remote_log.metadata.sql.segment_changes import insert_segments, known_segments, write_steps
from tiered_storage.remote_log.metadata.sql.segment_rows import in_batches, key_values, rows_by_partition
from tiered_storage.remote_log.metadata.sql.topic_segments import Place, SegmentFacts
from tiered_storage.remote_log.metadata.topic.cache import (
    SkippedRecord,
    next_offset_of,
    write_next_offset,
    write_skipped,
)
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import LogValues
from tiered_storage.remote_log.metadata.topic.cluster.record_blocks import RecordBlock
from tiered_storage.remote_log.metadata.topic.plain_lives import PlainLives
from tiered_storage.remote_log.metadata.topic.records import MetadataRecord, decode_record
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

FactsOf: TypeAlias = Callable[[Iterable[Place]], Mapping[Place, SegmentFacts]]
"""Returns what SQL has of these segments."""

RECORDS_AT_ONCE = 1000
"""The most records of one transaction: its statements bind a value for each."""

OTHERS_AT_ONCE = 20_000
"""The most records of a block that are applied one by one, in about a second: other processes wait."""

_INSERTS = {table: str(insert(table).compile(dialect=sqlite.dialect())) for table in (segments, deleted_segments)}

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Changes:
    """What records change: segments by id as they are then, new ones as they began, and the copies that finish."""

    known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]
    added: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    changed: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)
    finished: list[RemoteLogSegmentId] = field(default_factory=list)
    deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record, or why there is none, and its place; `facts` is what SQL has of its segment."""

    metadata_partition: int
    offset: int
    record: MetadataRecord | str
    facts: SegmentFacts | None = None


def decoded(found: LogValues, cluster_id: str, facts_of: FactsOf) -> list[DecodedRecord]:
    """Return the records in `found`. They are of the cluster `cluster_id` unless SQL has another one for a segment."""
    records = [DecodedRecord(found.partition, offset, _record_of(value, cluster_id)) for offset, value in found.values]
    facts = facts_of({_place(each) for each in map(_segment_id, records) if each is not None})
    return [_with_facts(each, facts) for each in records]


def apply_records(
    connection: Connection,
    records: Sequence[DecodedRecord],
    partition: int,
    first: int,
    next_offset: int,
    where: str,
    leader_epoch: int | None = None,
) -> list[SkippedRecord]:
    """Apply `records`, at most RECORDS_AT_ONCE, of a metadata partition; return those that were skipped.

    They are all of the partition from offset `first` to `next_offset` (exclusive). Does nothing if another process
    applied others meanwhile, so that some would be applied twice or left out. `where` names the topic in messages,
    and `leader_epoch` is that of the last batch.
    """
    if next_offset_of(connection, partition) != first:
        return []
    skipped = _apply(connection, records, where)
    write_next_offset(connection, partition, next_offset, leader_epoch)
    return skipped


def apply_block(
    connection: Connection,
    block: RecordBlock,
    lives: PlainLives,
    decode: Callable[[LogValues], Sequence[DecodedRecord]],
    where: str,
) -> bool:
    """Apply a block with the result of apply_records, `lives` by columns and all else record by record.

    Returns False, and changes nothing, if that is too much for one transaction. `decode` is `decoded` of the topic.
    """
    if next_offset_of(connection, block.partition) != block.first:
        return True
    lives.leave_out(rows_by_partition(connection, partitions, lives.partitions))
    others = lives.other_rows()
    if others.size > OTHERS_AT_ONCE:
        return False
    insert_missing(connection, partitions, lives.partition_rows())
    for table, rows in lives.segment_rows():
        # By the driver's own call, which takes rows as they are: the cache is always SQLite.
        connection.exec_driver_sql(_INSERTS[table], rows)
    for part in in_batches(decode(block.at(others))):
        _apply(connection, part, where)
    write_next_offset(connection, block.partition, block.next_offset, block.leader_epoch)
    return True


def _apply(connection: Connection, records: Sequence[DecodedRecord], where: str) -> list[SkippedRecord]:
    """Apply `records`, at most RECORDS_AT_ONCE; return those that were skipped."""
    ids = (_segment_id(each) for each in records)
    changes = _Changes(known_segments(connection, dict.fromkeys(each for each in ids if each is not None), where))
    skipped: list[SkippedRecord] = []
    for each in records:
        reason = each.record if isinstance(each.record, str) else _why_skipped(each.record, each.facts, changes)
        if reason is not None:
            skipped.append(SkippedRecord(each.metadata_partition, each.offset, reason))
    insert_segments(connection, changes.added)
    if changes.changed:
        write_steps(connection, changes.changed.values(), changes.finished)
    if changes.deletions:
        insert_or_replace(connection, partition_deletions, [_deletion_row(each) for each in changes.deletions.values()])
    write_skipped(connection, skipped)
    for found in skipped:
        place = f"{where}, partition {found.metadata_partition}, offset {found.offset}"
        _log.warning("%s: skipped: %s", place, found.reason)
    return skipped


def _why_skipped(record: MetadataRecord, facts: SegmentFacts | None, changes: _Changes) -> str | None:
    """Add the record to `changes`; return why it changes nothing, None also for a repeated one."""
    match record:
        case RemoteLogSegmentMetadata():
            segment = replace(record, fencing_number=0 if facts is None else facts.fencing_number)
            return _why_not_begun(segment, changes)
        case RemoteLogSegmentMetadataUpdate():
            return _why_not_stepped(record, facts, changes)
        case RemotePartitionDeleteMetadata():
            changes.deletions[record.topic_id_partition] = record
            return None
        case _:
            return "a snapshot of a segment belongs into a file, not into the topic"


def _why_not_begun(segment: RemoteLogSegmentMetadata, changes: _Changes) -> str | None:
    known = changes.known.get(segment.segment_id)
    # A record that was written twice, before or after later steps, changes nothing.
    if known is not None and _beginning(known) == _beginning(segment):
        return None
    refused = why_not_added(segment, known)
    if refused is not None:
        return str(refused)
    if segment.end_offset > HIGHEST_OFFSET:
        return f"{segment.segment_id}: its end offset {segment.end_offset} is above {HIGHEST_OFFSET}"
    changes.known[segment.segment_id] = segment
    changes.added.append(segment)
    return None


def _why_not_stepped(
    update: RemoteLogSegmentMetadataUpdate, facts: SegmentFacts | None, changes: _Changes
) -> str | None:
    known = changes.known.get(update.segment_id)
    if known is None:
        return f"{update.segment_id}: is not known and cannot become {update.state.name}: no earlier record begins it"
    if known.state is update.state:
        return None
    try:
        after = _after(known, update, facts)
    except InvalidTransitionError as refused:
        return str(refused)
    changes.known[after.segment_id] = changes.changed[after.segment_id] = after
    if known.state is SegmentState.COPY_SEGMENT_STARTED and after.state is SegmentState.COPY_SEGMENT_FINISHED:
        changes.finished.append(after.segment_id)
    return None


def _after(
    known: RemoteLogSegmentMetadata, update: RemoteLogSegmentMetadataUpdate, facts: SegmentFacts | None
) -> RemoteLogSegmentMetadata:
    finishes = update.state is SegmentState.COPY_SEGMENT_FINISHED
    # SQL has the time of the last undelete: those before it, each after its own mark, were permitted too. The last one
    # may come before its mark in time: a clock was ahead when the segment was marked.
    last = None if facts is None else facts.undeleted_at
    is_permitted = last is not None and (known.event_timestamp <= update.event_timestamp <= last)
    if finishes and known.is_marked and (is_permitted or update.event_timestamp == last):
        return known.undeleted(update.event_timestamp)
    largest = facts.max_timestamp if finishes and facts is not None else None
    return known.updated(replace(update, max_timestamp=largest))


def _beginning(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Return `segment` without what later records change."""
    return replace(
        segment,
        state=SegmentState.COPY_SEGMENT_STARTED,
        event_timestamp=0,
        max_timestamp=0,
        custom_metadata=None,
    )


def _record_of(value: bytes | None, cluster_id: str) -> MetadataRecord | str:
    if value is None:
        return "its value is null"
    try:
        return decode_record(value, cluster_id)
    except MalformedMetadataRecordError as error:
        return str(error)


def _segment_id(decoded_record: DecodedRecord) -> RemoteLogSegmentId | None:
    match decoded_record.record:
        case RemoteLogSegmentMetadata() | RemoteLogSegmentMetadataUpdate() as record:
            return record.segment_id
        case _:
            return None


def _place(segment_id: RemoteLogSegmentId) -> Place:
    partition = segment_id.topic_id_partition
    return segment_id.id, partition.topic_id, partition.partition


def _with_facts(each: DecodedRecord, facts: Mapping[Place, SegmentFacts]) -> DecodedRecord:
    """Return the record with the facts on its segment, and with the cluster that those name."""
    match each.record:
        case RemoteLogSegmentMetadata() | RemoteLogSegmentMetadataUpdate() as record:
            partition = record.segment_id.topic_id_partition
            found = facts.get(_place(record.segment_id))
            if found is None:
                return each
            if not found.cluster_id:
                return replace(
                    each, record=f"{record.segment_id}: SQL lost its row, and several clusters have its topic"
                )
            partition = replace(partition, cluster_id=found.cluster_id)
            named = replace(record, segment_id=RemoteLogSegmentId(partition, record.segment_id.id))
            return replace(each, record=named, facts=found)
        case _:
            return each


def _deletion_row(record: RemotePartitionDeleteMetadata) -> dict[str, object]:
    partition = record.topic_id_partition
    return {
        **key_values(partition),
        "topic": partition.topic,
        "state": int(record.state),
        "event_timestamp": record.event_timestamp,
    }
