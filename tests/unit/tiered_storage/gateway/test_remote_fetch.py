"""What a consumer gets where the broker's log begins after its offset; the broker and the remote log are scripts."""

from __future__ import annotations

import asyncio

import pytest

from support.command_line import mentions
from tiered_storage.errors import OffsetOutOfRangeError, ReaderBusyError, RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction, PartitionEntry
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from unit.tiered_storage.gateway.brokers import TOPIC, ScriptedBroker
from unit.tiered_storage.gateway.remote_consumers import (
    BATCH,
    OUT_OF_RANGE,
    REMOTE_END,
    REMOTE_START,
    STORAGE_ERROR,
    Consumer,
    Remote,
    filled,
    throttled,
)


def test_remote_records_come_with_the_brokers_offsets() -> None:
    [found] = Consumer().fetches(55)

    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 200, 200)
    assert found.log_start_offset == REMOTE_START
    assert int.from_bytes(found.records[:8], "big") == 50


@pytest.mark.parametrize(("are_there", "last"), [(False, 59), (True, REMOTE_END - 1)])
def test_an_answer_has_all_remote_records_that_are_in_memory(are_there: bool, last: int) -> None:
    [found] = Consumer(remote=Remote(are_there=are_there)).fetches(55)

    table, size = SegmentScanner("an answer", 0).feed(found.records)
    assert (int(table.last_offset[-1]), size) == (last, len(found.records))


@pytest.mark.parametrize(
    ("answered", "code"), [(6, 6), (5, 6), (56, 56), (74, 74), (75, 75), (78, 78), (3, 3), (29, 29), (7, 56), (-1, 56)]
)
def test_a_broker_that_does_not_answer_for_the_partition_resets_no_consumer(answered: int, code: int) -> None:
    [found] = Consumer(ScriptedBroker(answered)).fetches(55)

    assert (found.error_code, bytes(found.records)) == (code, b"")


@pytest.mark.parametrize(("answered", "code"), [(3, 3), (29, 29), (100, 100), (5, 6), (-1, 56)])
def test_a_topic_that_the_broker_does_not_describe_resets_no_consumer(answered: int, code: int) -> None:
    [found] = Consumer(ScriptedBroker(topic_code=answered)).fetches(55)

    assert found.error_code == code


def test_an_offset_above_the_high_watermark_is_out_of_range() -> None:
    [found] = Consumer().fetches(201)

    assert found.error_code == OUT_OF_RANGE


def test_an_offset_below_the_remote_log_is_out_of_range() -> None:
    [found] = Consumer().fetches(REMOTE_START - 1)

    assert found.error_code == OUT_OF_RANGE


def test_the_end_of_a_second_ago_resets_no_consumer() -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(60, 70, 70)))

    async def work() -> tuple[PartitionEntry, PartitionEntry]:
        fetch = consumer.new_fetch()
        before = await filled(fetch, 55, committed=False)
        # Written and trimmed within the second that the first answer is used for.
        consumer.broker.offsets = PartitionOffsets(100, 200, 200)
        return before, await filled(fetch, 95, committed=False)

    before, after = asyncio.run(work())

    assert before.high_watermark == 70
    assert (after.error_code, int.from_bytes(after.records[:8], "big")) == (0, 90)


def test_a_remote_log_that_ends_earlier_than_it_was_seen_resets_no_consumer() -> None:
    [found] = Consumer(remote=Remote(OffsetOutOfRangeError(TOPIC, 55, REMOTE_START, 50))).fetches(55)

    assert found.error_code == STORAGE_ERROR


@pytest.mark.parametrize(
    ("failure", "code"), [(ReaderBusyError("busy"), 0), (RemoteObjectNotFoundError("lost"), STORAGE_ERROR)]
)
def test_what_cannot_be_read_has_the_code_of_the_table(failure: TieredStorageError, code: int) -> None:
    [found] = Consumer(remote=Remote(failure)).fetches(55)

    assert (found.error_code, bytes(found.records)) == (code, b"")


def test_a_hole_is_an_error_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)))

    found = consumer.fetches(102, 102, 103)

    assert [each.error_code for each in found] == [STORAGE_ERROR] * 3
    [record] = caplog.records
    assert mentions(record.getMessage(), "offset 102", "neither tier", "offset 100")
    labels = {"topic": TOPIC, "error": "KAFKA_STORAGE_ERROR"}
    assert consumer.metrics.registry.get_sample_value("remote_log_gateway_remote_errors_total", labels) == 3


def test_a_hole_is_skipped_and_counted_where_a_setting_says_so(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), skips_missing=True)

    [found] = consumer.fetches(102)

    header = read_batch_header(found.records)
    assert (found.error_code, header.base_offset, header.next_offset, header.record_count) == (0, 102, 105, 0)
    assert "offset 102 is in neither tier" in caplog.text
    sample = consumer.metrics.registry.get_sample_value
    assert sample("remote_log_gateway_skipped_offsets_total", {"topic": TOPIC}) == 3


@pytest.mark.parametrize(("copying", "code"), [((100, 101), 0), ((100, 102), 56), ((104, 110), 56), ((105, 110), 0)])
def test_what_a_copy_under_way_has_is_not_skipped(copying: tuple[int, int], code: int) -> None:
    remote = Remote(copying=(copying,))
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), remote, skips_missing=True)

    assert [each.error_code for each in consumer.fetches(102)] == [code]


def test_what_was_copied_since_the_last_look_is_not_skipped() -> None:
    remote = Remote(ends=[REMOTE_END, 105])
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), remote, skips_missing=True)

    first, second = consumer.fetches(102, 102)

    assert (first.error_code, bytes(first.records)) == (0, b"")
    assert read_batch_header(second.records).record_count == BATCH


def test_records_before_a_hole_with_their_transactions_end_are_not_skipped() -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), Remote(decided=60), skips_missing=True)

    assert [each.error_code for each in consumer.fetches(60, committed=True)] == [STORAGE_ERROR]


def test_an_answer_does_not_wait_for_metadata_that_hang() -> None:
    [found] = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), Remote(hangs=True)).fetches(50)

    assert (found.error_code, bytes(found.records)) == (0, b"")


ACROSS = AbortedTransaction(7, 40)


def test_transactions_aborted_in_the_brokers_log_are_reported() -> None:
    broker = ScriptedBroker(PartitionOffsets(80, 200, 180), aborted=(ACROSS,))

    [found] = Consumer(broker).fetches(55, committed=True)

    assert (bytes(found.records[:8]), found.aborted) == ((50).to_bytes(8, "big"), (ACROSS,))


def test_a_transaction_whose_end_was_copied_meanwhile_is_looked_for_again() -> None:
    """The read that began before has no abort of it, and the broker is asked from the new end on."""
    broker = ScriptedBroker(PartitionOffsets(100, 200, 180), aborted=())
    consumer = Consumer(broker, Remote(ends=[REMOTE_END, 120]))

    consumer.fetches(50, 60, 70, committed=True)

    assert consumer.remote.begun == [50, 60]
    assert broker.fetched == [100, 120]


def test_records_of_a_transaction_whose_end_is_in_a_hole_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), Remote(decided=60))

    decided, undecided = consumer.fetches(50, 60, committed=True)

    assert (decided.error_code, int.from_bytes(decided.records[:8], "big")) == (0, 50)
    assert (undecided.error_code, bytes(undecided.records)) == (STORAGE_ERROR, b"")
    assert mentions(caplog.text, "offset 60", "read_committed")


def test_records_of_a_transaction_whose_end_the_broker_cannot_tell_yet_wait() -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(100, 200, 100)), Remote(decided=60))

    decided, undecided = consumer.fetches(50, 60, committed=True)

    assert int.from_bytes(decided.records[:8], "big") == 50
    assert (undecided.error_code, bytes(undecided.records)) == (0, b"")


def test_a_log_that_was_copied_and_trimmed_since_the_look_has_no_hole(caplog: pytest.LogCaptureFixture) -> None:
    broker = ScriptedBroker(PartitionOffsets(120, 200, 200))
    consumer = Consumer(broker, Remote(ends=[REMOTE_END, 120], decided=60))

    before, after = consumer.fetches(60, 60, committed=True)

    assert (before.error_code, bytes(before.records)) == (0, b"")
    assert (after.error_code, int.from_bytes(after.records[:8], "big")) == (0, 60)
    assert not caplog.records


def test_a_broker_that_a_quota_holds_back_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    [found] = Consumer(ScriptedBroker(PartitionOffsets(80, 200, 180), aborted=None)).fetches(55, committed=True)

    assert (found.error_code, bytes(found.records)) == (0, b"")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_after_remote_records_the_next_answer_needs_room_for_them() -> None:
    consumer = Consumer()

    async def work() -> None:
        fetch = consumer.new_fetch()
        assert not fetch.needs_share()
        await filled(fetch, 55, committed=False)
        assert fetch.needs_share()
        assert not fetch.needs_share()

    asyncio.run(work())


def test_a_client_over_its_quota_gets_no_remote_records_until_its_debt_is_paid() -> None:
    consumer = Consumer(rate=100)

    async def work() -> None:
        fetch = consumer.new_fetch()
        mute_ms, first = await throttled(fetch, 50)
        assert len(first.records) > 100
        assert mute_ms == (len(first.records) - 100) * 10

        again_ms, none = await throttled(fetch, 60)
        assert (again_ms, none.error_code, len(none.records)) == (mute_ms, 0, 0)

        consumer.seconds = mute_ms / 1000 + 1
        assert len((await throttled(fetch, 60))[1].records) == len(first.records)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_client_within_its_quota_is_not_throttled() -> None:
    consumer = Consumer(rate=1 << 20)

    async def work() -> None:
        mute_ms, found = await throttled(consumer.new_fetch(), 50)
        assert (mute_ms, len(found.records) > 0) == (0, True)

    asyncio.run(asyncio.wait_for(work(), 30))
