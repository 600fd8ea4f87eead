"""What SQL has of segments in a metadata topic."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import delete

from support.metadata_stores import ORDERS_0, a_segment
from tiered_storage.remote_log.metadata.sql.database.schema import topic_segments
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.metadata.sql.topic_segments import Place, SegmentFacts, facts_of, write_beginnings
from tiered_storage.remote_log.model import TopicIdPartition


def begin_and_lose(store: SqlMetadataStore, partition: TopicIdPartition) -> Place:
    """Begin a segment in the topic, and lose its row, as the restore of an earlier backup does; return its place."""
    lease = store.leases.acquire(partition, "run-1", 60_000)
    segment = a_segment(lease)
    with store.database.writing() as connection:
        write_beginnings(connection, [segment])
        connection.execute(delete(topic_segments))
    return segment.segment_id.id, partition.topic_id, partition.partition


def test_a_segment_whose_row_was_lost_is_of_its_topics_cluster(store: SqlMetadataStore) -> None:
    """No record names the cluster: without this, the segment would be of the cluster that has the metadata topic."""
    place = begin_and_lose(store, ORDERS_0)
    of_nobody: Place = ("an-id", "topic-id-of-nobody-AAA", 0)

    with store.database.reading() as connection:
        found = facts_of(connection, [place, of_nobody])

    assert found == {place: SegmentFacts(ORDERS_0.cluster_id, 0, None, None)}


def test_a_topic_id_in_two_clusters_names_neither(store: SqlMetadataStore) -> None:
    place = begin_and_lose(store, ORDERS_0)
    begin_and_lose(store, replace(ORDERS_0, cluster_id="cluster-2"))

    with store.database.reading() as connection:
        assert facts_of(connection, [place])[place].cluster_id == ""
