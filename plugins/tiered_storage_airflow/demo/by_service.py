"""Reads records over HTTP, through the read service of the API server, and holds them against the expected ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile, islice
from typing import Any

from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo.errors import DemoError
from tiered_storage_airflow.demo.expectation import ExpectedPartition
from tiered_storage_airflow.links import READ_SERVICE

RECORDS = 500
"""So many records are compared of each partition: its first ones, and those from a time on."""

Ask = Callable[[str, Mapping[str, str]], bytes]
"""Returns what the API server answers at a path with a query."""


def compare_by_service(ask: Ask, expected: ExpectedPartition, start_offset: int) -> int:
    """Read from `start_offset`, where the log begins, and from a time that lies further up; return how many were equal.

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
        told = ", ".join(f"{name} {value}" for name, value in query.items())
        raise DemoError(f"{expected}: from {told} the read service gives other records than were written")
    return len(found)


def _record(line: dict[str, Any]) -> Record:
    headers = tuple((name, _bytes(value)) for name, value in line["headers"])
    return Record(line["offset"], line["timestamp"], _bytes(line["key"]), _bytes(line["value"]), headers)


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
