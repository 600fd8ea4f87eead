"""Appends to a log for as long as it lives: python -m crashes.log_writer LOG_DIRECTORY SEED.

Says `from N` when the log is open, and `flushed N` for each offset up to which all is on the disk. What a record holds
follows from its offset, so that whoever reads it can tell whether it is the right one.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.kafka_log.records.record import Record

TOPIC = "orders"
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200)
_NOBODY, _IDEMPOTENT = -1, 1
_PRODUCERS = (_NOBODY, _IDEMPOTENT, 2, 3)


def key_at(offset: int) -> bytes:
    return b"key %d" % offset


def value_at(offset: int) -> bytes:
    return b"%d" % offset * (1 + offset % 37)


def main() -> None:
    root, seed = Path(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(seed)  # noqa: S311 -- data, no secret
    log = LogDirectoryWriter.open(root, CONFIG).log(TOPIC, 0)
    sequences = {producer.producer_id: max(producer.last_sequence + 1, 0) for producer in log.producers}
    _say(f"from {log.log_end_offset}")
    while True:
        first, count = log.log_end_offset, chance.randrange(1, 6)
        now = time.time_ns() // 1_000_000
        records = [Record(i, now, key_at(first + i), value_at(first + i)) for i in range(count)]
        producer_id, codec = chance.choice(_PRODUCERS), Compression(chance.randrange(5))
        if producer_id == _NOBODY:
            log.append(records, codec)
        else:
            sequence = sequences.get(producer_id, 0)
            log.append(
                records,
                codec,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=producer_id > _IDEMPOTENT,
            )
            sequences[producer_id] = sequence + count
            if producer_id > _IDEMPOTENT and chance.random() < 0.5:
                kind = chance.choice((ControlRecordType.ABORT, ControlRecordType.COMMIT))
                log.append_end_marker(producer_id, 0, kind)
        if chance.random() < 0.1:
            log.flush()
            _say(f"flushed {log.log_end_offset}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
