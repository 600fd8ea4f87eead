"""The indexes of a segment that a broker continued after a clean stop: they depend on the time of the stop.

A broker that stops closes the time index of its active segment, and one that starts begins to count the bytes up to the
next entry again. A log that is fed without a stop has other entries there, as right as the broker's.

Source: LogSegment of released Kafka, `append` and `close`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tiered_storage.kafka_log.records.batch_header import BatchHeader

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class RestartedIndexes:
    """A segment's offset index and time index, of a broker that was stopped before each new leader epoch in it."""

    def __init__(self, base_offset: int, interval_bytes: int, headers: Iterable[BatchHeader]) -> None:
        """Take the batches of the segment in their order, and close the time index after the last one."""
        self.offset_index = self.time_index = b""
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._position = self._since_entry = 0
        self._latest = (-1, 0)
        self._indexed_timestamp = -1
        epoch: int | None = None
        for header in headers:
            if epoch not in (None, header.partition_leader_epoch):
                self._restart()
            epoch = header.partition_leader_epoch
            self._append(header)
        self._add_time()

    def _restart(self) -> None:
        self._add_time()
        self._since_entry = 0

    def _append(self, header: BatchHeader) -> None:
        last = header.last_offset - self._base_offset
        if header.max_timestamp > self._latest[0]:
            self._latest = header.max_timestamp, last
        if self._since_entry > self._interval_bytes:
            self.offset_index += _OFFSET_ENTRY.pack(last, self._position)
            self._add_time()
            self._since_entry = 0
        self._since_entry += header.size
        self._position += header.size

    def _add_time(self) -> None:
        if self._latest[0] > self._indexed_timestamp:
            self.time_index += _TIME_ENTRY.pack(*self._latest)
            self._indexed_timestamp = self._latest[0]
