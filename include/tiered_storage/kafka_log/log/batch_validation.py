"""The checks on a producer's batch before a log appends it.

    whole      one batch of magic 2, its size that of its bytes, its checksum right, its codec known
    header     as many records as offsets, one at least; not a control batch, no delete horizon, and stamped by the
               producer's clock; a producer id comes with an epoch and a sequence number, a transaction with a producer
    records    decompress and decode to the last byte, and their offset deltas are 0, 1, 2, ...
    times      each timestamp lies within two limits around the log's clock, unless the log stamps the batch

A wrong largest timestamp in the header is corrected, not refused, as by a broker.

A broker is stricter in one point: a batch must have base offset 0. It also accepts:

    - a delete horizon
    - a batch stamped with append time, as one with create time, if the broker's clock does not stamp it
    - gaps or repeats in offset deltas, if there is no codec
    - a wrong checksum of an lz4 frame
    - ids below -1, as none; an id without an epoch; a transaction without an id

Source: LogValidator and UnifiedLog of released Kafka 4.x; KIP-32, KIP-937 (limits of timestamps), KIP-1030 (their
defaults).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidTimestampError,
    UnsupportedMagicError,
)
from tiered_storage.kafka_log.kernels.constants import INT16_MAX, MAGIC
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.batch_header import (
    LEGACY_MAGICS,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    check_crc,
    read_batch_header,
)
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import INT64_MAX
from tiered_storage.kafka_log.records.record_batch import read_records

SOURCE = "<batch>"
"""The name that errors give in place of a file."""
FEW_RECORDS = 32
"""Up to this many records, decoding one by one is faster than starting the kernels."""


@dataclass(frozen=True, slots=True)
class RecordTimes:
    """Timestamps of a batch's records (ms): the earliest of those that have one, and the latest, -1 without any."""

    earliest: int | None
    latest: int

    @classmethod
    def of(cls, chunks: Iterable[NDArray[np.int64]]) -> RecordTimes:
        """Return the times of all `chunks` of timestamps together."""
        earliest: int | None = None
        latest = NO_TIMESTAMP
        for chunk in chunks:
            timed = chunk[chunk != NO_TIMESTAMP]
            if timed.size:
                least = int(timed.min())
                earliest = least if earliest is None else min(earliest, least)
                latest = max(latest, int(timed.max()))
        return cls(earliest, latest)


def read_produced_batch(batch: bytes) -> BatchHeader:
    """Return the header of one encoded batch if a producer may send it, as far as the header shows.

    Raises UnsupportedMagicError for magic 0 and 1, CorruptRecordError if it is incomplete, and as
    `check_produced_header` does.
    """
    header = read_batch_header(batch, source=SOURCE)
    if header.magic in LEGACY_MAGICS:
        raise UnsupportedMagicError(SOURCE, 0, f"the batch has magic {header.magic}; logs take magic {MAGIC} only")
    if header.size != len(batch):
        raise CorruptRecordError(SOURCE, 0, f"the batch has {header.size} bytes, but {len(batch)} are given")
    check_crc(batch, source=SOURCE)
    check_produced_header(header)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise ConfigurationError("the batch is stamped with append time: only the log itself does that")
    return header


def check_produced_header(header: BatchHeader) -> None:
    """Raise ConfigurationError if no producer may send a batch with `header`, whoever stamps it."""
    offsets = header.last_offset_delta + 1
    if header.record_count != offsets:
        raise ConfigurationError(f"the batch has {header.record_count} records for {offsets} offsets: these have gaps")
    if header.is_control:
        raise ConfigurationError("the batch is a control batch: only the log itself writes those")
    if header.has_delete_horizon:
        raise ConfigurationError("the batch has a delete horizon: only compaction sets one")
    if header.producer_id < NO_PRODUCER_ID:
        raise ConfigurationError(
            f"the batch has producer id {header.producer_id}: give 0 or more, or -1 for no producer"
        )
    if header.has_producer and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ConfigurationError(f"the batch of producer id {header.producer_id} has no epoch or no sequence number")
    if header.is_transactional and not header.has_producer:
        raise ConfigurationError("the batch is transactional, but has no producer id")


def check_marker(kind: ControlRecordType, producer_id: int, producer_epoch: int) -> None:
    """Raise ConfigurationError if no coordinator may end a transaction with this marker."""
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise ConfigurationError(f"an end marker of kind {kind.name}: a transaction ends with ABORT or COMMIT")
    if not (0 <= producer_id <= INT64_MAX and 0 <= producer_epoch <= INT16_MAX):
        raise ConfigurationError(f"an end marker of producer id {producer_id}, epoch {producer_epoch}: both begin at 0")


def read_record_times(batch: bytes, header: BatchHeader, *, few_records: int = FEW_RECORDS) -> RecordTimes:
    """Decode every record of `batch`, which has as many as offsets, and return their earliest and latest timestamps.

    Up to `few_records` of them are decoded without the kernels, with the same result. Its checksum is not verified
    again. Raises CorruptRecordError if a record cannot be read or an offset delta is not the next one.
    """
    if header.record_count > few_records:
        return RecordTimes.of(_decoded_times(batch, header))
    records = read_records(batch, source=SOURCE, verify_crc=False)
    return RecordTimes.of([np.array([record.timestamp for record in records], np.int64)])


def check_timestamps(times: RecordTimes, now: int, config: LogConfig, partition: str) -> None:
    """Raise InvalidTimestampError, naming `partition`, if `times` are too far from `now` (ms) for `config`."""
    if times.earliest is None:
        return
    first, last = now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms
    for timestamp in (times.earliest, times.latest):
        if not first <= timestamp <= last:
            raise InvalidTimestampError(
                f"{partition}: a record has timestamp {timestamp}; message_timestamp_before_max_ms and "
                f"message_timestamp_after_max_ms allow {first} to {last}: set the producer's clock, raise the limit, "
                "or let the log stamp its records"
            )


def _decoded_times(batch: bytes, header: BatchHeader) -> Iterator[NDArray[np.int64]]:
    """Yield the timestamps of the records a chunk at a time, however many a small batch unpacks to."""
    # Arrow and the kernels take most of a second to import.
    from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder  # noqa: PLC0415
    from tiered_storage.kafka_log.records.segment_scan import SegmentScanner  # noqa: PLC0415

    window = memoryview(batch)
    table, _ = SegmentScanner(SOURCE, header.base_offset, verify_crc=False).feed(window)
    decoder = ColumnDecoder(SOURCE, ["timestamp"], checks=Checks(crc=False))
    for chunk in decoder.decode(window, table):
        yield chunk.column(0).cast("int64").to_numpy()
