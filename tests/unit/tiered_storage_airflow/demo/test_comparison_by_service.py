"""The demo's reading over HTTP must be able to fail, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from support.remote_logs import NOW, records
from tiered_storage.kafka_log.records.record import Record
from tiered_storage_airflow.demo import comparison as by_service
from tiered_storage_airflow.demo.comparison import compare_by_service
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition


def expected(given: list[Record]) -> ExpectedPartition:
    return ExpectedPartition("orders", 0, 0, lambda: iter(given))


class Service:
    """Answers as the read service does, from `held`."""

    def __init__(self, held: list[Record]) -> None:
        self.held = held
        self.asked: list[Mapping[str, str]] = []

    def __call__(self, path: str, query: Mapping[str, str]) -> bytes:
        from base64 import b64encode

        assert path == "/remote-log/v1/topics/orders/partitions/0/records"
        self.asked.append(query)
        start, moment = int(query.get("offset", 0)), int(query.get("timestamp", 0))
        found = [each for each in self.held if each.offset >= start and each.timestamp >= moment]
        lines = [
            {
                "offset": each.offset,
                "timestamp": each.timestamp,
                "key": None if each.key is None else b64encode(each.key).decode(),
                "value": None if each.value is None else b64encode(each.value).decode(),
                "headers": [[name, b64encode(value or b"").decode()] for name, value in each.headers],
            }
            for each in found[: int(query["max_records"])]
        ]
        return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_equal_records_are_counted_by_offset_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_service, "RECORDS", 10)
    service = Service(records(0, 40))
    assert compare_by_service(service, expected(records(0, 40)), 5) == 20
    assert service.asked == [
        {"offset": "5", "max_records": "10"},
        {"timestamp": str(NOW + 15_000), "max_records": "10"},
    ]


def test_nothing_is_compared_of_an_empty_partition() -> None:
    assert compare_by_service(Service([]), expected([]), 0) == 0


@pytest.mark.parametrize("wrong", [7, 25])
def test_each_difference_is_found(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr(by_service, "RECORDS", 20)
    written = records(0, 40)
    for changed in (
        [*written[:wrong], *written[wrong + 1 :]],
        [replace(each, value=b"another") if each.offset == wrong else each for each in written],
        [replace(each, headers=()) if each.offset == wrong else each for each in written],
    ):
        with pytest.raises(DemoError, match="other records"):
            compare_by_service(Service(changed), expected(written), 0)
