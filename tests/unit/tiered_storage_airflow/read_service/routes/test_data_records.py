from __future__ import annotations

import base64
import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from httpx import Response

from support.read_service_site import ReadServiceSite
from support.remote_logs import BATCH_BYTES, NOW, ORDERS_0, flip_bit, held_by, record, unsynced
from support.transactions import ABORT, data, marker
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.read_values import Isolation

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


def test_leader_epochs_are_compared_as_a_broker_does(own_site: ReadServiceSite) -> None:
    def led_again(log: RemoteLogManager) -> None:
        log.context.segments.put_lineage(ORDERS_0, (EpochEntry(0, 0), EpochEntry(3, 35)), held_by(log, "test"))

    def ask(**asked: int) -> tuple[int, dict[str, Any]]:
        answer = own_site.get(RECORDS, params={"offset": 35, **asked})
        return answer.status_code, {} if answer.status_code == 200 else answer.json()

    own_site.changed(led_again)
    assert ask(current_leader_epoch=3, last_fetched_epoch=0) == (200, {})
    status, problem = ask(current_leader_epoch=0)
    assert (status, problem["title"], problem["leader_epoch"], problem["retriable"]) == (
        409,
        "FencedLeaderEpoch",
        3,
        False,
    )
    status, problem = ask(current_leader_epoch=4)
    assert (status, problem["title"], problem["leader_epoch"], problem["retriable"]) == (
        503,
        "UnknownLeaderEpoch",
        3,
        True,
    )
    status, problem = ask(last_fetched_epoch=2)
    assert (status, problem["title"]) == (409, "DivergingEpoch")
    assert (problem["diverging_epoch"], problem["end_offset"], problem["leader_epoch"]) == (0, 35, 3)


@pytest.mark.parametrize(
    "asked",
    [
        "last_fetched_epoch=0",
        "timestamp=1&last_fetched_epoch=0",
        "current_leader_epoch=-1",
        "current_leader_epoch=2147483648",
        "offset=1&last_fetched_epoch=x",
    ],
)
def test_epochs_that_cannot_be_meant_are_refused(site: ReadServiceSite, asked: str) -> None:
    answer = site.get(f"{RECORDS}?{asked}")
    assert answer.status_code == 422
    assert "_epoch" in answer.json()["detail"]


@pytest.mark.parametrize(("offset", "count"), [(0, 3), (7, 5), (28, 4), (33, 2), (34, 1)])
def test_records_begin_at_the_offset_and_stop_at_the_limits(site: ReadServiceSite, offset: int, count: int) -> None:
    found = lines(site.get(RECORDS, params={"offset": offset, "max_records": count}))
    assert [each["offset"] for each in found] == list(range(offset, offset + count))


def test_at_the_end_there_is_nothing_and_after_it_is_out_of_range(site: ReadServiceSite) -> None:
    assert lines(site.get(RECORDS, params={"offset": 35})) == []
    answer = site.get(RECORDS, params={"offset": 36})
    assert answer.status_code == 416
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["title"], problem["log_start_offset"], problem["log_end_offset"]) == ("OffsetOutOfRange", 0, 35)
    assert problem["retriable"] is False


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
    assert offsets_in(answer.content) == list(range(5, 35))


def test_one_batch_comes_however_few_bytes_are_asked_for(site: ReadServiceSite) -> None:
    answer = site.get(RECORDS, params={"offset": 7, "format": "batches", "max_bytes": 1})
    assert [each.offset for each in read_records(answer.content)] == list(range(5, 10))


def offsets_in(content: bytes) -> list[int]:
    """Return the offsets of whole batches, markers too."""
    position, offsets = 0, []
    while position < len(content):
        size = 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        offsets += [each.offset for each in read_records(content[position : position + size])]
        position += size
    return offsets


@pytest.fixture
def with_transactions(own_site: ReadServiceSite) -> ReadServiceSite:
    """An aborted transaction at 35 to 37 and its marker, a committed one at 39 and 40 and its marker, an open one."""
    batches = [
        data(35, 7, 0, count=3, transactional=True), marker(38, 7, ABORT),
        data(39, 8, 0, count=2, transactional=True), marker(41, 8), data(42, 9, 0, transactional=True),
    ]  # fmt: skip
    with unsynced(), LogDirectoryWriter.open(own_site.files.log_directory, LogConfig(), clock=lambda: NOW) as writer:
        writer.log("orders", 0).append_as_follower(b"".join(batches))
    return own_site


@pytest.mark.parametrize("max_bytes", [1, 100, 1 << 20])
def test_at_read_committed_no_form_has_records_of_aborted_transactions(
    with_transactions: ReadServiceSite, max_bytes: int
) -> None:
    asked = {"offset": 35, "isolation": "read_committed", "max_bytes": max_bytes}
    assert [each["offset"] for each in lines(with_transactions.get(RECORDS, params=asked))] == [39, 40]
    raw = with_transactions.get(RECORDS, params={**asked, "format": "batches"})
    found = offsets_in(raw.content)
    assert [offset for offset in found if offset not in {38, 41}] == [39, 40]
    uncommitted = with_transactions.get(RECORDS, params={"offset": 35, "format": "batches"})
    assert offsets_in(uncommitted.content) == list(range(35, 43))


@pytest.mark.parametrize("form", ["json", "arrow", "batches"])
def test_after_what_is_committed_there_is_nothing_yet_and_that_is_not_out_of_range(
    with_transactions: ReadServiceSite, form: str
) -> None:
    for offset in (42, 43):
        asked = {"offset": offset, "isolation": "read_committed", "format": form}
        answer = with_transactions.get(RECORDS, params=asked)
        assert (answer.status_code, answer.headers["log-end-offset"]) == (200, "42")
        assert form == "arrow" or not answer.content
    assert with_transactions.get(RECORDS, params={"offset": 44, "isolation": "read_committed"}).status_code == 416


def test_the_end_at_read_committed_is_where_the_first_undecided_transaction_begins(
    own_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that ends where nobody sees it: the reader knows that, and the snapshot alone does not."""
    from tiered_storage.remote_log.read.aborted_transactions import AbortedTransactionSearch
    from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot

    async def decided(_: object, snapshot: PartitionSnapshot, isolation: Isolation, __: object) -> PartitionSnapshot:
        return replace(snapshot, undecided_from=22) if isolation is Isolation.READ_COMMITTED else snapshot

    monkeypatch.setattr(AbortedTransactionSearch, "decided", decided)
    asked: dict[str, Any] = {"isolation": "read_committed"}
    answer = own_site.get(RECORDS, params=asked)
    assert answer.headers["log-end-offset"] == "22"
    assert [each["offset"] for each in lines(answer)] == list(range(22))
    assert lines(own_site.get(RECORDS, params={**asked, "offset": 25})) == []
    assert lines(own_site.get(RECORDS, params={**asked, "timestamp": NOW + 30_000})) == []


@pytest.mark.parametrize("form", ["json", "batches"])
def test_about_so_many_bytes_are_whole_batches(site: ReadServiceSite, form: str) -> None:
    asked = {"offset": 0, "max_bytes": 3 * BATCH_BYTES + 1, "format": form}
    answer = site.get(RECORDS, params=asked)
    found = offsets_in(answer.content) if form == "batches" else [each["offset"] for each in lines(answer)]
    assert found == list(range(15))


def test_a_large_batch_without_room_is_a_retriable_error(
    own_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage_airflow.read_service import admission, record_forms

    monkeypatch.setattr(record_forms, "USUAL_BYTES", 10)
    monkeypatch.setattr(admission, "SECONDS_FOR_ROOM", 0.05)

    async def take(count: int) -> None:
        opened = await own_site.service.opened()
        for _ in range(count):
            await opened.places.large.acquire()

    assert len(lines(own_site.get(RECORDS))) == 35
    own_site.client.portal.call(take, admission.MOST_LARGE)  # type: ignore[union-attr]
    answer = own_site.get(RECORDS)
    assert (answer.status_code, answer.json()["title"], answer.headers["retry-after"]) == (429, "Busy", "5")


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


def test_records_appended_a_moment_ago_are_in_range(own_site: ReadServiceSite) -> None:
    assert lines(own_site.get(RECORDS, params={"offset": 35})) == []
    own_site.files.append(1)
    assert [each["offset"] for each in lines(own_site.get(RECORDS, params={"offset": 38}))] == [38, 39]


def test_by_time_what_came_a_moment_ago_is_not_out_of_range(
    ageless_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage_airflow.read_service.tiers import Tiers

    find = Tiers.first_at

    async def then_found(*asked: Any) -> int:
        ageless_site.files.append(1)
        return await find(*asked)

    monkeypatch.setattr(Tiers, "first_at", then_found)
    answer = ageless_site.get(RECORDS, params={"timestamp": NOW + 38_000})
    assert [each["offset"] for each in lines(answer)] == [38, 39]
    assert answer.headers["log-end-offset"] == "40"


@pytest.mark.parametrize("offset", [30, 33])
def test_a_directory_locked_between_check_and_read_is_not_out_of_range(
    ageless_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
    from tiered_storage_airflow.read_service.tiers import Tiers

    read = Tiers.batches
    with ExitStack() as held:

        def then_read(*asked: Any) -> Any:
            held.enter_context(DirectoryLock.acquire(ageless_site.files.log_directory))
            return read(*asked)

        monkeypatch.setattr(Tiers, "batches", then_read)
        answer = ageless_site.get(RECORDS, params={"offset": offset})
    assert (answer.status_code, answer.json()["title"]) == (503, "LogDirectoryLocked")


def test_the_largest_offset_is_out_of_range(site: ReadServiceSite) -> None:
    assert site.get(RECORDS, params={"offset": 2**63 - 1}).status_code == 416


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_a_corrupt_chunk_is_an_error_of_its_own_and_no_end(own_site: ReadServiceSite, form: str) -> None:
    flip_bit(own_site.files.objects(".log")[0], 150)
    answer = own_site.get(RECORDS, params={"format": form, "offset": 0})
    assert answer.status_code == 502
    problem = answer.json()
    assert problem["title"] == "RemoteObjectCorrupt"
    assert "at byte 0" in problem["detail"]
    assert "Traceback" not in answer.text


def test_a_corrupt_index_is_an_error_that_names_it(own_site: ReadServiceSite) -> None:
    bundle = own_site.files.objects(".indexes")[0]
    bundle.write_bytes(bytes(bundle.stat().st_size))
    answer = own_site.get(RECORDS, params={"offset": 0, "max_records": 1})
    assert answer.status_code == 502
    assert bundle.name in answer.json()["detail"]
    # Later offsets can still be read.
    assert [each["offset"] for each in lines(own_site.get(RECORDS, params={"offset": 10, "max_records": 1}))] == [10]


def test_a_large_batch_goes_out_in_small_pieces_and_one_too_large_is_refused(own_site: ReadServiceSite) -> None:
    from tiered_storage.kafka_log.records.compression import Compression
    from tiered_storage.kafka_log.records.record import Record
    from tiered_storage_airflow.read_service import record_forms

    config = LogConfig(segment_bytes=200 << 20, max_message_bytes=100 << 20)
    with unsynced(), LogDirectoryWriter.open(own_site.files.log_directory, config, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.append([Record(0, NOW, None, bytes(1 << 20), ()) for _ in range(8)], Compression.ZSTD)
        log.append([Record(0, NOW, None, bytes(1 << 20), ()) for _ in range(70)], Compression.ZSTD)
    sizes: list[int] = []
    encode = record_forms.json_lines

    def measured(batch: pa.RecordBatch) -> bytes:
        piece = encode(batch)
        sizes.append(len(piece))
        return piece

    with mock.patch.object(record_forms, "json_lines", measured):
        found = lines(own_site.get(RECORDS, params={"offset": 30, "max_records": 13, "max_bytes": 1 << 30}))
    assert [each["offset"] for each in found] == list(range(30, 43))
    assert max(sizes) < 2 << 20
    bomb = own_site.get(RECORDS, params={"offset": 43, "max_bytes": 1 << 30})
    assert (bomb.status_code, bomb.json()["title"]) == (502, "CorruptRecord")
