"""Changes to remote segments, in batches inside one transaction.

The items of a batch are independent: the result has each refusal in its place, and a refusal does not affect the
others. Items are handled in order; each sees the effects of those before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Update,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
    union_all,
)
from sqlalchemy import update as update_rows

from tiered_storage.errors import InvalidTransitionError
from tiered_storage.remote_log.metadata.life_cycle import stepped, why_deleted, why_lost, why_not_added
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Addition, Outcome, Step
from tiered_storage.remote_log.metadata.sql.database.engine import execute_for_rows, insert_missing, is_among
from tiered_storage.remote_log.metadata.sql.database.schema import (
    deleted_segments,
    partition_deletions,
    partitions,
    segments,
)
from tiered_storage.remote_log.metadata.sql.leases import newest_leases
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    ROLLED_COLUMNS,
    bound_key,
    has_bound_key,
    key_values,
    rolled_values,
    row_of,
    rows_by_partition,
    segment_of,
)
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

_FINISHED_COPIES = select(partitions.c.finished_copies).where(has_bound_key(partitions))
_RAISE_SPAN = (
    update_rows(partitions)
    .where(has_bound_key(partitions), partitions.c.longest_span < bindparam("span", type_=BigInteger))
    .values(longest_span=bindparam("span", type_=BigInteger))
)
_COUNT_FINISHED = (
    update_rows(partitions)
    .where(has_bound_key(partitions))
    .values(finished_copies=bindparam("new_finished_copies", type_=BigInteger))
)
_HAS_ID = has_bound_key(segments) & (segments.c.segment_id == bindparam("key_segment_id"))
_KEY = ("cluster_id", "topic_id", "partition", "segment_id")
_STEP = ("state", "event_timestamp", "max_timestamp", "custom_metadata", "finish_sequence")
"""The columns that a step writes."""


def _writing(columns: Iterable[str]) -> tuple[Update, Update]:
    """Return the updates of `columns` of a segment, `new_{column}` by `key_{column}`: of one row, and of many at once.

    A finished copy keeps its number.
    """
    types = {f"key_{name}": segments.c[name].type for name in _KEY}
    types |= {f"new_{name}": segments.c[name].type for name in columns}
    one = {name: bindparam(name, type_=kind) for name, kind in types.items()}
    rows = (
        func.unnest(*(bindparam(name, type_=ARRAY(kind)) for name, kind in types.items()))
        .table_valued(*(column(name, kind) for name, kind in types.items()), name="written")
        .render_derived()
    )
    return _written(one), _written({name: rows.c[name] for name in types})


def _written(values: Mapping[str, ColumnElement[Any]]) -> Update:
    keys = (segments.c[name.removeprefix("key_")] == value for name, value in values.items() if name.startswith("key_"))
    new = {name.removeprefix("new_"): value for name, value in values.items() if name.startswith("new_")}
    if "finish_sequence" in new:
        new["finish_sequence"] = func.coalesce(segments.c.finish_sequence, new["finish_sequence"])
    return update_rows(segments).where(*keys).values(new)


_WRITE_STEP, _WRITE_STEPS = _writing(_STEP)
_WRITE_ROLLED_ONE, _WRITE_ROLLED = _writing(ROLLED_COLUMNS)
_KEEP_AS_DELETED = insert(deleted_segments).from_select(segments.columns.keys(), select(segments).where(_HAS_ID))
_DELETE = delete(segments).where(_HAS_ID)


def add_segments(connection: Connection, additions: Sequence[Addition], where: str) -> list[Outcome]:
    """Insert the started segments; at most ROWS_A_STATEMENT. `where` names the database in messages."""
    newest = newest_leases(connection, [segment.topic_id_partition for segment, _ in additions])
    known = known_segments(connection, [segment.segment_id for segment, _ in additions], where)
    deleted = set(
        rows_by_partition(connection, partition_deletions, (each.topic_id_partition for each, _ in additions))
    )
    outcomes: list[Outcome] = []
    added: list[RemoteLogSegmentMetadata] = []
    for segment, lease in additions:
        there = known.get(segment.segment_id)
        refused = why_lost(lease, newest) or why_not_added(segment, there) or why_deleted(segment, there, deleted)
        outcomes.append(refused or segment)
        if refused is None and there is None:
            known[segment.segment_id] = segment
            added.append(segment)
    insert_segments(connection, added)
    return outcomes


def insert_segments(connection: Connection, added: Sequence[RemoteLogSegmentMetadata]) -> None:
    """Insert new segments, at most ROWS_A_STATEMENT, that were checked already."""
    if added:
        _add_partitions(connection, added)
        connection.execute(insert(segments), [row_of(segment) for segment in added])


def update_segments(connection: Connection, steps: Sequence[Step], where: str) -> list[Outcome]:
    """Make the state changes; at most ROWS_A_STATEMENT. `where` names the database in messages."""
    newest = newest_leases(connection, [update.segment_id.topic_id_partition for update, _ in steps])
    known = known_segments(connection, [update.segment_id for update, _ in steps], where)
    outcomes: list[Outcome] = []
    changed: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    finished: list[RemoteLogSegmentId] = []
    for update, lease in steps:
        before = known.get(update.segment_id)
        outcome = why_lost(lease, newest) or stepped(before, update, lease)
        outcomes.append(outcome)
        if outcome is before or not isinstance(outcome, RemoteLogSegmentMetadata):
            continue
        known[outcome.segment_id] = changed[outcome.segment_id] = outcome
        if outcome.state is SegmentState.COPY_SEGMENT_FINISHED:
            finished.append(outcome.segment_id)
    if changed:
        rolled = {update.segment_id for update, _ in steps if update.rolled is not None} & changed.keys()
        _write_rolled(connection, [changed[each] for each in rolled])
        write_steps(connection, changed.values(), finished)
    return outcomes


def write_steps(
    connection: Connection, changed: Iterable[RemoteLogSegmentMetadata], finished: Sequence[RemoteLogSegmentId]
) -> None:
    """Write checked steps of segments, at most ROWS_A_STATEMENT; `finished` are the copies that finish, in order."""
    _write_steps(connection, changed, _sequences(connection, finished))


def undelete_segments(
    connection: Connection, ids: Sequence[RemoteLogSegmentId], event_timestamp: int, where: str
) -> list[RemoteLogSegmentMetadata]:
    """Make marked segments, at most ROWS_A_STATEMENT, visible again. Raises InvalidTransitionError."""
    known = known_segments(connection, ids, where)
    for segment_id in ids:
        if segment_id not in known:
            raise InvalidTransitionError(f"{segment_id}: is not known and cannot be undeleted")
    returned = [known[segment_id].undeleted(event_timestamp) for segment_id in ids]
    if returned:
        _write_steps(connection, returned, {})
    return returned


def known_ids(connection: Connection, partition: TopicIdPartition, ids: Sequence[str]) -> set[str]:
    """Return those of `ids`, at most ROWS_A_STATEMENT, that the partition has or had as segments."""
    statement = _known_by(connection.dialect.name, ("segment_id",))
    return set(connection.scalars(statement, {**bound_key(partition), "segment_ids": ids}))


def known_segments(
    connection: Connection, ids: Iterable[RemoteLogSegmentId], where: str
) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
    """Return those of `ids`, at most ROWS_A_STATEMENT, that are or were segments. `where` is for messages."""
    by_partition: defaultdict[TopicIdPartition, list[str]] = defaultdict(list)
    for segment_id in ids:
        by_partition[segment_id.topic_id_partition].append(segment_id.id)
    statement = _known_by(connection.dialect.name, tuple(segments.columns.keys()))
    found = (
        segment_of(row, where)
        for partition, names in by_partition.items()
        for row in connection.execute(statement, {**bound_key(partition), "segment_ids": names})
    )
    return {segment.segment_id: segment for segment in found}


@cache
def _known_by(dialect: str, columns: tuple[str, ...]) -> CompoundSelect[Any]:
    """Return the query for `columns` of those of a partition's `segment_ids` that are or were its segments."""
    return union_all(
        *(
            select(*(table.c[name] for name in columns)).where(
                has_bound_key(table), is_among(dialect, table.c.segment_id, "segment_ids")
            )
            for table in (segments, deleted_segments)
        )
    )


def _add_partitions(connection: Connection, added: Iterable[RemoteLogSegmentMetadata]) -> None:
    added = list(added)
    rows = [
        {**key_values(partition), "topic": partition.topic, "longest_span": 0, "finished_copies": 0}
        for partition in dict.fromkeys(segment.topic_id_partition for segment in added)
    ]
    insert_missing(connection, partitions, rows)
    # Bounds would make every look-up search far before its offset.
    _raise_spans(connection, (segment for segment in added if not segment.is_bounded_only))


def _raise_spans(connection: Connection, known: Iterable[RemoteLogSegmentMetadata]) -> None:
    spans: dict[TopicIdPartition, int] = {}
    for segment in known:
        span = segment.end_offset - segment.start_offset + 1
        spans[segment.topic_id_partition] = max(span, spans.get(segment.topic_id_partition, 0))
    if spans:
        connection.execute(_RAISE_SPAN, [{**bound_key(partition), "span": span} for partition, span in spans.items()])


def _sequences(connection: Connection, finished: Sequence[RemoteLogSegmentId]) -> dict[RemoteLogSegmentId, int]:
    """Number the copies that finish now; no other transaction that writes can use the same numbers."""
    if not finished:
        return {}
    sequences: dict[RemoteLogSegmentId, int] = {}
    last: dict[TopicIdPartition, int] = {}
    for segment_id in finished:
        partition = segment_id.topic_id_partition
        if partition not in last:
            last[partition] = connection.execute(_FINISHED_COPIES, bound_key(partition)).scalar_one()
        last[partition] += 1
        sequences[segment_id] = last[partition]
    counts = [{**bound_key(partition), "new_finished_copies": count} for partition, count in last.items()]
    connection.execute(_COUNT_FINISHED, counts)
    return sequences


def _write_rolled(connection: Connection, rolled: Sequence[RemoteLogSegmentMetadata]) -> None:
    """Write what copies learned of the segments that they rolled themselves."""
    if not rolled:
        return
    rows = [
        {
            **bound_key(segment.topic_id_partition),
            "key_segment_id": segment.segment_id.id,
            **{f"new_{name}": value for name, value in rolled_values(segment).items()},
        }
        for segment in rolled
    ]
    execute_for_rows(connection, _WRITE_ROLLED_ONE, _WRITE_ROLLED, rows)
    _raise_spans(connection, rolled)


def _write_steps(
    connection: Connection, changed: Iterable[RemoteLogSegmentMetadata], sequences: dict[RemoteLogSegmentId, int]
) -> None:
    changed = list(changed)
    execute_for_rows(
        connection,
        _WRITE_STEP,
        _WRITE_STEPS,
        [
            {
                **bound_key(segment.topic_id_partition),
                "key_segment_id": segment.segment_id.id,
                "new_state": int(segment.state),
                "new_event_timestamp": segment.event_timestamp,
                "new_max_timestamp": segment.max_timestamp,
                "new_custom_metadata": segment.custom_metadata,
                "new_finish_sequence": sequences.get(segment.segment_id),
            }
            for segment in changed
        ],
    )
    ended = [
        {**bound_key(segment.topic_id_partition), "key_segment_id": segment.segment_id.id}
        for segment in changed
        if segment.state is SegmentState.DELETE_SEGMENT_FINISHED
    ]
    if ended:
        connection.execute(_KEEP_AS_DELETED, ended)
        connection.execute(_DELETE, ended)
