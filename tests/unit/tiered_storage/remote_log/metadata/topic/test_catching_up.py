"""Catching up with the metadata topic: in blocks or one by one, and only when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS_0,
    ORDERS_1,
    a_segment,
    a_step,
    dump,
    topic_store,
)
from support.topic_brokers import SERVERS, Answers
from tiered_storage.errors import MetadataCorruptError, MetadataMissingError
from tiered_storage.kafka_log.records.record_batch import Compression, Record, encode_batch
from tiered_storage.remote_log.metadata.sql.database.schema import metadata as sql_tables
from tiered_storage.remote_log.metadata.sql.topic_segments import (
    write_beginnings,
    write_max_timestamps,
    write_metadata_topic,
)
from tiered_storage.remote_log.metadata.topic import applying, topic_state
from tiered_storage.remote_log.metadata.topic.cluster import record_blocks
from tiered_storage.remote_log.metadata.topic.records import encode_record
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata, TopicIdPartition

ALWAYS, NEVER = 1, 1 << 30


def segments_of(partition: TopicIdPartition, count: int) -> list[RemoteLogSegmentMetadata]:
    lease = Lease(partition, "run-1", 3, 1_000)
    return [a_segment(lease, start, start + 9) for start in range(0, 10 * count, 10)]


def records_of(segments: list[RemoteLogSegmentMetadata]) -> list[bytes | None]:
    """Return records of segments, some of which are deleted again, with some that are skipped between them."""
    values: list[bytes | None] = [encode_record(replace(each, fencing_number=0)) for each in segments]
    values += [encode_record(a_step(each, FINISHED, custom_metadata=b"sent")) for each in segments]
    values += [None, b"nonsense"]
    values += [encode_record(a_step(each, state)) for each in segments[::2] for state in (DELETING, DELETED)]
    return values


def batches_of(values: list[bytes | None], size: int, compression: Compression) -> Iterator[bytes]:
    """Yield batches of `size` values, each followed by one that no consumer gets."""
    offset = 0
    for first in range(0, len(values), size):
        some = values[first : first + size]
        yield encode_batch([Record(offset + at, 1, None, value) for at, value in enumerate(some)], compression)
        offset += len(some)
        yield encode_batch([Record(offset, 1, bytes(4), bytes(6))], is_control=True, is_transactional=True)
        offset += 1


def write_segments(answers: Answers, store: TopicMetadataStore, compression: Compression = Compression.NONE) -> None:
    """Fill the topic's partitions 0 and 2, and SQL with what is beside them."""
    for number, partition in ((0, ORDERS_0), (2, ORDERS_1)):
        begun = segments_of(partition, 16)
        with store.sql.database.writing() as connection:
            write_beginnings(connection, begun)
            write_max_timestamps(connection, {each.segment_id: 77 for each in begun[::3]})
        answers.write(number, *batches_of(records_of(begun), 3 + number, compression))


@contextmanager
def other_host(store: TopicMetadataStore, directory: Path) -> Iterator[object]:
    """Yield what a host has that reads the whole topic."""
    other = store.state.scratch(directory)
    try:
        other.catch_up()
        with other.cache.database.reading() as connection:
            yield dump(connection, sql_tables), other.cache.skipped(), other.cache.consumed()
    finally:
        other.close()


def content(store: TopicMetadataStore, directory: Path, least_block: int, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return what a new host has after it read the topic."""
    with monkeypatch.context() as patched:
        patched.setattr(topic_state, "LEAST_BLOCK", least_block)
        with other_host(store, directory / str(least_block)) as found:
            return found


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize(("most_bytes", "most_records"), [(1 << 20, 1 << 20), (1_000, 1 << 20), (1_000, 7)])
def test_blocks_leave_what_single_records_leave(
    answers: Answers,
    topic_metadata: TopicMetadataStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compression: Compression,
    most_bytes: int,
    most_records: int,
) -> None:
    write_segments(answers, topic_metadata, compression)
    answers.most_bytes = most_bytes
    one_by_one = content(topic_metadata, tmp_path, NEVER, monkeypatch)
    monkeypatch.setattr(record_blocks, "MOST_RECORDS", most_records)

    assert content(topic_metadata, tmp_path, ALWAYS, monkeypatch) == one_by_one


def test_a_block_with_much_that_is_not_plain_is_applied_in_parts(
    answers: Answers, topic_metadata: TopicMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(answers, topic_metadata)
    one_by_one = content(topic_metadata, tmp_path, NEVER, monkeypatch)
    monkeypatch.setattr(applying, "OTHERS_AT_ONCE", 0)

    assert content(topic_metadata, tmp_path, ALWAYS, monkeypatch) == one_by_one


def test_what_follows_a_block_goes_on_with_its_segments(
    answers: Answers, topic_metadata: TopicMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_state, "LEAST_BLOCK", ALWAYS)
    [number] = topic_metadata.state.partitions_of([ORDERS_0])
    first, second = segments_of(ORDERS_0, 2)
    written = [encode_record(first), encode_record(a_step(first, FINISHED)), encode_record(second)]
    answers.write(number, *batches_of([*written], 5, Compression.NONE))
    assert [each.state for each in topic_metadata.segments.list_remote_log_segments(ORDERS_0)] == [
        FINISHED,
        second.state,
    ]

    later = [encode_record(a_step(second, FINISHED)), encode_record(a_step(first, DELETING))]
    records = [Record(4 + at, 1, None, value) for at, value in enumerate(later)]
    answers.write(number, encode_batch(records))

    assert [each.state for each in topic_metadata.segments.list_remote_log_segments(ORDERS_0)] == [DELETING, FINISHED]
    totals = topic_metadata.segments.segment_totals()
    assert [(each.state, each.was_finished, each.count) for each in totals] == [
        (FINISHED, True, 1),
        (DELETING, True, 1),
    ]


@pytest.mark.parametrize("least_block", [ALWAYS, NEVER])
def test_damaged_records_are_reported_by_the_offset_before_them(
    answers: Answers, topic_metadata: TopicMetadataStore, monkeypatch: pytest.MonkeyPatch, least_block: int
) -> None:
    monkeypatch.setattr(topic_state, "LEAST_BLOCK", least_block)
    write_segments(answers, topic_metadata)
    damaged = bytearray(answers.logs[2][4])
    damaged[-1] ^= 1
    answers.logs[2][4] = bytes(damaged)

    with pytest.raises(MetadataCorruptError, match=r"partition 2: the records after offset 11 cannot be read"):
        topic_metadata.segments.segment_totals()


def finish_one(answers: Answers, store: TopicMetadataStore) -> RemoteLogSegmentMetadata:
    """Let another host copy a segment, under a lease that it releases."""
    lease = store.leases.acquire(ORDERS_0, "another host's", 60_000)
    [number] = store.state.partitions_of([ORDERS_0])
    first = answers.ends.get(number, 0)
    segment = a_segment(lease, 10 * first, 10 * first + 9)
    with store.sql.database.writing() as connection:
        write_beginnings(connection, [segment])
    values = [encode_record(segment), encode_record(a_step(segment, FINISHED))]
    answers.write(number, encode_batch([Record(first + at, 1, None, value) for at, value in enumerate(values)]))
    store.leases.release(lease)
    return segment


def asked(answers: Answers, store: TopicMetadataStore, offset: int) -> tuple[str | None, bool]:
    """Return the id of the segment that holds an offset, and whether the brokers were asked for it."""
    before = answers.asked_offsets
    found = store.segments.remote_log_segment_metadata(ORDERS_0, offset)
    return None if found is None else found.segment_id.id, answers.asked_offsets > before


def test_brokers_are_asked_again_only_after_somebody_had_a_lease(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    first = finish_one(answers, topic_metadata)
    assert asked(answers, topic_metadata, first.start_offset) == (first.segment_id.id, True)
    assert asked(answers, topic_metadata, first.end_offset) == (first.segment_id.id, False)
    assert asked(answers, topic_metadata, 1_000) == (None, False)

    second = finish_one(answers, topic_metadata)
    assert asked(answers, topic_metadata, second.start_offset) == (second.segment_id.id, True)
    assert asked(answers, topic_metadata, second.start_offset) == (second.segment_id.id, False)
    assert topic_metadata.segments.highest_offset_for_epoch(ORDERS_0, 0) == second.end_offset


def test_brokers_are_asked_each_time_while_somebody_has_the_lease(
    answers: Answers, topic_metadata: TopicMetadataStore, clock: ManualClock
) -> None:
    first = finish_one(answers, topic_metadata)
    lease = topic_metadata.leases.acquire(ORDERS_0, "run-1", 60_000)
    for _ in range(2):
        assert asked(answers, topic_metadata, first.start_offset) == (first.segment_id.id, True)

    # A holder whose lease expired may write until another one has it.
    clock.step(120_000)
    assert asked(answers, topic_metadata, first.start_offset) == (first.segment_id.id, True)

    topic_metadata.leases.release(lease)
    assert asked(answers, topic_metadata, first.start_offset) == (first.segment_id.id, True)
    assert asked(answers, topic_metadata, first.start_offset) == (first.segment_id.id, False)


def test_a_cache_that_is_built_again_is_filled_before_look_ups(
    answers: Answers, topic_metadata: TopicMetadataStore, tmp_path: Path, clock: ManualClock
) -> None:
    first = finish_one(answers, topic_metadata)
    asked(answers, topic_metadata, first.start_offset)
    with topic_store(SERVERS, tmp_path, clock) as other:
        other.state.cache.rebuild()

    assert asked(answers, topic_metadata, first.start_offset) == (first.segment_id.id, True)


@pytest.mark.parametrize("has_lease", [False, True])
def test_a_look_up_at_rest_is_refused_after_the_segments_moved(
    answers: Answers, topic_metadata: TopicMetadataStore, has_lease: bool
) -> None:
    first = finish_one(answers, topic_metadata)
    partition = ORDERS_0 if has_lease else ORDERS_1
    for _ in range(2):
        topic_metadata.segments.remote_log_segment_metadata(partition, first.start_offset)

    with topic_metadata.sql.database.writing() as connection:
        write_metadata_topic(connection, None)

    with pytest.raises(MetadataMissingError):
        topic_metadata.segments.remote_log_segment_metadata(partition, first.start_offset)
