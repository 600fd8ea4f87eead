"""The name of a topic is no part of a partition's identity; it is kept all the same, or said to be unknown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, ORDERS_1, sqlite_store
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.model import PartitionState, TopicIdPartition

UNKNOWN = "topic id topic-id-of-ordersAAAA (its name is not known), partition 0"


def move_log_start(store: SqlMetadataStore, partition: TopicIdPartition = ORDERS_0) -> None:
    store.segments.advance_log_start_offset(partition, 7, store.leases.acquire(partition, "run", 1000))


def known(store: SqlMetadataStore) -> list[tuple[str, PartitionState]]:
    return [(str(partition), state) for partition, state in sorted(store.segments.partition_states().items())]


@pytest.fixture
def nameless(tmp_path: Path, clock: ManualClock) -> Path:
    """A store as earlier ones wrote it: a log start alone, with no name beside it."""
    with sqlite_store(tmp_path, clock) as store:
        move_log_start(store)
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection, connection:
        connection.execute("DELETE FROM lineages")
    return tmp_path


def test_a_log_start_alone_keeps_the_name_and_makes_no_lineage(tmp_path: Path, clock: ManualClock) -> None:
    with sqlite_store(tmp_path, clock) as store:
        move_log_start(store)
        assert known(store) == [("orders-0", PartitionState(7))]
        store.segments.put_lineage(ORDERS_0, [EpochEntry(0, 0)], store.leases.acquire(ORDERS_0, "run", 1000))
        move_log_start(store)
        assert known(store) == [("orders-0", PartitionState(7, (EpochEntry(0, 0),)))]


def test_a_name_that_nobody_kept_is_said_to_be_unknown(nameless: Path, clock: ManualClock) -> None:
    with sqlite_store(nameless, clock) as store:
        assert known(store) == [(UNKNOWN, PartitionState(7))]
        [partition] = store.segments.partition_states()
        # Nobody takes the id for a name from now on.
        move_log_start(store, partition)
        assert known(store) == [(UNKNOWN, PartitionState(7))]
        move_log_start(store)
        assert known(store) == [("orders-0", PartitionState(7))]


def test_the_name_is_taken_from_another_partition_of_the_same_life(nameless: Path, clock: ManualClock) -> None:
    with sqlite_store(nameless, clock) as store:
        move_log_start(store, ORDERS_1)
        assert known(store) == [("orders-0", PartitionState(7)), ("orders-1", PartitionState(7))]


def test_the_name_is_taken_from_what_was_decided_for_the_topic(nameless: Path, clock: ManualClock) -> None:
    with sqlite_store(nameless, clock) as store:
        store.topics.put(Topic(ORDERS_0.cluster_id, "another-id", "clicks"))
        assert known(store) == [(UNKNOWN, PartitionState(7))]
        store.topics.put(Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders"))
        assert known(store) == [("orders-0", PartitionState(7))]
