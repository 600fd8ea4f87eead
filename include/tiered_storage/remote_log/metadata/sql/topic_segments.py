"""What the records of a metadata topic cannot hold, in SQL: a row for every segment that was ever begun in the topic.

    fencing_number   of the lease under which the copy began
    max_timestamp    the largest timestamp (ms) that the end of the copy set, if its beginning had another one
    undeleted_at     the event timestamp (ms) of the last update that may return the segment from its deletion

A row is written before the record that needs it. So whoever reads the record finds the row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, select, update

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.remote_log.metadata.sql.database.engine import insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import (
    deleted_segments,
    leases,
    lineages,
    partitions,
    segments,
    store_identity,
    topic_segments,
)
from tiered_storage.remote_log.metadata.sql.segment_rows import bound_key, has_bound_key, in_batches, key_values
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata

_FACTS = select(topic_segments).where(topic_segments.c.segment_id.in_(bindparam("ids", expanding=True)))
_HAS_ID = has_bound_key(topic_segments) & (topic_segments.c.segment_id == bindparam("key_segment_id"))
_SET_MAX_TIMESTAMP = update(topic_segments).where(_HAS_ID).values(max_timestamp=bindparam("new", type_=BigInteger))
_SET_UNDELETED = update(topic_segments).where(_HAS_ID).values(undeleted_at=bindparam("new", type_=BigInteger))


@dataclass(frozen=True, slots=True)
class MetadataTopicId:
    """The topic that has the segments: the cluster's id, its name and id, and how many partitions it has.

    `is_arriving`: a move into it has not ended, and SQL still has all segments.
    """

    cluster_id: str
    name: str
    topic_id: str
    partitions: int
    is_arriving: bool = False

    def __str__(self) -> str:
        return f"{self.name} (id {self.topic_id}) of cluster {self.cluster_id}"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What SQL has of a segment in the topic; see the module.

    `cluster_id` is empty if SQL lost the segment's row, and several clusters have its topic id.
    """

    cluster_id: str
    fencing_number: int
    max_timestamp: int | None
    undeleted_at: int | None


Place = tuple[str, str, int]
"""A segment as a record names it: its id, its topic's id, its partition's number."""


def read_metadata_topic(connection: Connection, where: str) -> MetadataTopicId | None:
    """Return the topic that has the segments; None if SQL has them. Raises MetadataCorruptError."""
    text: str | None = connection.scalar(select(store_identity.c.metadata_topic))
    try:
        return None if text is None else MetadataTopicId(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise MetadataCorruptError(
            f"{where}: the name of the metadata topic is damaged ({error}): restore the metadata from their backup"
        ) from error


def write_metadata_topic(connection: Connection, topic: MetadataTopicId | None) -> None:
    """Record which topic has the segments; None: SQL has them."""
    text = None if topic is None else json.dumps(asdict(topic))
    connection.execute(update(store_identity).values(metadata_topic=text))


def has_segments(connection: Connection) -> bool:
    """Return whether SQL itself has, or had, a segment."""
    return any(
        connection.execute(select(table.c.segment_id).limit(1)).first() for table in (segments, deleted_segments)
    )


def facts_of(connection: Connection, places: Iterable[Place]) -> dict[Place, SegmentFacts]:
    """Return what is known of these segments.

    After a restore of SQL, the rows of later segments are missing: then whatever else SQL has of their topic names its
    cluster, which no record does.
    """
    wanted, found = set(places), dict[Place, SegmentFacts]()
    for row in rows_with_ids(connection, (segment_id for segment_id, _, _ in wanted)):
        facts = SegmentFacts(row.cluster_id, row.fencing_number, row.max_timestamp, row.undeleted_at)
        found.setdefault((row.segment_id, row.topic_id, row.partition), facts)
    lost = wanted - found.keys()
    clusters = _clusters_of(connection, {topic_id for _, topic_id, _ in lost})
    for place in lost:
        if named := clusters.get(place[1]):
            found[place] = SegmentFacts(min(named) if len(named) == 1 else "", 0, None, None)
    return found


def rows_with_ids(connection: Connection, ids: Iterable[str]) -> Iterator[Row[Any]]:
    """Yield the rows of the segments with these ids."""
    for batch in in_batches(sorted(set(ids))):
        yield from connection.execute(_FACTS, {"ids": batch})


def write_beginnings(connection: Connection, begun: Sequence[RemoteLogSegmentMetadata]) -> None:
    """Record the fencing numbers of segments whose beginning will be in the topic, and their partitions."""
    if not begun:
        return
    rows = [_row(segment) for segment in begun]
    insert_or_replace(connection, topic_segments, rows)
    named = {segment.topic_id_partition: segment.topic_id_partition.topic for segment in begun}
    insert_missing(
        connection,
        partitions,
        [{**key_values(each), "topic": name, "longest_span": 0, "finished_copies": 0} for each, name in named.items()],
    )


def write_max_timestamps(connection: Connection, largest: Mapping[RemoteLogSegmentId, int]) -> None:
    """Record the largest timestamps (ms) that copies set at their end."""
    _set(connection, _SET_MAX_TIMESTAMP, largest)


def permit_undeletes(
    connection: Connection, undeleted: Sequence[RemoteLogSegmentMetadata], event_timestamp: int
) -> None:
    """Permit the updates with this event timestamp (ms) to return these segments from their deletion."""
    insert_missing(connection, topic_segments, [_row(segment) for segment in undeleted])
    _set(connection, _SET_UNDELETED, {segment.segment_id: event_timestamp for segment in undeleted})


def _clusters_of(connection: Connection, topic_ids: Iterable[str]) -> dict[str, set[str]]:
    """Return the clusters of the topics with these ids that SQL knows of."""
    found: dict[str, set[str]] = {}
    for batch in in_batches(sorted(topic_ids)):
        for table in (partitions, lineages, leases):
            named = select(table.c.topic_id, table.c.cluster_id).where(table.c.topic_id.in_(batch)).distinct()
            for topic_id, cluster_id in connection.execute(named):
                found.setdefault(topic_id, set()).add(cluster_id)
    return found


def _set(connection: Connection, statement: Any, values: Mapping[RemoteLogSegmentId, int]) -> None:
    if values:
        rows = [
            {**bound_key(each.topic_id_partition), "key_segment_id": each.id, "new": value}
            for each, value in values.items()
        ]
        connection.execute(statement, rows)


def _row(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    return {
        **key_values(segment.topic_id_partition),
        "segment_id": segment.segment_id.id,
        "fencing_number": segment.fencing_number,
        "max_timestamp": None,
        "undeleted_at": None,
    }
