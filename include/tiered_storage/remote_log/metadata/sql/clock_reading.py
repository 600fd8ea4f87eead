"""The clock at its last check, in a SQL metadata store: one row, once a run checked it.

boot_id, boot_ms   which start of the machine this was, and how long it had been running
wall_ms            the clock's time (ms since the epoch)
trusted_since      since when (by this clock, ms) it has run without a jump or a restart

Until the first clock reading, the row may hold the newest time that metadata and store know, with an empty boot_id. It
is written before an unchecked clock leaves any time there, so that no clock vouches for itself.
"""

from __future__ import annotations

from sqlalchemy import func, select

from tiered_storage.clock import BootTime
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, RenewedAt
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import clock_reading, deleted_segments, segments


class SqlClockReading:
    """Reads and writes the row. All raise MetadataUnavailableError and MetadataCorruptError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> ClockReading | None:
        """As ClockReadings.read."""
        with self._database.reading() as connection:
            row = connection.execute(select(clock_reading)).one_or_none()
        if row is None:
            return None
        return ClockReading(BootTime(row.boot_id, row.boot_ms), row.wall_ms, row.trusted_since)

    def read_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:
        """As ClockReadings.read_or_newest."""
        return self.read() or self._newest(renewed_at())

    def begin(self, renewed_at: RenewedAt) -> None:
        """As ClockReadings.begin."""
        if self.read() is None and (newest := self._newest(renewed_at())) is not None:
            with self._database.writing() as connection:
                insert_missing(connection, clock_reading, [_row(newest)])

    def _newest(self, renewed_at: int | None) -> ClockReading | None:
        with self._database.reading() as connection:
            found = [
                connection.scalar(select(func.max(table.c.event_timestamp))) for table in (segments, deleted_segments)
            ]
        newest = max((time for time in (*found, renewed_at) if time is not None), default=None)
        return None if newest is None else ClockReading.of_newest_time(newest)

    def record(self, reading: ClockReading) -> None:
        """As ClockReadings.record."""
        with self._database.writing() as connection:
            insert_or_replace(connection, clock_reading, [_row(reading)])


def _row(reading: ClockReading) -> dict[str, object]:
    return {
        "id": 1,
        "boot_id": reading.boot_time.boot_id,
        "boot_ms": reading.boot_time.ms,
        "wall_ms": reading.wall,
        "trusted_since": reading.trusted_since,
    }
