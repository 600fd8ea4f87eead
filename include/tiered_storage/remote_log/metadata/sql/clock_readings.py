"""The clock of each machine at its last check, in a SQL metadata store: a row for each start of a machine.

boot_id, boot_ms   which start of which machine this was, and how long it had been running
wall_ms            the clock's time (ms since the epoch)
trusted_since      since when (by this clock, ms) it has run without a jump or a restart

Until the first clock reading, a row may hold the newest time that metadata and store know, with an empty boot_id. It
is written before an unchecked clock leaves any time there, so that no clock vouches for itself.
"""

from __future__ import annotations

from sqlalchemy import Row, func, select

from tiered_storage.clock import BootTime
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, RenewedAt
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import clock_readings, deleted_segments, segments

READINGS_KEPT_MS = 30 * 86_400_000
"""How long (ms) the reading of a start is kept after newer ones; its machine then passes for restarted."""


class SqlClockReadings:
    """Reads and writes the rows. All raise MetadataUnavailableError and MetadataCorruptError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, boot_id: str) -> ClockReading | None:
        """As ClockReadings.read."""
        with self._database.reading() as connection:
            row = connection.execute(select(clock_readings).where(clock_readings.c.boot_id == boot_id)).one_or_none()
        return _reading(row)

    def latest(self) -> ClockReading | None:
        """As ClockReadings.latest."""
        with self._database.reading() as connection:
            row = connection.execute(select(clock_readings).order_by(clock_readings.c.wall_ms.desc())).first()
        return _reading(row)

    def latest_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:
        """As ClockReadings.latest_or_newest."""
        return self.latest() or self._newest(renewed_at())

    def begin(self, renewed_at: RenewedAt) -> None:
        """As ClockReadings.begin."""
        if self.latest() is None and (newest := self._newest(renewed_at())) is not None:
            with self._database.writing() as connection:
                insert_missing(connection, clock_readings, [_row(newest)])

    def _newest(self, renewed_at: int | None) -> ClockReading | None:
        with self._database.reading() as connection:
            found = [
                connection.scalar(select(func.max(table.c.event_timestamp))) for table in (segments, deleted_segments)
            ]
        newest = max((time for time in (*found, renewed_at) if time is not None), default=None)
        return None if newest is None else ClockReading.of_newest_time(newest)

    def record(self, reading: ClockReading) -> None:
        """As ClockReadings.record."""
        is_superseded = (clock_readings.c.boot_id == "") | (clock_readings.c.wall_ms < reading.wall - READINGS_KEPT_MS)
        with self._database.writing() as connection:
            connection.execute(clock_readings.delete().where(is_superseded))
            insert_or_replace(connection, clock_readings, [_row(reading)])

    def forget_later_than(self, wall: int) -> None:
        """As ClockReadings.forget_later_than."""
        with self._database.writing() as connection:
            connection.execute(clock_readings.delete().where(clock_readings.c.wall_ms > wall))


def _reading(row: Row[tuple[object, ...]] | None) -> ClockReading | None:
    return None if row is None else ClockReading(BootTime(row.boot_id, row.boot_ms), row.wall_ms, row.trusted_since)


def _row(reading: ClockReading) -> dict[str, object]:
    return {
        "boot_id": reading.boot_time.boot_id,
        "boot_ms": reading.boot_time.ms,
        "wall_ms": reading.wall,
        "trusted_since": reading.trusted_since,
    }
