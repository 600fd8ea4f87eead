"""Reads every offset of a partition through both tiers and compares each record with the expected one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import dropwhile, islice
from typing import Any

from tiered_storage.errors import OffsetOutOfRangeError
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition
from tiered_storage_airflow.links import READ_SERVICE


@dataclass(frozen=True, slots=True)
class Compared:
    """How many records of a partition were equal, from which offset on."""

    start_offset: int
    records: int


def compare(remote_log: RemoteLogManager, expected: ExpectedPartition, start_offset: int) -> Compared:
    """Read `expected` from `start_offset`, where it must begin, to its end and compare every record.

    No record may be missing or extra. Also reads the offset before `start_offset`, which must be refused. Raises
    DemoError at the first difference.
    """
    partition = remote_log.find_partition(expected.topic, expected.partition)
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        snapshot = reader.snapshot(partition)
        if snapshot.log_start_offset != start_offset:
            raise DemoError(f"{expected}: its log begins at offset {snapshot.log_start_offset}, not at {start_offset}")
        wanted = dropwhile(lambda record: record.offset < start_offset, expected.records())
        stable_end = snapshot.end_offset(Isolation.READ_COMMITTED)
        found = reader.records(partition, start_offset, end_offset=stable_end)
        count = sum(_same(expected, one, other) for one, other in _pairs(wanted, found))
        if start_offset > 0:
            _expect_refusal(reader, partition, start_offset - 1)
    return Compared(start_offset, count)


def _expect_refusal(reader: BlockingLogReader, partition: TopicIdPartition, offset: int) -> None:
    try:
        next(reader.records(partition, offset), None)
    except OffsetOutOfRangeError:
        return
    raise DemoError(f"{partition}: offset {offset} is below the log start, but the read succeeded")


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


RECORDS = 500
"""How many records of each partition are compared: its first ones, and those from a time on."""

Ask = Callable[[str, Mapping[str, str]], bytes]
"""Returns what the API server answers at a path with a query."""


def compare_by_service(ask: Ask, expected: ExpectedPartition, start_offset: int) -> int:
    """Read from `start_offset`, where the log begins, and from a later time; return how many records were equal.

    Raises DemoError at the first difference.
    """

    def wanted() -> Iterator[Record]:
        return dropwhile(lambda record: record.offset < start_offset, expected.records())

    first = list(islice(wanted(), RECORDS + 1))
    if not first:
        return 0
    compared = _compare(ask, expected, {"offset": str(start_offset)}, first[:RECORDS])
    moment = first[-1].timestamp
    if moment < 0:
        return compared
    found = next(record.offset for record in wanted() if record.timestamp >= moment)
    from_there = list(islice(dropwhile(lambda record: record.offset < found, wanted()), RECORDS))
    return compared + _compare(ask, expected, {"timestamp": str(moment)}, from_there)


def _compare(ask: Ask, expected: ExpectedPartition, query: Mapping[str, str], wanted: list[Record]) -> int:
    path = f"{READ_SERVICE}/topics/{expected.topic}/partitions/{expected.partition}/records"
    lines = ask(path, {**query, "max_records": str(len(wanted))}).splitlines()
    found = [_record(json.loads(line)) for line in lines]
    if found != wanted:
        asked = ", ".join(f"{name} {value}" for name, value in query.items())
        raise DemoError(f"{expected}: from {asked} the read service gives other records than were written")
    return len(found)


def _record(line: dict[str, Any]) -> Record:
    headers = tuple((name, _bytes(value)) for name, value in line["headers"])
    return Record(line["offset"], line["timestamp"], _bytes(line["key"]), _bytes(line["value"]), headers)


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
