"""What the clock showed when it was last checked, in a SQL metadata store: one row, once a run checked it.

boot_id, boot_ms   how long the machine had been running then, and since which start
wall_ms            what the clock showed then (ms since the epoch)
trusted_since      since when (by this clock, ms) it was seen to run without a jump
unproven_ms        how much of the time before that may not have passed at all; null: nobody knows
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from tiered_storage.clock import BootTime
from tiered_storage.remote_log.metadata.sql_engine import Database, insert_or_replace
from tiered_storage.remote_log.metadata.sql_schema import clock_reading


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What is recorded of the clock; times are ms, see above."""

    boot_time: BootTime
    wall: int
    trusted_since: int
    unproven_ms: int | None


class SqlClockReading:
    """Reads and writes the row. Both raise MetadataUnavailableError and MetadataCorruptError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> ClockReading | None:
        """Return the reading; None before the first."""
        with self._database.reading() as connection:
            row = connection.execute(select(clock_reading)).one_or_none()
        if row is None:
            return None
        return ClockReading(BootTime(row.boot_id, row.boot_ms), row.wall_ms, row.trusted_since, row.unproven_ms)

    def record(self, reading: ClockReading) -> None:
        """Replace the reading; whoever calls it checked the clock against the earlier one."""
        row = {
            "id": 1,
            "boot_id": reading.boot_time.boot_id,
            "boot_ms": reading.boot_time.ms,
            "wall_ms": reading.wall,
            "trusted_since": reading.trusted_since,
            "unproven_ms": reading.unproven_ms,
        }
        with self._database.writing() as connection:
            insert_or_replace(connection, clock_reading, [row])
