"""The state of the metadata topic on this host: what was consumed, and catching up with the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

import numpy as np
from sqlalchemy import Connection

from tiered_storage.errors import (
    ConfigurationError,
    CorruptLogError,
    MetadataCorruptError,
    MetadataMissingError,
    MetadataUnavailableError,
    RemoteMetadataError,
)
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.fact_columns import ManyFacts
from tiered_storage.remote_log.metadata.sql.leases import resting_state
from tiered_storage.remote_log.metadata.sql.segment_changes import known_segments
from tiered_storage.remote_log.metadata.sql.segment_rows import in_batches
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, ensure_in_use
from tiered_storage.remote_log.metadata.sql.topic_segments import (
    MetadataTopicId,
    Place,
    SegmentFacts,
    facts_of,
    has_segments,
    read_metadata_topic,
    write_metadata_topic,
)
from tiered_storage.remote_log.metadata.topic.applying import DecodedRecord, apply_block, apply_records, decoded
from tiered_storage.remote_log.metadata.topic.cache import SegmentCache, why_skipped
from tiered_storage.remote_log.metadata.topic.cluster.lost_records import NOTHING, Consumed, LostRecords
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import LogValues, MetadataLog
from tiered_storage.remote_log.metadata.topic.cluster.metadata_writer import MetadataWriter, OutgoingRecord
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions
from tiered_storage.remote_log.metadata.topic.cluster.record_blocks import fetch_block
from tiered_storage.remote_log.metadata.topic.cluster.topic_setup import (
    create_topic,
    ensure_empty,
    ensure_same,
    find_topic,
)
from tiered_storage.remote_log.metadata.topic.metadata_columns import decode_values
from tiered_storage.remote_log.metadata.topic.partitioner import metadata_partition
from tiered_storage.remote_log.metadata.topic.plain_lives import PlainLives
from tiered_storage.remote_log.metadata.topic.records import UNKNOWN_BROKER, encode_record
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

LEAST_BLOCK = 500
"""From so many records on, they are applied as a block."""

_TRIES: Final = 3

Written: TypeAlias = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
"""What is written to the topic."""

Found = TypeVar("Found")


class TopicState:
    """The metadata topic beside the SQL store `sql`; nothing is opened before it is needed.

    Threads may share it. Methods raise MetadataUnavailableError if the brokers are away, MetadataMissingError if the
    topic is gone or lost records, and ConfigurationError for a topic that cannot hold metadata.
    """

    def __init__(self, options: TopicOptions, sql: SqlMetadataStore, busy_timeout_ms: int) -> None:
        """Connect to nothing yet."""
        self._options = options
        self._sql = sql
        self._busy_timeout_ms = busy_timeout_ms
        self.log = MetadataLog(options)
        self._lost = LostRecords(options, self.log)
        self._writer = MetadataWriter(options)
        self._lock = threading.RLock()
        self._topic: MetadataTopicId | None = None
        self._is_moving = False
        self._cache: SegmentCache | None = None
        self._resting: dict[TopicIdPartition, tuple[Database, tuple[str | None, int]]] = {}
        """The cache in which a partition was up to date while nobody worked on it, and what SQL said of it then."""

    @property
    def topic(self) -> MetadataTopicId:
        """The topic, checked once; it is created if these metadata have none yet."""
        with self._lock:
            if self._topic is None:
                self._topic = self._found()
            return self._topic

    @property
    def cache(self) -> SegmentCache:
        """The cache file, open."""
        topic = self.topic
        with self._lock:
            if self._cache is None:
                self._cache = SegmentCache(self._options.cache_directory, topic, self._busy_timeout_ms)
            return self._cache

    def recorded(self) -> MetadataTopicId | None:
        """Return the topic that SQL names, None if there is none yet; the brokers are not asked."""
        database = self._sql.database
        with database.reading() as connection:
            return read_metadata_topic(connection, database.where)

    def check_use(self, connection: Connection) -> None:
        """Raise MetadataMissingError if the SQL store, read by `connection`, is out of use or names another topic."""
        ensure_in_use(connection, self._sql.database.where, beside_topic=True)
        self._check_named(connection)

    def is_readable(self) -> bool:
        """Return whether the topic was found and its cache is open, so that segments can be read now."""
        return self._cache is not None

    def partitions_of(self, partitions: Iterable[TopicIdPartition]) -> set[int]:
        """Return the metadata partitions of `partitions`."""
        return {metadata_partition(each, self.topic.partitions) for each in partitions}

    def read(self, partitions: Collection[int] | None, look: Callable[[SqlRemoteLogMetadataManager], Found]) -> Found:
        """Catch up with the metadata partitions, None: all of them, then return what `look` finds in the cache.

        A damaged cache is built again.
        """

        def caught_up() -> Found:
            self._catch_up_all(partitions)
            return look(SqlRemoteLogMetadataManager(self.cache.database))

        return self._repaired(caught_up)

    def look_up(self, partition: TopicIdPartition, look: Callable[[SqlRemoteLogMetadataManager], Found]) -> Found:
        """Return what `look` finds in the cache about `partition`, as exactly as `read`.

        The brokers are not asked if, since they last were, nobody had a lease of the partition, which every writer has,
        and the segments did not move.
        """

        def current() -> Found:
            database = self.cache.database
            resting = resting_state(self._sql.database, partition)
            if resting is None or self._resting.get(partition) != (database, resting):
                self._catch_up_all(self.partitions_of([partition]))
                if resting is not None:
                    self._resting[partition] = database, resting
            return look(SqlRemoteLogMetadataManager(database))

        return self._repaired(current)

    def known(
        self, partitions: Collection[int], ids: Sequence[RemoteLogSegmentId]
    ) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
        """Catch up with the metadata partitions; return those of `ids`, at most ROWS_A_STATEMENT, in any state."""

        def caught_up() -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
            self._catch_up_all(partitions)
            database = self.cache.database
            with database.reading() as connection:
                return known_segments(connection, ids, database.where)

        return self._repaired(caught_up)

    def catch_up(self, partitions: Collection[int] | None = None) -> None:
        """Apply every record that the metadata partitions, None: all of them, have now."""
        self._repaired(lambda: self._catch_up_all(partitions))

    def repairs(self, error: RemoteMetadataError) -> bool:
        """Return whether `error` was the cache's, which is usable again now, though perhaps empty."""
        with self._lock:
            if self._cache is None or not self._cache.is_unusable(error):
                return False
            self._cache.rebuild()
        return True

    def write(
        self, records: Sequence[Written], brokers: Mapping[RemoteLogSegmentId, int] = MappingProxyType({})
    ) -> dict[int, str]:
        """Write records, in order, and apply the log up to them; return why some of them, by index, were skipped.

        An update has the id that `brokers` has for its segment: of the broker that led the partition.
        """
        topic = self.topic
        outgoing = [
            OutgoingRecord(
                metadata_partition(_partition_of(each), topic.partitions),
                encode_record(each, _broker_of(each, brokers)),
            )
            for each in records
        ]
        offsets = self._writer.write(topic, outgoing)
        written: dict[int, dict[int, int]] = {}
        for index, (record, offset) in enumerate(zip(outgoing, offsets, strict=True)):
            written.setdefault(record.partition, {})[offset] = index
        skipped: dict[int, str] = {}
        for number, indexes in written.items():
            reasons = self._repaired(partial(self._read_back, topic, number, list(indexes)))
            skipped |= {indexes[offset]: reason for offset, reason in reasons.items() if offset in indexes}
        return skipped

    def begin_arrival(self) -> MetadataTopicId:
        """Find or create the topic for a move into it, and use it; SQL records that it is not complete yet.

        Raises ConfigurationError if the topic has other metadata.
        """
        database, known = self._sql.database, self.recorded()
        if known is None:
            found = find_topic(self._options, self.log) or create_topic(self._options, self.log)
            ensure_empty(self.log, found)
            known = replace(found, is_arriving=True)
            with database.writing() as connection:
                write_metadata_topic(connection, known)
        settled = replace(known, is_arriving=False)
        ensure_same(self._options, self.log, settled)
        with self._lock:
            self._topic, self._is_moving = settled, True
        return known

    def scratch(self, directory: Path) -> TopicState:
        """Return the state of the same topic with an empty cache in `directory`; the caller closes it."""
        other = TopicState(replace(self._options, cache_directory=directory), self._sql, self._busy_timeout_ms)
        other._topic = self.topic
        return other

    def close(self) -> None:
        """Close the connections and the cache."""
        with self._lock:
            self.log.close()
            if self._cache is not None:
                self._cache.close()
                self._cache = None

    def _check_named(self, connection: Connection) -> None:
        """Raise MetadataMissingError unless SQL names the topic that was found: segments may move meanwhile."""
        where, used = self._sql.database.where, self._topic
        found = read_metadata_topic(connection, where)
        named = replace(found, is_arriving=False) if found is not None and self._is_moving else found
        if used not in {None, named}:
            raise MetadataMissingError(
                f"{where}: the segments are not in metadata topic {used} any more, but in {found or 'the database'}: "
                "correct the settings of the metadata, and start every process again"
            )

    def _read_back(self, topic: MetadataTopicId, number: int, offsets: Sequence[int]) -> dict[int, str]:
        """Apply the log up to the last of `offsets`; return why the records at some of them were skipped."""
        if self.cache.consumed().get(number, 0) > min(offsets):
            # Another process of this host read them, or it read other records there, from a log that diverged.
            self._catch_up_all([number])
        self._catch_up_one(topic, number, max(offsets) + 1, self._facts_of_many(topic, 0))
        with self.cache.database.reading() as connection:
            return why_skipped(connection, number, offsets)

    def _catch_up_all(self, partitions: Collection[int] | None) -> None:
        topic = self.topic
        wanted = range(topic.partitions) if partitions is None else partitions
        if not wanted:
            return
        with self._sql.database.reading() as connection:
            self._check_named(connection)
        # Read first: other processes consume what is written meanwhile.
        consumed = self.cache.consumed_epochs()
        latest = self.log.latest(topic, wanted)
        epochs = {number: found.leader_epoch for number, found in latest.items()}
        self._lost.refuse_shortened(topic, consumed, latest, self.cache.path)
        self._lost.refuse_diverged(topic, consumed, epochs, self.cache.path)
        behind = [number for number, found in latest.items() if consumed.get(number, NOTHING)[0] < found.offset]
        starts = self.log.starts(topic, behind) if behind else {}
        self._lost.refuse_later_start(topic, consumed, starts)
        facts = self._facts_of_many(topic, sum(latest[each].offset - consumed.get(each, NOTHING)[0] for each in behind))
        for number in sorted(behind):
            self._catch_up_one(topic, number, latest[number].offset, facts)

    def _catch_up_one(self, topic: MetadataTopicId, number: int, end: int, facts: ManyFacts) -> None:
        """Apply a metadata partition up to `end`; `facts` are on records that were written before they are read."""
        # Asked again after each part: other threads and processes apply the same records to the same file.
        while (offset := (consumed := self.cache.consumed_epochs()).get(number, NOTHING)[0]) < end:
            if end - offset < LEAST_BLOCK or not self._apply_block(topic, number, consumed, end, facts):
                found = self.log.fetch(topic, number, offset)
                # Asked of the leader that gave the records: it may be another one than gave the end.
                self._lost.refuse_diverged(topic, consumed, {number: found.leader_epoch}, self.cache.path)
                self._apply(topic, found, offset)

    def _apply_block(self, topic: MetadataTopicId, number: int, consumed: Consumed, end: int, facts: ManyFacts) -> bool:
        """Apply the next records as a block; return whether that could be done."""
        offset, _ = consumed.get(number, NOTHING)
        try:
            block = fetch_block(self.log, topic, number, offset, end)
        except CorruptLogError:
            return False  # what is before them can be read, and what is wrong is reported
        self._lost.refuse_diverged(topic, consumed, {number: block.leader_epoch}, self.cache.path)
        lives = PlainLives(decode_values(block.values), facts.of)
        with self.cache.database.writing() as connection:
            if apply_block(connection, block, lives, partial(self._decoded, topic), _where(topic)):
                return True
        self._apply(topic, block.at(np.arange(len(block))), offset)
        return True

    def _repaired(self, call: Callable[[], Found]) -> Found:
        """Return the result of `call`, which is repeated with another cache if the file is damaged or was replaced."""
        for _ in range(_TRIES - 1):
            try:
                return call()
            except (MetadataCorruptError, MetadataUnavailableError) as error:
                if not self.repairs(error):
                    raise
        return call()

    def _apply(self, topic: MetadataTopicId, found: LogValues, first: int) -> None:
        records = self._decoded(topic, found)
        parts: list[Sequence[DecodedRecord]] = list(in_batches(records)) or [()]
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            next_offset = found.next_offset if following is None else following[0].offset
            with self.cache.database.writing() as connection:
                apply_records(connection, part, found.partition, first, next_offset, _where(topic), found.leader_epoch)
            first = next_offset

    def _decoded(self, topic: MetadataTopicId, found: LogValues) -> list[DecodedRecord]:
        return decoded(found, topic.cluster_id, self._facts)

    def _facts_of_many(self, topic: MetadataTopicId, records: int) -> ManyFacts:
        return ManyFacts(self._sql.database, topic.cluster_id, records)

    def _facts(self, places: Iterable[Place]) -> Mapping[Place, SegmentFacts]:
        with self._sql.database.reading() as connection:
            return facts_of(connection, places)

    def _found(self) -> MetadataTopicId:
        database, known = self._sql.database, self.recorded()
        if known is not None and known.is_arriving:
            raise MetadataMissingError(
                f"{database.where}: the move of the segments into metadata topic {known} has not ended: run "
                "'tiered-storage metadata move topic' again, or 'tiered-storage metadata move database' to take it back"
            )
        if known is not None:
            ensure_same(self._options, self.log, known)
            return known
        with database.reading() as connection:
            _refuse_segments(connection, database.where)
        topic = find_topic(self._options, self.log) or create_topic(self._options, self.log)
        try:
            ensure_empty(self.log, topic)
        except ConfigurationError:
            if self.recorded() is None:
                raise
        with database.writing() as connection:
            other = read_metadata_topic(connection, database.where)
            if other is None:
                # Again: creating a topic takes seconds, in which a process with other settings may write.
                _refuse_segments(connection, database.where)
                write_metadata_topic(connection, topic)
        # Another process that begins at the same time may have recorded the topic, and written to it.
        return topic if other is None else self._found()


def _refuse_segments(connection: Connection, where: str) -> None:
    if has_segments(connection):
        raise ConfigurationError(
            f"{where}: has the segments itself: run 'tiered-storage metadata move topic' to move them into a metadata "
            "topic, or take remote.log.metadata.manager.class.name out of the settings"
        )


def _where(topic: MetadataTopicId) -> str:
    return f"metadata topic {topic.name}"


def _partition_of(record: Written) -> TopicIdPartition:
    if isinstance(record, RemotePartitionDeleteMetadata):
        return record.topic_id_partition
    return record.segment_id.topic_id_partition


def _broker_of(record: Written, brokers: Mapping[RemoteLogSegmentId, int]) -> int:
    if isinstance(record, RemotePartitionDeleteMetadata):
        return UNKNOWN_BROKER
    return brokers.get(record.segment_id, UNKNOWN_BROKER)
