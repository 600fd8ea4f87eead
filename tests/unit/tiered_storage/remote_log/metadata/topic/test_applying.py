"""Applying records of the metadata topic: the order of the log alone decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from support.metadata_stores import DELETED, DELETING, FINISHED, ORDERS_0, STARTED, a_segment, a_step, dump
from tiered_storage.remote_log.metadata.sql.database.schema import metadata as sql_tables
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId, Place, SegmentFacts
from tiered_storage.remote_log.metadata.topic.applying import apply_records, decoded
from tiered_storage.remote_log.metadata.topic.cache import SegmentCache
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import LogValues
from tiered_storage.remote_log.metadata.topic.records import encode_record
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata

TOPIC = MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 1)
LEASE = Lease(ORDERS_0, "run-1", 3, 1_000)
UNDELETED_AT = 7_777
SEGMENTS = [a_segment(LEASE, start, start + 9) for start in (0, 10, 10)]
FACTS: Mapping[Place, SegmentFacts] = {
    (each.segment_id.id, ORDERS_0.topic_id, ORDERS_0.partition): SegmentFacts("cluster-1", 3, 55, UNDELETED_AT)
    for each in SEGMENTS
}


def values_of(segment: RemoteLogSegmentMetadata) -> list[bytes]:
    """Return records about `segment`, some of which no order allows."""
    steps = [a_step(segment, state, custom_metadata=b"sent") for state in (FINISHED, DELETING, DELETED, STARTED)]
    undelete = a_step(segment, FINISHED, UNDELETED_AT)
    return [encode_record(segment), *map(encode_record, steps), encode_record(undelete), b"nonsense"]


RECORDS = [value for segment in SEGMENTS for value in values_of(segment)]


def apply_in_parts(cache: SegmentCache, values: Sequence[bytes], parts: Sequence[int]) -> int:
    """Apply `values` in parts of these sizes, each twice; return how many were skipped."""
    skipped, first = 0, 0
    for size in (*parts, len(values)):
        part = list(enumerate(values))[first : first + size]
        if not part:
            break
        end = first + len(part)
        records = decoded(LogValues(0, tuple(part), end), "another-cluster", lambda _: FACTS)
        for _ in range(2):
            with cache.database.writing() as connection:
                skipped += len(apply_records(connection, records, 0, first, end, "the topic"))
        first = end
    return skipped


def content(cache: SegmentCache) -> object:
    with cache.database.reading() as connection:
        return dump(connection, sql_tables), cache.skipped(), cache.consumed()


@given(
    st.lists(st.sampled_from(RECORDS), max_size=40),
    st.lists(st.integers(1, 7), max_size=10),
    st.lists(st.integers(1, 7), max_size=10),
)
def test_the_state_does_not_depend_on_where_a_read_ended(values: list[bytes], one: list[int], other: list[int]) -> None:
    with TemporaryDirectory() as folder:
        caches = [SegmentCache(Path(folder, name), TOPIC, 1_000) for name in ("one", "other")]
        skipped = [apply_in_parts(cache, values, parts) for cache, parts in zip(caches, (one, other), strict=True)]
        found = [content(cache) for cache in caches]
        recorded = [len(cache.skipped()) for cache in caches]
        for cache in caches:
            cache.close()

    assert skipped == recorded, "a part that was applied already changes nothing"
    assert found[0] == found[1]


def test_facts_in_sql_complete_what_records_cannot_hold(tmp_path: Path) -> None:
    segment = SEGMENTS[0]
    begun, finished, marked, _, _, undeleted, _ = values_of(segment)
    cache = SegmentCache(tmp_path, TOPIC, 1_000)

    apply_in_parts(cache, [begun, finished, marked, undeleted], [])

    [found] = SqlRemoteLogMetadataManager(cache.database).list_remote_log_segments(ORDERS_0)
    cache.close()
    assert found.topic_id_partition.cluster_id == "cluster-1"
    assert (found.fencing_number, found.max_timestamp) == (3, 55)
    assert (found.state, found.event_timestamp, found.custom_metadata) == (FINISHED, UNDELETED_AT, b"sent")


def test_every_undelete_before_the_last_one_is_applied_again(tmp_path: Path) -> None:
    """SQL has the time of the last one only; its record may have been lost."""
    begun, finished, *_ = values_of(SEGMENTS[0])
    marks = [encode_record(a_step(SEGMENTS[0], DELETING, at)) for at in (5_000, 6_000)]
    undeleted = encode_record(a_step(SEGMENTS[0], FINISHED, 5_500))
    late = encode_record(a_step(SEGMENTS[0], FINISHED, 2_000))
    cache = SegmentCache(tmp_path, TOPIC, 1_000)

    skipped = apply_in_parts(cache, [begun, finished, marks[0], late, undeleted, marks[1]], [])

    [found] = SqlRemoteLogMetadataManager(cache.database).list_remote_log_segments(ORDERS_0)
    [reported] = cache.skipped()
    cache.close()
    assert (skipped, found.state, found.event_timestamp) == (1, DELETING, 6_000)
    assert reported.offset == 3, "the end of a copy, written once more, undeletes nothing"


def test_a_mark_of_a_clock_that_was_ahead_is_taken_back(tmp_path: Path) -> None:
    begun, finished, *_ = values_of(SEGMENTS[0])
    mark = encode_record(a_step(SEGMENTS[0], DELETING, UNDELETED_AT + 1_000_000))
    late = encode_record(a_step(SEGMENTS[0], FINISHED, 2_000))
    undeleted = encode_record(a_step(SEGMENTS[0], FINISHED, UNDELETED_AT))
    cache = SegmentCache(tmp_path, TOPIC, 1_000)

    skipped = apply_in_parts(cache, [begun, finished, mark, late, undeleted], [])

    [found] = SqlRemoteLogMetadataManager(cache.database).list_remote_log_segments(ORDERS_0)
    [reported] = cache.skipped()
    cache.close()
    assert (skipped, found.state, found.event_timestamp) == (1, FINISHED, UNDELETED_AT)
    assert reported.offset == 3, "the end of a copy, written once more, undeletes nothing"


def test_a_segment_that_may_be_of_two_clusters_is_skipped(tmp_path: Path) -> None:
    facts = {place: replace(found, cluster_id="") for place, found in FACTS.items()}
    values = LogValues(0, ((0, encode_record(SEGMENTS[0])),), 1)

    [record] = decoded(values, "another-cluster", lambda _: facts)

    assert isinstance(record.record, str)
    assert "several clusters" in record.record


def test_a_deletion_is_not_undone_without_permission(tmp_path: Path) -> None:
    begun, finished, marked, *_ = values_of(SEGMENTS[0])
    again = encode_record(a_step(SEGMENTS[0], FINISHED, UNDELETED_AT + 1))
    cache = SegmentCache(tmp_path, TOPIC, 1_000)

    skipped = apply_in_parts(cache, [begun, finished, marked, again], [])

    [found] = SqlRemoteLogMetadataManager(cache.database).list_remote_log_segments(ORDERS_0)
    [reported] = cache.skipped()
    cache.close()
    assert (skipped, found.state) == (1, DELETING)
    assert (reported.metadata_partition, reported.offset) == (0, 3)
    assert "cannot become COPY_SEGMENT_FINISHED" in reported.reason
