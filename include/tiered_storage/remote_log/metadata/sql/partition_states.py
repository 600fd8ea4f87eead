"""The state of a partition besides its segments, inside one transaction: log start, lineage, deletion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, delete, select, update

from tiered_storage.errors import (
    InvalidTransitionError,
    LeaseLostError,
    MetadataCorruptError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.lineage import merged
from tiered_storage.remote_log.metadata.life_cycle import check_deletion, why_lost
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import LogStart, ObservedLineage
from tiered_storage.remote_log.metadata.sql.database.engine import insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import (
    lineages,
    log_starts,
    partition_deletions,
    partitions,
    topics,
)
from tiered_storage.remote_log.metadata.sql.leases import newest_leases
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    bound_key,
    epochs_of,
    epochs_text,
    has_bound_key,
    key_values,
    partition_of,
    rows_by_partition,
)
from tiered_storage.remote_log.model import (
    EarlierLogStart,
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

_LOG_START, _LINEAGE, _DELETION = (
    select(table).where(has_bound_key(table)) for table in (log_starts, lineages, partition_deletions)
)
_RAISE_LOG_START = (
    update(log_starts)
    .where(has_bound_key(log_starts), log_starts.c.log_start_offset < bindparam("offset", type_=BigInteger))
    .values(log_start_offset=bindparam("offset", type_=BigInteger))
)
_NO_DELETION = delete(partition_deletions).where(has_bound_key(partition_deletions))


def state_of(connection: Connection, partition: TopicIdPartition, where: str) -> PartitionState:
    """Return the state of `partition`. `where` names the database in messages."""
    log_start, lineage, deletion = (
        connection.execute(statement, bound_key(partition)).one_or_none()
        for statement in (_LOG_START, _LINEAGE, _DELETION)
    )
    return _state(log_start, lineage, deletion, where)


def states_of(
    connection: Connection, wanted: Iterable[TopicIdPartition], where: str
) -> dict[TopicIdPartition, PartitionState]:
    """Return the state of each of the partitions. `where` names the database in messages."""
    keys = list(wanted)
    starts, epochs, deletions = (
        rows_by_partition(connection, table, keys) for table in (log_starts, lineages, partition_deletions)
    )
    return {key: _state(starts.get(key), epochs.get(key), deletions.get(key), where) for key in keys}


def log_start_of(connection: Connection, partition: TopicIdPartition) -> int | None:
    """Return only the global log start of `partition`."""
    row = connection.execute(_LOG_START, bound_key(partition)).one_or_none()
    return None if row is None else row.log_start_offset


def all_states(connection: Connection, where: str) -> dict[TopicIdPartition, PartitionState]:
    """Return the state of every partition. `where` names the database in messages."""
    starts, epochs, deletions = (
        {_key(row): row for row in connection.execute(select(table))}
        for table in (log_starts, lineages, partition_deletions)
    )
    named = {
        _key(row): partition_of(row)
        for table in (partition_deletions, lineages, partitions)
        for row in connection.execute(select(table))
    }
    # Earlier versions kept a log start without a name beside it; the name is not part of the key.
    names = {(row.cluster_id, row.topic_id): row.name for row in connection.execute(select(topics))}
    names |= {(each.cluster_id, each.topic_id): each.topic for each in named.values() if each.is_named}
    unnamed = {key: TopicIdPartition(*key, topic=names.get(key[:2], key[1])) for key in starts.keys() - named.keys()}
    return {
        partition: _state(starts.get(key), epochs.get(key), deletions.get(key), where)
        for key, partition in (named | unnamed).items()
    }


def raise_log_starts(
    connection: Connection, items: Sequence[LogStart], moved_at: int | None, where: str
) -> list[LeaseLostError | None]:
    """Move log starts up; return, in order, the error that refused each, or None. An empty lineage keeps the topic's
    name.

    With `moved_at` (ms) the previous ones are kept as earlier ones. `where` names the database in messages.
    """
    newest = newest_leases(connection, [partition for partition, _, _ in items])
    outcomes = [why_lost(lease, newest) for _, _, lease in items]
    moved = [(partition, offset) for (partition, offset, _), lost in zip(items, outcomes, strict=True) if lost is None]
    for partition, offset in moved if moved_at is not None else ():
        _keep_earlier(connection, partition, offset, moved_at or 0, where)
    if moved:
        rows = [{**key_values(partition), "log_start_offset": offset} for partition, offset in moved]
        insert_missing(connection, log_starts, rows)
        names = [
            {**key_values(partition), "topic": partition.topic, "leader_epochs": epochs_text(())}
            for partition, _ in moved
            if partition.is_named
        ]
        if names:
            insert_missing(connection, lineages, names)
        connection.execute(
            _RAISE_LOG_START, [{**bound_key(partition), "offset": offset} for partition, offset in moved]
        )
    return outcomes


def write_lineages(
    connection: Connection, observed: Sequence[ObservedLineage], where: str
) -> list[LeaseLostError | None]:
    """Merge lineages into the known ones; return, in order, the error that refused each. `where` is for messages."""
    newest = newest_leases(connection, [partition for partition, _, _ in observed])
    outcomes = [why_lost(lease, newest) for _, _, lease in observed]
    known = rows_by_partition(connection, lineages, [partition for partition, _, _ in observed])
    kept: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
    for (partition, lineage, _), lost in zip(observed, outcomes, strict=True):
        if lost is not None:
            continue
        earlier = kept[partition] if partition in kept else _state(None, known.get(partition), None, where).lineage
        kept[partition] = merged(earlier, lineage)
    rows = [
        {**key_values(partition), "topic": partition.topic, "leader_epochs": epochs_text(lineage)}
        for partition, lineage in kept.items()
    ]
    if rows:
        insert_or_replace(connection, lineages, rows)
    return outcomes


def write_deletion(connection: Connection, metadata: RemotePartitionDeleteMetadata, lease: Lease, where: str) -> None:
    """Change the state of a partition's deletion. Raises LeaseLostError and InvalidTransitionError."""
    partition = metadata.topic_id_partition
    _ensure_newest(connection, lease)
    known = state_of(connection, partition, where)
    check_deletion(known, metadata)
    if known.delete_state is metadata.state:
        return
    row = {
        **key_values(partition),
        "topic": partition.topic,
        "state": int(metadata.state),
        "event_timestamp": metadata.event_timestamp,
    }
    insert_or_replace(connection, partition_deletions, [row])


def take_back_deletion(
    connection: Connection, partition: TopicIdPartition, log_start_offset: int, lease: Lease, where: str
) -> None:
    """Lower the global log start to `log_start_offset` if it is higher, and cancel the deletion of the whole partition.

    Raises LeaseLostError, and InvalidTransitionError if that deletion is FINISHED. `where` names the database.
    """
    _ensure_newest(connection, lease)
    known = state_of(connection, partition, where)
    if known.delete_state is PartitionDeleteState.FINISHED:
        raise InvalidTransitionError(f"{partition} is FINISHED for deletion and cannot be undeleted: nothing is left")
    connection.execute(_NO_DELETION, bound_key(partition))
    returned = known.undeleted(log_start_offset)
    if returned.log_start_offset != known.log_start_offset:
        _write_log_start(connection, partition, returned)


def _keep_earlier(connection: Connection, partition: TopicIdPartition, offset: int, moved_at: int, where: str) -> None:
    known = state_of(connection, partition, where)
    if offset > (known.log_start_offset or 0):
        _write_log_start(connection, partition, known.with_log_start(offset, moved_at))


def _write_log_start(connection: Connection, partition: TopicIdPartition, state: PartitionState) -> None:
    earlier = json.dumps([(each.offset, each.moved_at) for each in state.earlier_log_starts])
    row = {**key_values(partition), "log_start_offset": state.log_start_offset, "earlier": earlier}
    insert_or_replace(connection, log_starts, [row])


def _earlier_of(text: str) -> tuple[EarlierLogStart, ...]:
    return tuple(EarlierLogStart(offset, moved_at) for offset, moved_at in json.loads(text))


def _ensure_newest(connection: Connection, lease: Lease) -> None:
    lost = why_lost(lease, newest_leases(connection, [lease.topic_id_partition]))
    if lost is not None:
        raise lost


def _key(row: Row[Any]) -> tuple[str, str, int]:
    return row.cluster_id, row.topic_id, row.partition


def _state(
    log_start: Row[Any] | None, lineage: Row[Any] | None, deletion: Row[Any] | None, where: str
) -> PartitionState:
    try:
        return PartitionState(
            None if log_start is None else log_start.log_start_offset,
            () if lineage is None else epochs_of(lineage.leader_epochs),
            None if deletion is None else PartitionDeleteState(deletion.state),
            () if log_start is None else _earlier_of(log_start.earlier),
        )
    except (ValueError, TypeError) as error:
        found = lineage or deletion
        name = "" if found is None else f" of {partition_of(found)}"
        raise MetadataCorruptError(
            f"{where}: the state{name} is damaged ({error}): restore the metadata store from its backup"
        ) from error
