"""Reads every offset of a partition through both tiers and holds each record against the expected one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile

from tiered_storage.errors import OffsetOutOfRangeError
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.reader import PartitionReader
from tiered_storage_airflow.demo.errors import DemoError
from tiered_storage_airflow.demo.expectation import ExpectedPartition


@dataclass(frozen=True, slots=True)
class Compared:
    """How many records of a partition were equal, from which offset on."""

    start_offset: int
    records: int


def compare(remote_log: RemoteLogManager, expected: ExpectedPartition, start_offset: int) -> Compared:
    """Read `expected` from `start_offset`, where it must begin, to its end and compare every record.

    Nothing may be missing or too much. Also asks for the offset before, which must be refused. Raises DemoError at the
    first difference.
    """
    partition = remote_log.find_partition(expected.topic, expected.partition)
    reader = remote_log.reader.open(partition)
    if reader.log_start_offset != start_offset:
        raise DemoError(f"{expected}: its log begins at offset {reader.log_start_offset}, not at {start_offset}")
    wanted = dropwhile(lambda record: record.offset < start_offset, expected.records())
    found = reader.records(start_offset)
    count = sum(_same(expected, one, other) for one, other in _pairs(wanted, found))
    if start_offset > 0:
        _expect_refusal(reader, start_offset - 1)
    return Compared(start_offset, count)


def _expect_refusal(reader: PartitionReader, offset: int) -> None:
    try:
        next(reader.records(offset), None)
    except OffsetOutOfRangeError:
        return
    raise DemoError(f"{reader.partition}: offset {offset} lies below the log start and was served all the same")


def _pairs(wanted: Iterator[Record], found: Iterator[Record]) -> Iterator[tuple[Record | None, Record | None]]:
    while True:
        one, other = next(wanted, None), next(found, None)
        if one is None and other is None:
            return
        yield one, other


def _same(expected: ExpectedPartition, wanted: Record | None, found: Record | None) -> bool:
    if wanted != found:
        raise DemoError(f"{expected}: written was {_shown(wanted)}, read was {_shown(found)}")
    return True


def _shown(record: Record | None) -> str:
    if record is None:
        return "nothing"
    return (
        f"offset {record.offset} at {record.timestamp} ms, key {record.key!r:.40}, "
        f"value {record.value!r:.60}, {len(record.headers)} headers"
    )
