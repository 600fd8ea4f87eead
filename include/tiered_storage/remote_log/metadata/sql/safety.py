"""Stops of deletions, audit results and failed deletions, in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Integer, Row, String, bindparam, delete, select, tuple_, update

from tiered_storage.clock import Clock
from tiered_storage.remote_log.metadata.safety import MOST_SKEW_MS, AuditResult, DeletionFailure, Stop, printable
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import audit_results, deletion_failures, deletion_stop
from tiered_storage.remote_log.metadata.sql.generation import record_decision
from tiered_storage.remote_log.metadata.sql.segment_rows import (
    ROWS_A_STATEMENT,
    bound_key,
    has_bound_key,
    in_batches,
    key_values,
    partition_of,
)
from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.selection import EVERYTHING, Selection

_HAS_ID = has_bound_key(deletion_failures) & (deletion_failures.c.segment_id == bindparam("key_segment_id"))
_COUNT_FAILURE = (
    update(deletion_failures)
    .where(_HAS_ID)
    .values(
        attempts=deletion_failures.c.attempts + 1,
        last_failed_at=bindparam("new_last_failed_at", type_=BigInteger),
        error=bindparam("new_error"),
    )
)
_FORGET_FAILURE = delete(deletion_failures).where(_HAS_ID)
_ORDER = (
    deletion_failures.c.cluster_id,
    deletion_failures.c.topic_id,
    deletion_failures.c.partition,
    deletion_failures.c.segment_id,
)
_FAILURES = select(deletion_failures).order_by(*_ORDER).limit(ROWS_A_STATEMENT)
_FURTHER_FAILURES = _FAILURES.where(
    tuple_(*_ORDER)
    > tuple_(
        bindparam("last_cluster_id", type_=String),
        bindparam("last_topic_id", type_=String),
        bindparam("last_partition", type_=Integer),
        bindparam("last_segment_id", type_=String),
    )
)


class SqlSafety:
    """`Safety` in a SQL database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def stop(self, reason: str, stopped_by: str) -> None:
        """As Safety.stop."""
        row = {
            "id": 1,
            "stopped": True,
            "reason": printable(reason),
            "said_by": printable(stopped_by),
            "said_at": self._clock(),
        }
        self._database.spend_reserve()
        with self._database.writing() as connection:
            insert_or_replace(connection, deletion_stop, [row])
            record_decision(connection, self._database.where)

    def lift(self, lifted_by: str, before: int | None = None) -> None:
        """As Safety.lift."""
        lifted = update(deletion_stop).where(deletion_stop.c.stopped)
        if before is not None:
            lifted = lifted.where(deletion_stop.c.said_at <= before)
        self._database.spend_reserve()
        with self._database.writing() as connection:
            connection.execute(lifted.values(stopped=False, said_by=printable(lifted_by), said_at=self._clock()))
            record_decision(connection, self._database.where)

    def stopped(self) -> Stop | None:
        """As Safety.stopped."""
        with self._database.reading() as connection:
            row = connection.execute(select(deletion_stop).where(deletion_stop.c.stopped)).one_or_none()
        return None if row is None else Stop(row.reason, row.said_by, row.said_at)

    def put_audit_result(self, result: AuditResult) -> None:
        """As Safety.put_audit_result."""
        row = {
            "cluster_id": result.cluster_id,
            "topic_id": result.topic_id,
            "deep": result.deep,
            "audited_at": result.audited_at,
            "anomalies": result.anomalies,
            "message": printable(result.message),
        }
        with self._database.writing() as connection:
            later = select(audit_results).where(
                audit_results.c.cluster_id == result.cluster_id,
                audit_results.c.topic_id == result.topic_id,
                audit_results.c.deep.is_(result.deep),
                audit_results.c.audited_at > result.audited_at,
                # A result from the future came from a clock that was ahead: otherwise nothing could ever replace it.
                audit_results.c.audited_at <= self._clock() + MOST_SKEW_MS,
            )
            if connection.execute(later).first() is None:
                insert_or_replace(connection, audit_results, [row])
                record_decision(connection, self._database.where)

    def audit_results(self, cluster_id: str, topic_id: str) -> Sequence[AuditResult]:
        """As Safety.audit_results."""
        statement = (
            select(audit_results)
            .where(audit_results.c.cluster_id == cluster_id, audit_results.c.topic_id == topic_id)
            .order_by(audit_results.c.deep)
        )
        with self._database.reading() as connection:
            return [
                AuditResult(row.cluster_id, row.topic_id, row.deep, row.audited_at, row.anomalies, row.message)
                for row in connection.execute(statement)
            ]

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:
        """Do as Safety.note_failures. A transaction takes ROWS_A_STATEMENT of them."""
        for batch in in_batches(sorted(errors)):
            new = [_new_failure(segment_id, now) for segment_id in batch]
            counted = [
                {**_bound_id(segment_id), "new_last_failed_at": now, "new_error": printable(errors[segment_id])}
                for segment_id in batch
            ]
            with self._database.writing() as connection:
                insert_missing(connection, deletion_failures, new)
                connection.execute(_COUNT_FAILURE, counted)

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """Do as Safety.forget_failures. A transaction takes ROWS_A_STATEMENT of them."""
        for batch in in_batches(sorted(set(segment_ids))):
            with self._database.writing() as connection:
                connection.execute(_FORGET_FAILURE, [_bound_id(segment_id) for segment_id in batch])

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:
        """Do as Safety.failures. Rows are read ROWS_A_STATEMENT at a time, so changes meanwhile may or may not show."""
        page, values = _FAILURES, dict[str, Any]()
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(page, values).all()
            found = (_failure_of(row) for row in rows)
            yield from (failure for failure in found if _is_selected(failure, selection))
            if len(rows) < ROWS_A_STATEMENT:
                return
            page, values = _FURTHER_FAILURES, _position(rows[-1])


def _new_failure(segment_id: RemoteLogSegmentId, now: int) -> dict[str, Any]:
    partition = segment_id.topic_id_partition
    return {
        **key_values(partition),
        "segment_id": segment_id.id,
        "topic": partition.topic,
        "attempts": 0,
        "first_failed_at": now,
        "last_failed_at": now,
        "error": "",
    }


def _bound_id(segment_id: RemoteLogSegmentId) -> dict[str, Any]:
    return {**bound_key(segment_id.topic_id_partition), "key_segment_id": segment_id.id}


def _position(row: Row[Any]) -> dict[str, Any]:
    return {
        "last_cluster_id": row.cluster_id,
        "last_topic_id": row.topic_id,
        "last_partition": row.partition,
        "last_segment_id": row.segment_id,
    }


def _failure_of(row: Row[Any]) -> DeletionFailure:
    segment_id = RemoteLogSegmentId(partition_of(row), row.segment_id)
    return DeletionFailure(segment_id, row.attempts, row.first_failed_at, row.last_failed_at, row.error)


def _is_selected(failure: DeletionFailure, selection: Selection) -> bool:
    partition = failure.segment_id.topic_id_partition
    return selection.matches(partition.topic, partition.partition)
