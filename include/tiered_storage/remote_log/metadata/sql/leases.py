"""Leases in SQL: one row a partition, whose fencing number rises with every holder and never falls.

A row is never removed; releasing a lease only ends its time. A change of a partition reads its row in the same
transaction (`newest_leases`; one transaction writes at a time, so nobody takes the lease meanwhile) and proceeds only
if `why_lost` returns None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, select, update

from tiered_storage.clock import Clock
from tiered_storage.errors import MetadataCorruptError
from tiered_storage.remote_log.metadata.life_cycle import GIVEN_BACK, expiry, held_error, why_lost, why_over
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import GrantedLeases, RefusedLease
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing
from tiered_storage.remote_log.metadata.sql.database.schema import leases, store_identity
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    bound_key,
    has_bound_key,
    key_values,
    rows_by_partition,
)
from tiered_storage.remote_log.model import Lease, TopicIdPartition
from tiered_storage.remote_log.storage.documents.object_names import HIGHEST_NUMBER

_WRITE_LEASE = (
    update(leases)
    .where(has_bound_key(leases))
    .values(
        owner=bindparam("new_owner"),
        fencing_number=bindparam("new_fencing_number"),
        expires_at=bindparam("new_expires_at"),
    )
)
_RESTING = select(leases.c.fencing_number, leases.c.expires_at, store_identity.c.metadata_topic).select_from(
    store_identity.outerjoin(leases, has_bound_key(leases))
)


class SqlLeases:
    """`Leases` in a SQL database, with calls for many partitions that cost one commit each."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def begin_above(self, numbers: Mapping[TopicIdPartition, int]) -> None:
        """Make every later lease of these partitions get a higher number than the one given for it.

        For rebuilt metadata: a holder of a lease of the lost metadata must never count as a holder.
        """
        with self._database.writing() as connection:
            _insert_unheld(connection, sorted(numbers), "")
            newest = newest_leases(connection, numbers)
            for holder in newest.values():
                self._ensure_room(holder)
            raised = [
                replace(newest[partition], fencing_number=number)
                for partition, number in numbers.items()
                if newest[partition].fencing_number < number
            ]
            _write(connection, raised)

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        """As Leases.acquire."""
        return _only(self.acquire_many([partition], owner, duration_ms))

    def acquire_many(self, partitions: Iterable[TopicIdPartition], owner: str, duration_ms: int) -> GrantedLeases:
        """As Leases.acquire_many, in one transaction."""
        asked = sorted(set(partitions))
        now = self._clock()
        expires_at = expiry(now, duration_ms)
        granted: list[Lease] = []
        refused: list[RefusedLease] = []
        with self._database.writing() as connection:
            _insert_unheld(connection, asked, owner)
            for partition, holder in newest_leases(connection, asked).items():
                if holder.owner != owner and holder.expires_at > now:
                    refused.append(RefusedLease(partition, held_error(holder)))
                else:
                    self._ensure_room(holder)
                    granted.append(Lease(partition, owner, holder.fencing_number + 1, expires_at))
            _write(connection, granted)
        return GrantedLeases(tuple(granted), tuple(refused))

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        """Do as Leases.heartbeat: a late one of a released lease must not keep others out."""
        return _only(self.heartbeat_many([lease], duration_ms))

    def heartbeat_many(self, held: Sequence[Lease], duration_ms: int) -> GrantedLeases:
        """As Leases.heartbeat_many, in one transaction."""
        expires_at = expiry(self._clock(), duration_ms)
        granted: list[Lease] = []
        refused: list[RefusedLease] = []
        with self._database.writing() as connection:
            newest = newest_leases(connection, [lease.topic_id_partition for lease in held])
            for lease in held:
                lost = why_lost(lease, newest) or why_over(lease, newest)
                if lost is not None:
                    refused.append(RefusedLease(lease.topic_id_partition, lost))
                else:
                    granted.append(replace(lease, expires_at=expires_at))
            _write(connection, granted)
        return GrantedLeases(tuple(granted), tuple(refused))

    def check(self, lease: Lease) -> None:
        """As Leases.check."""
        with self._database.reading() as connection:
            lost = why_lost(lease, newest_leases(connection, [lease.topic_id_partition]))
        if lost is not None:
            raise lost

    def fencing_number(self, partition: TopicIdPartition) -> int:
        """As Leases.fencing_number."""
        with self._database.reading() as connection:
            newest = newest_leases(connection, [partition]).get(partition)
        return 0 if newest is None else newest.fencing_number

    def release(self, lease: Lease) -> None:
        """As Leases.release."""
        self.release_many([lease])

    def release_many(self, held: Sequence[Lease]) -> None:
        """As Leases.release_many, in one transaction."""
        with self._database.writing() as connection:
            newest = newest_leases(connection, [lease.topic_id_partition for lease in held])
            ours = [lease for lease in held if why_lost(lease, newest) is None]
            _write(connection, [replace(lease, expires_at=GIVEN_BACK) for lease in ours])

    def held(self) -> Sequence[Lease]:
        """As Leases.held."""
        running = select(leases).where(leases.c.expires_at > self._clock()).order_by(leases.c.expires_at.desc())
        with self._database.reading() as connection:
            return [
                Lease(
                    TopicIdPartition(row.cluster_id, row.topic_id, row.partition, row.topic_id),
                    row.owner,
                    row.fencing_number,
                    row.expires_at,
                )
                for row in connection.execute(running)
            ]

    def end(self, partition: TopicIdPartition, ended_by: str) -> Lease | None:
        """As Leases.end."""
        with self._database.writing() as connection:
            holder = newest_leases(connection, [partition]).get(partition)
            if holder is None or holder.expires_at <= self._clock():
                return None
            self._ensure_room(holder)
            number = holder.fencing_number + 1
            _write(connection, [Lease(partition, ended_by, number, GIVEN_BACK)])
        return holder

    def _ensure_room(self, holder: Lease) -> None:
        if holder.fencing_number >= HIGHEST_NUMBER:
            raise MetadataCorruptError(
                f"{self._database.where}: {holder.topic_id_partition}: the lease of {holder.owner} has fencing number "
                f"{holder.fencing_number}, higher than any that Remote Log gives: restore the metadata from their "
                "backup, or rebuild them with 'tiered-storage rebuild-metadata'"
            )


def newest_leases(connection: Connection, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, Lease]:
    """Return the newest lease of each of the partitions that ever had one."""
    found = rows_by_partition(connection, leases, partitions)
    return {
        partition: Lease(partition, row.owner, row.fencing_number, row.expires_at) for partition, row in found.items()
    }


def resting_state(database: Database, partition: TopicIdPartition) -> tuple[str | None, int] | None:
    """Return which topic has the segments, and the number of the last lease of `partition` if it was released.

    The topic is as the database names it, and the number 0 if there never was a lease. None while somebody may hold it.
    Nobody changed or moved the partition's segments since the same was returned before.
    """
    row = database.first(_RESTING, bound_key(partition))
    if row is None or row.expires_at not in {None, GIVEN_BACK}:
        return None
    return row.metadata_topic, row.fencing_number or 0


def _insert_unheld(connection: Connection, partitions: Sequence[TopicIdPartition], owner: str) -> None:
    unheld = {"owner": owner, "fencing_number": 0, "expires_at": GIVEN_BACK}
    insert_missing(connection, leases, [{**key_values(partition), **unheld} for partition in partitions])


def _write(connection: Connection, changed: Sequence[Lease]) -> None:
    if not changed:
        return
    connection.execute(
        _WRITE_LEASE,
        [
            {
                **bound_key(lease.topic_id_partition),
                "new_owner": lease.owner,
                "new_fencing_number": lease.fencing_number,
                "new_expires_at": lease.expires_at,
            }
            for lease in changed
        ],
    )


def _only(leases_given: GrantedLeases) -> Lease:
    for refused in leases_given.refused:
        raise refused.reason
    return leases_given.granted[0]
