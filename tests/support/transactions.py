"""Batches of transactions for tests."""

from __future__ import annotations

from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.records.batch_header import BatchHeader, read_batch_header
from tiered_storage.kafka_log.records.control_record import ControlRecordType, EndTransactionMarker, encode_end_marker
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, read_records

TIME = 1_700_000_000_000
ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT


def data(
    offset: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
    *,
    count: int = 1,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = TIME,
    leader_epoch: int = 0,
) -> bytes:
    """A batch of `count` records; without a producer it is an ordinary one."""
    return encode_batch(
        [Record(offset + i, timestamp, b"key", b"value %d" % (offset + i)) for i in range(count)],
        partition_leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
        is_transactional=transactional,
    )


def marker(
    offset: int,
    producer_id: int,
    kind: ControlRecordType = COMMIT,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    timestamp: int = TIME,
) -> bytes:
    """The batch that ends a producer's transaction."""
    end = EndTransactionMarker(kind, coordinator_epoch, timestamp)
    return encode_end_marker(end, offset, producer_id=producer_id, producer_epoch=epoch, partition_leader_epoch=0)


def split(batches: bytes) -> list[tuple[BatchHeader, list[Record]]]:
    """The batches in `batches`, which are contiguous: header and records."""
    found = []
    rest = memoryview(batches)
    while rest:
        header = read_batch_header(rest)
        found.append((header, read_records(rest[: header.size])))
        rest = rest[header.size :]
    return found


def next_offset(batches: bytes) -> int:
    """The offset after the last of `batches`, by their headers alone."""
    position = 0
    while position < len(batches):
        header = read_batch_header(batches, position)
        position += header.size
    return header.next_offset


def committed_offsets(batches: bytes, aborted: tuple[AbortedTxn, ...], start_offset: int) -> list[int]:
    """The offsets that a read_committed consumer makes of a fetch from `start_offset`: Kafka's clients do it so."""
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset)
    skipped: set[int] = set()
    offsets = []
    for header, records in split(batches):
        while waiting and waiting[0].first_offset <= header.last_offset:
            skipped.add(waiting.pop(0).producer_id)
        if header.is_control:
            if records and records[0].key is not None and records[0].key[3] == ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            offsets += [record.offset for record in records if record.offset >= start_offset]
    return offsets
