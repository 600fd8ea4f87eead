from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.transactions import TIME, data, marker
from tiered_storage.errors import (
    AppendRefusedError,
    ConfigurationError,
    CorruptRecordError,
    UnexpectedAppendOffsetError,
)
from tiered_storage.kafka_log.log.log_append import (
    check_followed_epochs,
    check_leader_epoch,
    place_batch,
    place_records,
    split_batches,
)
from tiered_storage.kafka_log.records.batch_header import TimestampType, read_batch_header
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import correct_max_timestamp

BATCHES = [data(5, 1, 0, count=2, leader_epoch=1), marker(7, 1), data(9, leader_epoch=3)]
SENT = b"".join(BATCHES)


def test_batches_are_split_as_they_were_sent() -> None:
    placed = split_batches(SENT, 5, None, "orders-0")

    assert [bytes(batch.content) for batch in placed] == BATCHES
    assert [(batch.header.base_offset, batch.header.next_offset) for batch in placed] == [(5, 7), (7, 8), (9, 10)]


@pytest.mark.parametrize("left", range(1, len(BATCHES[2])))
def test_a_last_batch_that_is_cut_is_left_out(left: int) -> None:
    assert len(split_batches(SENT[:-left], 0, None, "orders-0")) == 2


def test_appended_batches_must_continue_at_the_logs_end() -> None:
    with pytest.raises(UnexpectedAppendOffsetError, match=r"orders-0: .*offset 5.* 6"):
        split_batches(SENT, 6, None, "orders-0")
    with pytest.raises(UnexpectedAppendOffsetError, match=r"offset 5.* 10"):
        split_batches(SENT + BATCHES[0], 0, None, "orders-0")


@given(st.data())
def test_any_change_on_the_way_gives_batches_or_our_errors(draw: st.DataObject) -> None:
    content = bytearray(SENT)
    for _ in range(draw.draw(st.integers(1, 3))):
        content[draw.draw(st.integers(0, len(content) - 1))] = draw.draw(st.integers(0, 255))

    try:
        placed = split_batches(bytes(content), 5, None, "orders-0")
    except (CorruptRecordError, AppendRefusedError):
        return

    assert b"".join(batch.content for batch in placed) == content[: sum(batch.header.size for batch in placed)]


@given(st.binary(max_size=300))
def test_any_bytes_give_batches_or_our_errors(content: bytes) -> None:
    try:
        split_batches(content, 0, None, "orders-0")
    except (CorruptRecordError, AppendRefusedError):
        return


def test_records_get_offsets_and_keep_all_else() -> None:
    records = [Record(9, 5, b"a", None), Record(9, -1, None, b"b", (("h", None),))]

    assert place_records(records, 70) == [Record(70, 5, b"a", None), Record(71, -1, None, b"b", (("h", None),))]


def test_a_batch_gets_its_place_which_no_checksum_covers() -> None:
    placed = place_batch(BATCHES[0], 70, 9, TIME, TimestampType.CREATE_TIME)

    header = read_batch_header(placed.content)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (70, 9, 71)
    assert bytes(placed.content[16:]) == BATCHES[0][16:]


def test_an_append_corrects_the_largest_timestamp_of_a_header() -> None:
    untrue = bytearray(BATCHES[0])
    correct_max_timestamp(untrue, TIME - 5)

    placed = place_batch(bytes(untrue), 5, 1, TIME, TimestampType.CREATE_TIME)
    assert bytes(placed.content) == BATCHES[0]

    stamped = place_batch(bytes(untrue), 5, 1, TIME + 9, TimestampType.LOG_APPEND_TIME).header
    assert (stamped.max_timestamp, stamped.timestamp_type) == (TIME + 9, TimestampType.LOG_APPEND_TIME)


@pytest.mark.parametrize(("epoch", "latest"), [(-1, None), (3, 4), (2**31, None)])
def test_a_leader_epoch_does_not_fall(epoch: int, latest: int | None) -> None:
    with pytest.raises(ConfigurationError, match=f"orders-0.*epoch {epoch}"):
        check_leader_epoch(epoch, latest, "orders-0")


def test_epochs_that_are_not_known_do_not_fall() -> None:
    placed = split_batches(data(0, leader_epoch=3) + data(1, leader_epoch=-1) + data(2, leader_epoch=3), 0, None, "x-0")

    check_followed_epochs(placed, 3, "orders-0")
    check_followed_epochs(placed, None, "orders-0")
    with pytest.raises(ConfigurationError):
        check_followed_epochs(placed, 4, "orders-0")
