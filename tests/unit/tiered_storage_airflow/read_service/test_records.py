from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from httpx import Response

from support.read_service_site import ReadServiceSite
from support.remote_logs import NOW, flip_bit, record
from tiered_storage.kafka_log.record_batch import read_records

RECORDS = "/topics/orders/partitions/0/records"


def lines(answer: Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_records_are_given_as_json_lines_from_both_tiers(site: ReadServiceSite) -> None:
    answer = site.get(RECORDS)
    assert answer.headers["content-type"] == "application/x-ndjson"
    found = lines(answer)
    assert [each["offset"] for each in found] == list(range(35))
    seventh = found[7]
    assert seventh["timestamp"] == NOW + 7000
    assert base64.b64decode(seventh["value"]) == record(7).value
    assert base64.b64decode(seventh["key"]) == b"key"
    assert seventh["headers"] == [["trace", base64.b64encode(b"1").decode()]]
    assert (answer.headers["log-start-offset"], answer.headers["log-end-offset"]) == ("0", "35")


@pytest.mark.parametrize(("offset", "count"), [(0, 3), (7, 5), (28, 4), (33, 2), (34, 1)])
def test_they_begin_with_the_offset_and_stop_where_they_are_told_to(
    site: ReadServiceSite, offset: int, count: int
) -> None:
    found = lines(site.get(RECORDS, params={"offset": offset, "max_records": count}))
    assert [each["offset"] for each in found] == list(range(offset, offset + count))


def test_at_the_end_there_is_nothing_and_behind_it_is_out_of_range(site: ReadServiceSite) -> None:
    assert lines(site.get(RECORDS, params={"offset": 35})) == []
    answer = site.get(RECORDS, params={"offset": 36})
    assert answer.status_code == 416
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert (told["title"], told["log_start_offset"], told["log_end_offset"]) == ("OffsetOutOfRange", 0, 35)
    assert told["retriable"] is False


def test_records_are_given_as_an_arrow_stream(site: ReadServiceSite) -> None:
    answer = site.get(RECORDS, params={"offset": 8, "max_records": 20, "format": "arrow"})
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column("offset").to_pylist() == list(range(8, 28))
    assert table.column("value").to_pylist() == [record(offset).value for offset in range(8, 28)]
    empty = site.get(RECORDS, params={"offset": 35, "format": "arrow"})
    assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0


def test_records_are_given_as_kafkas_own_batches(site: ReadServiceSite) -> None:
    answer = site.get(RECORDS, params={"offset": 7, "format": "batches"})
    position, offsets = 0, []
    while position < len(answer.content):
        size = 12 + int.from_bytes(answer.content[position + 8 : position + 12], "big")
        offsets += [each.offset for each in read_records(answer.content[position : position + size])]
        position += size
    assert offsets == list(range(5, 35))


def test_one_batch_comes_however_few_bytes_are_asked_for(site: ReadServiceSite) -> None:
    answer = site.get(RECORDS, params={"offset": 7, "format": "batches", "max_bytes": 1})
    assert [each.offset for each in read_records(answer.content)] == list(range(5, 10))


@pytest.mark.parametrize(
    "params",
    [
        {"offset": -1},
        {"offset": 2**63},
        {"offset": "ten"},
        {"offset": "1e3"},
        {"max_records": 0},
        {"max_records": 10**9},
        {"max_bytes": 0},
        {"max_bytes": 2**62},
        {"format": "xml"},
    ],
)
def test_limits_and_offsets_that_cannot_be_meant_are_refused_and_named(
    site: ReadServiceSite, params: dict[str, Any]
) -> None:
    answer = site.get(RECORDS, params=params)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert next(iter(params)) in answer.json()["detail"]


def test_the_largest_offset_is_out_of_range(site: ReadServiceSite) -> None:
    assert site.get(RECORDS, params={"offset": 2**63 - 1}).status_code == 416


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_corrupt_chunk_is_an_error_of_its_own_and_no_end(own_site: ReadServiceSite, form: str) -> None:
    flip_bit(own_site.files.objects(".log")[0], 150)
    answer = own_site.get(RECORDS, params={"format": form, "offset": 0})
    assert answer.status_code == 502
    told = answer.json()
    assert told["title"] == "RemoteObjectCorrupt"
    assert "at byte 0" in told["detail"]
    assert "Traceback" not in answer.text


def test_a_corrupt_index_is_an_error_that_names_it(own_site: ReadServiceSite) -> None:
    bundle = own_site.files.objects(".indexes")[0]
    bundle.write_bytes(bytes(bundle.stat().st_size))
    answer = own_site.get(RECORDS, params={"offset": 0, "max_records": 1})
    assert answer.status_code == 502
    assert bundle.name in answer.json()["detail"]
    # What lies behind it can still be read.
    assert [each["offset"] for each in lines(own_site.get(RECORDS, params={"offset": 10, "max_records": 1}))] == [10]
