"""Segments in a metadata topic of a real broker: what is written, who sees it, and moves from SQL and back."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from servers.postgres import postgres_url
from servers.real_kafka import RealKafka
from support.clocks import ManualClock
from support.metadata_stores import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS_0,
    ORDERS_1,
    STARTED,
    a_segment,
    a_step,
    add_and_bring_to,
    sqlite_store,
    sqlite_url,
    topic_options,
    topic_store,
)
from tiered_storage.errors import ConfigurationError, LeaseHeldError, LeaseLostError, MetadataMissingError
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.metadata.sql.topic_segments import write_beginnings
from tiered_storage.remote_log.metadata.topic import segments, topic_state
from tiered_storage.remote_log.metadata.topic.moving import move_into_database, move_into_topic, verify_topic
from tiered_storage.remote_log.metadata.topic.records import UNKNOWN_BROKER, decode_event
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.metadata.topic.topic_state import TopicState
from tiered_storage.remote_log.model import (
    UNKNOWN_SIZE,
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    RolledSegment,
    TopicIdPartition,
)

WRITERS, SEGMENTS_OF_EACH = 2, 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(real_kafka: RealKafka, tmp_path: Path, clock: ManualClock) -> Iterator[TopicMetadataStore]:
    with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as opened:
        yield opened


def records_of(kafka: RealKafka, store: TopicMetadataStore) -> list[Any]:
    """Return every message of the store's topic."""
    topic = store.state.topic
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    found: list[Any] = []
    for number in range(topic.partitions):
        place = TopicPartition(topic.name, number, 0)
        _, end = consumer.get_watermark_offsets(place, 30)
        consumer.assign([place])
        while len([each for each in found if each.partition() == number]) < end:
            found += consumer.consume(1, 30)
    consumer.close()
    return found


def another_host(kafka: RealKafka, directory: Path, clock: ManualClock) -> TopicMetadataStore:
    """Open the store of `directory` beside a cache of its own."""
    options = topic_options(kafka.bootstrap_servers, directory) | {
        "remote.log.metadata.cache.directory": str(directory / "cache-of-another-host")
    }
    return TopicMetadataStore.open(sqlite_url(directory), clock, busy_timeout_ms=1_000, create=False, configs=options)


def test_records_are_kafkas_own_and_have_neither_key_nor_headers(
    real_kafka: RealKafka, store: TopicMetadataStore
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    segment = a_segment(lease)
    add_and_bring_to(store, segment, lease, FINISHED)
    store.segments.put_remote_partition_delete_metadata(
        RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, 5), lease
    )

    messages = records_of(real_kafka, store)

    assert [(each.key(), each.headers()) for each in messages] == [(None, None)] * 3
    events = [decode_event(each.value(), "cluster-1") for each in messages]
    assert [each.broker_id for each in events] == [segment.broker_id, segment.broker_id, UNKNOWN_BROKER]
    assert [each.record for each in events] == [
        replace(segment, fencing_number=0),
        a_step(segment, FINISHED),
        RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, 5),
    ]


def test_a_copy_without_known_end_is_in_the_topic_once_it_finished(
    real_kafka: RealKafka, store: TopicMetadataStore
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    bounded = a_segment(lease, 10, 1_000, size=UNKNOWN_SIZE)
    store.segments.add_remote_log_segment_metadata(bounded, lease)
    assert records_of(real_kafka, store) == []
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [bounded]

    rolled = RolledSegment(10, 99, 500, bounded.leader_epochs)
    finished = store.segments.update_remote_log_segment_metadata(
        a_step(bounded, FINISHED, rolled=rolled, max_timestamp=77), lease
    )

    assert (finished.end_offset, finished.size, finished.max_timestamp) == (99, 500, 77)
    assert len(records_of(real_kafka, store)) == 2
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [finished]
    assert store.sql.segments.list_partitions() == [ORDERS_0]
    assert list(store.sql.segments.list_remote_log_segments(ORDERS_0)) == []


def test_a_copy_that_finishes_during_a_listing_is_listed_once(
    store: TopicMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    bounded = a_segment(lease, 10, 1_000, size=UNKNOWN_SIZE)
    store.segments.add_remote_log_segment_metadata(bounded, lease)
    rolled = RolledSegment(10, 99, 500, bounded.leader_epochs)
    unknown = segments._unknown

    def and_then_it_finishes(*arguments: Any) -> Any:
        found = unknown(*arguments)
        store.segments.update_remote_log_segment_metadata(a_step(bounded, FINISHED, rolled=rolled), lease)
        return found

    monkeypatch.setattr(segments, "_unknown", and_then_it_finishes)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [bounded]


@pytest.mark.parametrize("least_block", [1, topic_state.LEAST_BLOCK])
def test_another_host_builds_the_same_state_from_the_topic(
    real_kafka: RealKafka,
    store: TopicMetadataStore,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    least_block: int,
) -> None:
    monkeypatch.setattr(topic_state, "LEAST_BLOCK", least_block)
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    for start, state in ((0, DELETED), (10, DELETING), (20, FINISHED), (30, STARTED)):
        segment = a_segment(lease, start, start + 9)
        store.segments.add_remote_log_segment_metadata(segment, lease)
        for step in (FINISHED, DELETING, DELETED):
            if step <= state:
                update = a_step(segment, step, custom_metadata=b"sent", max_timestamp=900)
                store.segments.update_remote_log_segment_metadata(update, lease)
    marked = next(each for each in store.segments.list_remote_log_segments(ORDERS_0) if each.state is DELETING)
    store.segments.undelete(ORDERS_0, [marked.segment_id], 0, 7_000, lease)

    with another_host(real_kafka, tmp_path, clock) as other:
        listed = list(other.segments.list_remote_log_segments(ORDERS_0))
        totals = other.segments.segment_totals()

    assert listed == list(store.segments.list_remote_log_segments(ORDERS_0))
    assert totals == store.segments.segment_totals()
    assert [(each.state, each.max_timestamp, each.event_timestamp) for each in listed] == [
        (FINISHED, 900, 7_000),
        (FINISHED, 900, 2_000),
        (STARTED, -1, 1_000),
    ]


def test_a_look_up_of_another_host_sees_every_change_at_once(
    real_kafka: RealKafka, store: TopicMetadataStore, clock: ManualClock, tmp_path: Path
) -> None:
    with another_host(real_kafka, tmp_path, clock) as other:
        for start in (0, 10):
            assert other.segments.remote_log_segment_metadata(ORDERS_0, start) is None
            lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
            assert other.segments.remote_log_segment_metadata(ORDERS_0, start) is None
            finished = add_and_bring_to(store, a_segment(lease, start, start + 9), lease, FINISHED)
            assert other.segments.remote_log_segment_metadata(ORDERS_0, start) == finished
            store.leases.release(lease)
            assert other.segments.highest_offset_for_epoch(ORDERS_0, 0) == start + 9
        lease = store.leases.acquire(ORDERS_0, "run-2", 60_000)
        store.segments.update_remote_log_segment_metadata(a_step(finished, DELETING), lease)
        store.leases.release(lease)
        assert other.segments.remote_log_segment_metadata(ORDERS_0, 10) is None


def test_a_writer_that_lost_its_lease_meanwhile_gets_the_error(
    store: TopicMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    segment = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(segment, lease)
    write = TopicState.write

    def paused(self: TopicState, *records: Any) -> Any:
        store.leases.end(ORDERS_0, "somebody")
        return write(self, *records)

    monkeypatch.setattr(TopicState, "write", paused)
    with pytest.raises(LeaseLostError, match="somebody"):
        store.segments.update_remote_log_segment_metadata(a_step(segment, DELETING), lease)


def test_a_record_that_the_log_refuses_is_an_error_of_its_writer(
    store: TopicMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    segment = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(segment, lease)
    write = TopicState.write

    def overtaken(self: TopicState, records: Any, _: Any) -> Any:
        write(self, [a_step(segment, DELETING)])
        return write(self, records)

    monkeypatch.setattr(TopicState, "write", overtaken)
    [outcome] = store.segments.update_remote_log_segments([(a_step(segment, FINISHED), lease)])

    assert "cannot become COPY_SEGMENT_FINISHED" in str(outcome)
    assert next(store.segments.list_remote_log_segments(ORDERS_0)).state is DELETING


def test_a_process_that_died_after_its_record_was_written_left_it_to_the_others(
    real_kafka: RealKafka,
    store: TopicMetadataStore,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    segment = a_segment(lease)

    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(TopicState, "_read_back", dies)
        with pytest.raises(Killed):
            store.segments.add_remote_log_segment_metadata(segment, lease)

    with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as other:
        assert list(other.segments.list_remote_log_segments(ORDERS_0)) == [segment]
        other.segments.add_remote_log_segment_metadata(segment, lease)
    assert len(records_of(real_kafka, store)) == 1


def test_the_end_of_a_copy_is_written_again_if_only_its_beginning_was(
    real_kafka: RealKafka, store: TopicMetadataStore
) -> None:
    lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
    bounded = a_segment(lease, 10, 1_000, size=UNKNOWN_SIZE)
    store.segments.add_remote_log_segment_metadata(bounded, lease)
    rolled = RolledSegment(10, 99, 500, bounded.leader_epochs)
    begun = replace(bounded, end_offset=99, size=500)
    with store.sql.database.writing() as connection:
        write_beginnings(connection, [begun])
    store.state.write([begun])

    finished = store.segments.update_remote_log_segment_metadata(a_step(bounded, FINISHED, rolled=rolled), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [finished]
    assert list(store.sql.segments.list_remote_log_segments(ORDERS_0)) == []


def _write_segments(servers: str, directory: Path, number: int) -> None:
    partition = TopicIdPartition("cluster-1", ORDERS_0.topic_id, number, "orders")
    with topic_store(servers, directory, ManualClock()) as store:
        lease = store.leases.acquire(partition, f"run-{number}", 60_000)
        for start in range(0, 10 * SEGMENTS_OF_EACH, 10):
            add_and_bring_to(store, a_segment(lease, start, start + 9), lease, FINISHED)


def test_processes_write_at_once_and_see_one_anothers_segments(
    real_kafka: RealKafka, store: TopicMetadataStore, tmp_path: Path
) -> None:
    assert store.segments.list_partitions() == []
    spawning = multiprocessing.get_context("spawn")
    arguments = [(real_kafka.bootstrap_servers, tmp_path, number) for number in range(WRITERS)]
    with spawning.Pool(WRITERS) as pool:
        pool.starmap(_write_segments, arguments)

    counts = [store.segments.count_remote_log_segments(replace(ORDERS_0, partition=each)) for each in range(WRITERS)]

    assert counts == [{FINISHED: SEGMENTS_OF_EACH}] * WRITERS
    assert verify_topic(store).skipped == 0


def test_segments_move_into_a_topic_and_back_unchanged(
    real_kafka: RealKafka, tmp_path: Path, clock: ManualClock
) -> None:
    with sqlite_store(tmp_path, clock) as before:
        lease = before.leases.acquire(ORDERS_0, "run-1", 60_000)
        early, late = a_segment(lease, 0, 9), a_segment(lease, 0, 19)
        for each in (early, late):
            before.segments.add_remote_log_segment_metadata(each, lease)
        for each in (late, early):
            before.segments.update_remote_log_segment_metadata(a_step(each, FINISHED, custom_metadata=b"x"), lease)
        for start, state in ((20, DELETED), (30, DELETING), (40, STARTED)):
            add_and_bring_to(before, a_segment(lease, start, start + 9), lease, state)
        before.segments.add_remote_log_segment_metadata(a_segment(lease, 50, 900, size=UNKNOWN_SIZE), lease)
        before.segments.put_remote_partition_delete_metadata(
            RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, 5), lease
        )
        listed = list(before.segments.list_remote_log_segments(ORDERS_0))
        deleted = list(before.segments.list_deleted_segments(ORDERS_0, 0, 100))
        with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as store:
            with pytest.raises(ConfigurationError, match="metadata move topic"):
                store.segments.list_partitions()
            with pytest.raises(LeaseHeldError):
                move_into_topic(store, clock)
            before.leases.release(lease)

            assert move_into_topic(store, clock).segments == 5

            assert list(store.segments.list_remote_log_segments(ORDERS_0)) == listed
            assert list(store.segments.list_deleted_segments(ORDERS_0, 0, 100)) == deleted
            first = store.segments.remote_log_segment_metadata(ORDERS_0, 5)
            assert first is not None
            assert first.segment_id == late.segment_id
            assert verify_topic(store).segments == 5
        with pytest.raises(MetadataMissingError, match=r"remote\.log\.metadata\.manager\.class\.name"):
            before.leases.acquire(ORDERS_1, "run-1", 60_000)
    with pytest.raises(MetadataMissingError):
        sqlite_store(tmp_path, clock)

    with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as store:
        assert move_into_database(store, clock).segments == 5
    with sqlite_store(tmp_path, clock) as after:
        assert list(after.segments.list_remote_log_segments(ORDERS_0)) == listed
        assert list(after.segments.list_deleted_segments(ORDERS_0, 0, 100)) == deleted
        found = after.segments.remote_log_segment_metadata(ORDERS_0, 5)
        assert found is not None
        assert found.segment_id == late.segment_id


def test_the_rest_may_be_in_postgresql(real_kafka: RealKafka, tmp_path: Path, clock: ManualClock) -> None:
    url, options = postgres_url(tmp_path), topic_options(real_kafka.bootstrap_servers, tmp_path)
    with TopicMetadataStore.open(url, clock, busy_timeout_ms=5_000, create=True, configs=options) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        begun = a_segment(lease)
        store.segments.add_remote_log_segment_metadata(begun, lease)
        for state in (FINISHED, DELETING):
            update = a_step(begun, state, custom_metadata=b"sent", max_timestamp=900)
            store.segments.update_remote_log_segment_metadata(update, lease)
        [returned] = store.segments.undelete(ORDERS_0, [begun.segment_id], 0, 7_000, lease)
        bounded = a_segment(lease, 10, 1_000, size=UNKNOWN_SIZE)
        store.segments.add_remote_log_segment_metadata(bounded, lease)
        rolled = RolledSegment(10, 99, 500, bounded.leader_epochs)
        finished = store.segments.update_remote_log_segment_metadata(a_step(bounded, FINISHED, rolled=rolled), lease)
        assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [returned, finished]
        assert store.segments.known_segment_ids(ORDERS_0, [begun.segment_id.id, "nobody's"]) == {begun.segment_id.id}
        store.leases.release(lease)
        assert move_into_database(store, clock).segments == 2
    with open_metadata_store(url, clock) as after:
        assert list(after.segments.list_remote_log_segments(ORDERS_0)) == [returned, finished]


def test_a_move_that_broke_off_can_be_taken_back(
    real_kafka: RealKafka, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite_store(tmp_path, clock) as before:
        lease = before.leases.acquire(ORDERS_0, "run-1", 60_000)
        finished = add_and_bring_to(before, a_segment(lease), lease, FINISHED)
        before.leases.release(lease)
    servers = real_kafka.bootstrap_servers

    def break_off() -> None:
        def fails(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, topic_store(servers, tmp_path, clock) as store:
            patched.setattr("tiered_storage.remote_log.metadata.topic.moving._ensure_arrived", fails)
            with pytest.raises(KeyboardInterrupt):
                move_into_topic(store, clock)
        with pytest.raises(MetadataMissingError), topic_store(servers, tmp_path, clock) as store:
            store.segments.list_partitions()

    break_off()
    with topic_store(servers, tmp_path, clock) as store:
        move_into_database(store, clock)
    with sqlite_store(tmp_path, clock) as again:
        assert list(again.segments.list_remote_log_segments(ORDERS_0)) == [finished]


def test_a_move_that_broke_off_is_ended_by_another_one(
    real_kafka: RealKafka, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = real_kafka.bootstrap_servers
    with sqlite_store(tmp_path, clock) as before:
        lease = before.leases.acquire(ORDERS_0, "run-1", 60_000)
        moved = [add_and_bring_to(before, a_segment(lease, start, start + 9), lease, FINISHED) for start in (0, 10)]
        before.leases.release(lease)
    write, written = TopicState.write, list[Any]()

    def fails_in_the_middle(self: TopicState, records: Any, _: Any) -> Any:
        written.extend(records[:3])
        write(self, records[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, topic_store(servers, tmp_path, clock) as store:
        patched.setattr(TopicState, "write", fails_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            move_into_topic(store, clock)
    assert len(written) == 3

    with topic_store(servers, tmp_path, clock) as store:
        assert move_into_topic(store, clock).segments == 2
        assert list(store.segments.list_remote_log_segments(ORDERS_0)) == moved
        assert len(records_of(real_kafka, store)) == 4
        assert verify_topic(store).skipped == 0


def test_a_topic_with_records_of_others_is_refused(real_kafka: RealKafka, tmp_path: Path, clock: ManualClock) -> None:
    name = topic_options(real_kafka.bootstrap_servers, tmp_path)["remote.log.metadata.topic.name"]
    real_kafka.client.create_topic(name, partitions=3, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap_servers})
    producer.produce(name, b"others", partition=1)
    assert producer.flush(30) == 0

    with (
        topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as store,
        pytest.raises(ConfigurationError, match=f"{name}, partition 1"),
    ):
        store.segments.list_partitions()
