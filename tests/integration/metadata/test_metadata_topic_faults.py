"""Bad records in a metadata topic, brokers that are away, a lost cache, and topics that cannot hold metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from servers.real_kafka import RealKafka
from support.clocks import ManualClock
from support.metadata_stores import (
    DELETING,
    FINISHED,
    ORDERS_0,
    STARTED,
    a_segment,
    a_step,
    add_and_bring_to,
    topic_options,
    topic_store,
)
from tiered_storage.errors import ConfigurationError, MetadataMissingError, MetadataUnavailableError
from tiered_storage.remote_log.metadata.topic.partitioner import metadata_partition
from tiered_storage.remote_log.metadata.topic.records import encode_record
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata
from tiered_storage.remote_log.rebuild.metadata_places import metadata_status


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(real_kafka: RealKafka, tmp_path: Path, clock: ManualClock) -> Iterator[TopicMetadataStore]:
    with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as opened:
        yield opened


@pytest.fixture
def lease(store: TopicMetadataStore) -> Lease:
    return store.leases.acquire(ORDERS_0, "run-1", 60_000)


@pytest.fixture
def finished(store: TopicMetadataStore, lease: Lease) -> RemoteLogSegmentMetadata:
    """A finished segment in the topic."""
    return add_and_bring_to(store, a_segment(lease), lease, FINISHED)


def write(kafka: RealKafka, store: TopicMetadataStore, *values: bytes | None) -> int:
    """Write values as they are into the metadata partition of ORDERS_0; return that partition."""
    partition = metadata_partition(ORDERS_0, store.state.topic.partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(store.state.topic.name, value, partition=partition)
    assert producer.flush(30) == 0
    return partition


def test_records_that_nobody_can_apply_are_skipped_and_reported(
    real_kafka: RealKafka,
    store: TopicMetadataStore,
    lease: Lease,
    finished: RemoteLogSegmentMetadata,
    caplog: pytest.LogCaptureFixture,
) -> None:
    unknown = a_segment(lease, 50, 59)
    sound = encode_record(unknown)
    bad = (
        None,
        b"",
        sound[:-3],
        b"\x01\x09\x00" + sound[3:],
        b"\x01\x00\x07" + sound[3:],
        hashlib.sha512(b"random").digest(),
        encode_record(a_step(unknown, FINISHED)),
        encode_record(a_segment(lease, 5, 9, segment_id=finished.segment_id)),
    )
    partition = write(real_kafka, store, *bad)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [finished]
    marked = store.segments.update_remote_log_segment_metadata(a_step(finished, DELETING), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [marked]
    status = metadata_status(store)
    assert [(each.metadata_partition, each.offset) for each in status.skipped] == [
        (partition, 2 + number) for number in range(len(bad))
    ]
    assert status.partitions[partition].skipped == len(bad)
    assert f"partition {partition}, offset 4" in caplog.text


def test_a_record_that_was_written_twice_changes_nothing(
    real_kafka: RealKafka, store: TopicMetadataStore, finished: RemoteLogSegmentMetadata
) -> None:
    begun = encode_record(replace(finished, state=STARTED))
    write(real_kafka, store, begun, encode_record(a_step(finished, FINISHED, 9_000)))

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [finished]
    assert metadata_status(store).skipped == []


def _remove(path: Path) -> None:
    path.unlink()


def _damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 60_000)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [_remove, _damage, _empty])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_lost_cache_is_built_again(
    real_kafka: RealKafka, tmp_path: Path, clock: ManualClock, harm: Callable[[Path], None], *, is_open: bool
) -> None:
    with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        segments = [add_and_bring_to(store, a_segment(lease, start, start + 9), lease, FINISHED) for start in (0, 10)]
        path = store.state.cache.path
        if is_open:
            harm(path)
            assert list(store.segments.list_remote_log_segments(ORDERS_0)) == segments
            add_and_bring_to(store, a_segment(lease, 20, 29), lease, FINISHED)
    if not is_open:
        harm(path)
    with topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as store:
        assert list(store.segments.list_remote_log_segments(ORDERS_0))[:2] == segments


def test_the_cache_of_another_topic_is_not_used(
    real_kafka: RealKafka,
    tmp_path: Path,
    clock: ManualClock,
    store: TopicMetadataStore,
    finished: RemoteLogSegmentMetadata,
) -> None:
    place = tmp_path / "other"
    place.mkdir()
    with topic_store(real_kafka.bootstrap_servers, place, clock) as other:
        its_lease = other.leases.acquire(ORDERS_0, "run-1", 60_000)
        its_own = add_and_bring_to(other, a_segment(its_lease, 70, 79), its_lease, FINISHED)
        path = other.state.cache.path
    store.state.cache.database.copy_to(tmp_path / "copied")
    path.unlink()
    (tmp_path / "copied").rename(path)

    with topic_store(real_kafka.bootstrap_servers, place, clock) as other:
        assert list(other.segments.list_remote_log_segments(ORDERS_0)) == [its_own]
        assert its_own.segment_id != finished.segment_id


def test_a_topic_that_lost_its_first_records_is_reported_by_a_new_cache(
    real_kafka: RealKafka, store: TopicMetadataStore, finished: RemoteLogSegmentMetadata
) -> None:
    partition = metadata_partition(ORDERS_0, store.state.topic.partitions)
    real_kafka.client.delete_records(store.state.topic.name, partition, 1)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [finished], "this host consumed them before"
    store.state.cache.rebuild()
    with pytest.raises(MetadataMissingError, match=f"partition {partition}: begins at offset 1"):
        next(store.segments.list_remote_log_segments(ORDERS_0))


TOPICS = {
    "partitions": (4, {"retention.ms": "-1"}, r"has 4 partitions, and .*num\.partitions is 3"),
    "compacted": (3, {"retention.ms": "-1", "cleanup.policy": "compact"}, "is compacted"),
    "retention": (3, {"retention.ms": "1000"}, r"retention\.ms 1000"),
}


@pytest.mark.parametrize(("partitions", "config", "message"), TOPICS.values(), ids=TOPICS)
def test_a_topic_that_cannot_hold_metadata_is_refused_by_name(
    real_kafka: RealKafka, tmp_path: Path, clock: ManualClock, partitions: int, config: dict[str, str], message: str
) -> None:
    name = topic_options(real_kafka.bootstrap_servers, tmp_path)["remote.log.metadata.topic.name"]
    real_kafka.client.create_topic(name, partitions, config)

    with (
        topic_store(real_kafka.bootstrap_servers, tmp_path, clock) as store,
        pytest.raises(ConfigurationError, match=f"{name}.*{message}"),
    ):
        store.segments.list_partitions()


def test_more_replicas_than_brokers_are_refused_by_the_settings_name(
    real_kafka: RealKafka, tmp_path: Path, clock: ManualClock
) -> None:
    changed = {"topic_replication_factor": 3}
    with (
        topic_store(real_kafka.bootstrap_servers, tmp_path, clock, **changed) as store,
        pytest.raises(ConfigurationError, match=r"topic\.replication\.factor \(3\)"),
    ):
        store.segments.list_partitions()


def test_without_its_brokers_only_segments_are_unavailable(
    kafka: RealKafka, tmp_path: Path, clock: ManualClock
) -> None:
    with closing(topic_store(kafka.bootstrap_servers, tmp_path, clock, consume_wait_ms=3_000)) as store:
        lease = store.leases.acquire(ORDERS_0, "run-1", 60_000)
        finished = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
        kafka.stop()
        try:
            for call in (
                lambda: list(store.segments.list_remote_log_segments(ORDERS_0)),
                lambda: store.segments.update_remote_log_segment_metadata(a_step(finished, DELETING), lease),
            ):
                with pytest.raises(MetadataUnavailableError, match=kafka.bootstrap_servers):
                    call()
            store.safety.stop("test", "me")
            store.leases.heartbeat(lease, 60_000)
            store.segments.advance_log_start_offset(ORDERS_0, 1, lease)
        finally:
            kafka.start()

        assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [finished]
        assert store.segments.update_remote_log_segment_metadata(a_step(finished, DELETING), lease).state is DELETING
