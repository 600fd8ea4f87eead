"""A log whose copied tail a later leader contradicts."""

from __future__ import annotations

from support.remote_logs import BATCH_RECORDS, LOG_CONFIG, NOW, RemoteLogFiles, copy, record, records
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record

CUT = 25
LEADER_EPOCH = 4


def led_by_another(files: RemoteLogFiles) -> None:
    """Let a leader that never had offsets 25 to 29 of orders-0 go on after they were copied, and copy."""
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.truncate_to(CUT)
        log.roll()
        for _ in range(3):
            log.append([_heirs(log.log_end_offset + i) for i in range(BATCH_RECORDS)], leader_epoch=LEADER_EPOCH)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole


def records_after_the_cut() -> list[Record]:
    """Return what the remote log has of orders-0 then."""
    return [*records(0, CUT), *(_heirs(offset) for offset in range(CUT, CUT + 2 * BATCH_RECORDS))]


def _heirs(offset: int) -> Record:
    other = record(offset + 1000)
    return Record(offset, other.timestamp, other.key, other.value, other.headers)
