"""The state of a metadata topic, when the topic is not what it was."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.metadata_stores import ORDERS_0, ORDERS_1, a_segment, sqlite_store, topic_store
from support.topic_brokers import SERVERS, Answers
from tiered_storage.errors import ConfigurationError, MetadataMissingError
from tiered_storage.remote_log.metadata.sql.topic_segments import write_beginnings
from tiered_storage.remote_log.metadata.topic.cache import write_next_offset
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.model import Lease


def consume(store: TopicMetadataStore, partition: int, offset: int, leader_epoch: int | None = None) -> None:
    """Let this host have consumed a metadata partition up to `offset`."""
    with store.state.cache.database.writing() as connection:
        write_next_offset(connection, partition, offset, leader_epoch)


@pytest.mark.parametrize("end", [0, 900])
def test_a_topic_that_ends_before_what_was_consumed_is_refused(
    answers: Answers, topic_metadata: TopicMetadataStore, end: int
) -> None:
    """Without the error, its segments look like orphans, which repair deletes."""
    consume(topic_metadata, 1, 1_000)
    answers.ends = {1: end}

    with pytest.raises(MetadataMissingError, match=rf"partition 1: ends at offset {end}.*1000.*rebuild-metadata"):
        topic_metadata.segments.segment_totals()

    assert topic_metadata.state.cache.consumed() == {1: 1_000}, "the only copy of the lost records"


def test_a_topic_with_other_records_than_were_consumed_is_refused(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    """An unclean leader election cut 10 records off, and others came in their place."""
    consume(topic_metadata, 1, 1_000, leader_epoch=4)
    answers.ends, answers.leader_epoch, answers.epoch_ends = {1: 1_005}, 5, {1: 990}

    for _ in range(2):
        with pytest.raises(MetadataMissingError, match=r"partition 1: has other records from offset 990 .*1000.*Keep"):
            topic_metadata.segments.segment_totals()

    assert answers.asked_for_epochs == [{1: 4}] * 2


def test_another_leader_with_the_same_records_is_asked_once(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    consume(topic_metadata, 1, 1_000, leader_epoch=4)
    answers.ends, answers.leader_epoch, answers.epoch_ends = {1: 1_000}, 5, {1: 1_000}

    for _ in range(2):
        assert topic_metadata.segments.segment_totals() == []

    assert answers.asked_for_epochs == [{1: 4}]


def test_a_process_that_ran_during_a_move_of_the_segments_is_refused(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    """What it writes into the topic that was left, nobody else sees."""
    assert topic_metadata.segments.segment_totals() == []
    lease = topic_metadata.leases.acquire(ORDERS_0, "run-1", 60_000)
    for moved_to in (
        None,
        replace(answers.topic, topic_id="topic-id-of-another-AA"),
        replace(answers.topic, is_arriving=True),
    ):
        with sqlite3.connect(topic_metadata.sql.database.where) as database:
            text = None if moved_to is None else json.dumps(asdict(moved_to))
            database.execute("UPDATE store_identity SET metadata_topic = ?", (text,))

        for call in (
            topic_metadata.segments.segment_totals,
            lambda: list(topic_metadata.segments.list_remote_log_segments(ORDERS_0)),
            lambda: topic_metadata.segments.remote_log_segment_metadata(ORDERS_0, 5),
            lambda: topic_metadata.segments.add_remote_log_segment_metadata(a_segment(lease), lease),
            lambda: topic_metadata.leases.acquire(ORDERS_1, "run-1", 60_000),
        ):
            with pytest.raises(
                MetadataMissingError, match=f"not in metadata topic .*{answers.topic.topic_id}.*any more"
            ):
                call()


def test_a_topic_that_was_created_again_is_refused_as_another(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    consume(topic_metadata, 1, 1_000)
    lost = answers.topic.topic_id
    answers.create_again()

    with pytest.raises(MetadataMissingError, match=rf"are in metadata topic .*{lost}.*{answers.topic.topic_id}"):
        topic_metadata.segments.segment_totals()


def test_a_segment_whose_records_the_topic_lost_is_unknown(
    answers: Answers, topic_metadata: TopicMetadataStore
) -> None:
    """So audit sees that the metadata are older than the store, and repair deletes nothing."""
    segment = a_segment(Lease(ORDERS_0, "run-1", 3, 1_000))
    with topic_metadata.sql.database.writing() as connection:
        write_beginnings(connection, [segment])

    assert answers.ends == {}
    assert topic_metadata.segments.known_segment_ids(ORDERS_0, [segment.segment_id.id]) == frozenset()


def test_the_topic_that_another_process_recorded_meanwhile_is_used(
    answers: Answers, tmp_path: Path, clock: ManualClock
) -> None:
    """Airflow starts two tasks at once on new metadata."""
    with topic_store(SERVERS, tmp_path, clock) as one, topic_store(SERVERS, tmp_path, clock) as other:

        def begin_and_write() -> None:
            assert one.state.topic == answers.topic
            answers.ends = {0: 1}

        answers.before_offsets = begin_and_write

        assert other.state.topic == answers.topic


def test_records_that_no_process_of_ours_wrote_are_refused(
    answers: Answers, tmp_path: Path, clock: ManualClock
) -> None:
    answers.ends = {2: 1}

    with (
        topic_store(SERVERS, tmp_path, clock) as store,
        pytest.raises(ConfigurationError, match="partition 2: has records already"),
    ):
        store.segments.list_partitions()


def test_segments_that_came_into_sql_while_the_topic_was_created_are_refused(
    answers: Answers, tmp_path: Path, clock: ManualClock
) -> None:
    def add_to_sql() -> None:
        with sqlite_store(tmp_path, clock) as beside:
            lease = beside.leases.acquire(ORDERS_0, "run-1", 60_000)
            beside.segments.add_remote_log_segment_metadata(a_segment(lease), lease)

    answers.before_offsets = add_to_sql
    with (
        topic_store(SERVERS, tmp_path, clock) as store,
        pytest.raises(ConfigurationError, match="has the segments itself"),
    ):
        store.segments.list_partitions()
    with topic_store(SERVERS, tmp_path, clock) as store:
        assert store.state.recorded() is None
