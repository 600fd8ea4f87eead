"""Kafka's own remote tier as a source of segments: what it holds of a partition, along the lineage, is the local log.

Its locations are opened only by the process that adopts, while it does: see `opened`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError, TieredStorageError
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.remote_log.adopt.tier_segment import TieredLog, TieredSegment, TierSegment, batches_of
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.lineage import up_to, whole_lineage
from tiered_storage.remote_log.model import PartitionState, TopicIdPartition
from tiered_storage.remote_log.native.read_only_storage import native_storage, refuse
from tiered_storage.remote_log.source.opening import SEGMENT_SOURCES, SourceKind
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    NamedPartition,
    PartitionLog,
    SegmentLocation,
    UnreadablePartition,
    name_of,
)
from tiered_storage.remote_log.source.segment_source import LocalTrim, OpenSegment

SCHEME = "kafka-tier"
_UNKNOWN_LOG_START = (
    "the cluster does not show its log start, so that deleted records would be read again: adopt it once its leader "
    "answers, or, from log directories, with the one whose log-start-offset-checkpoint names it"
)


class TierLogs:
    """The SegmentSource of a cluster that tiers by itself, which also looks at many partitions together."""

    def __init__(self, native: RemoteLogContext) -> None:
        """Show what `native` has, the remote log of the cluster. Raises ConfigurationError for another remote log."""
        storage = native_storage(native.storage)
        if storage is None:
            raise ConfigurationError(
                f"{native.settings.rsm_config_url} is a remote log of our own: give the settings of a cluster that "
                "tiers by itself (--from), as in docs/native-clusters.md"
            )
        self._segments, self._storage, self._native = native.segments, storage, native
        self._opened: dict[str, tuple[TieredSegment, TieredLog]] = {}

    @property
    def is_configured(self) -> bool:
        return True

    @property
    def shows_segments(self) -> bool:
        return True

    @property
    def access(self) -> Mapping[str, str]:
        return {}

    @property
    def notices(self) -> Sequence[str]:
        return self._native.notices

    @property
    def local_trim(self) -> LocalTrim:
        refuse("its remote tier cannot be trimmed")

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        yield from self.partitions_of(self._segments.list_partitions()).values()

    def names(self) -> Iterator[NamedPartition]:
        for each in self._segments.list_partitions():
            yield NamedPartition(each, self._place(each), False, False, False, False)

    def named(self, topic: str, number: int) -> Sequence[NamedPartition]:
        return [each for each in self.names() if name_of(each) == (topic, number)]

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        found = self.partitions_of([partition]).get(partition)
        if isinstance(found, UnreadablePartition):
            raise InvalidLogDirectoryError(f"{found.partition}: {found.reason}")
        return found

    def partitions_of(
        self,
        wanted: Collection[TopicIdPartition],
        *,
        seconds: float | None = None,  # noqa: ARG002 -- BulkLookup's
    ) -> Mapping[TopicIdPartition, PartitionLog | UnreadablePartition]:
        """See BulkLookup. A partition whose log start is unknown is unreadable: deleted records would come back."""
        there = set(wanted).intersection(self._segments.list_partitions())
        states = self._segments.partition_states_of(sorted(there))
        found: dict[TopicIdPartition, PartitionLog | UnreadablePartition] = {}
        for each, state in states.items():
            try:
                found[each] = self._partition_log(each, state)
            except TieredStorageError as error:
                found[each] = UnreadablePartition(str(each), str(error))
        return found

    def _partition_log(self, partition: TopicIdPartition, state: PartitionState) -> PartitionLog | UnreadablePartition:
        """Return the log of one partition. Raises what the tier's store raises."""
        segments = list(self._segments.list_remote_log_segments(partition))
        lineage = whole_lineage(segments, state.lineage)
        coverage = Coverage.of(segments, lineage)
        if state.log_start_offset is None and coverage.ranges:
            return UnreadablePartition(str(partition), _UNKNOWN_LOG_START)
        shown = [segment.shown for segment in self._log(partition, coverage).segments]
        first, end = (shown[0].base_offset, shown[-1].end_offset or 0) if shown else (0, -1)
        start = first if state.log_start_offset is None else state.log_start_offset
        return PartitionLog(partition, self._place(partition), tuple(shown), start, end + 1, up_to(lineage, end))

    def while_trimming(self, segment: LocalSegment) -> NoReturn:  # noqa: ARG002 -- SegmentSource's
        """Raise ConfigurationError: see local_trim."""
        refuse("its remote tier cannot be trimmed")

    def open_segment(self, location: SegmentLocation, _: ProducerHistory | None) -> OpenSegment:
        """Open the segment that was shown at `location`. Raises InvalidLogDirectoryError for any other."""
        found = self._opened.get(location)
        if found is None:
            raise InvalidLogDirectoryError(f"{location} was not shown by this source: make the plan again")
        return TierSegment(*found)

    def close(self) -> None:
        """Do nothing: who opened the cluster's remote log closes it."""

    def _place(self, partition: TopicIdPartition) -> str:
        return f"{partition} in {self._storage.files.root}"

    def _log(self, partition: TopicIdPartition, coverage: Coverage) -> TieredLog:
        segments = [self._shown(covered) for covered in coverage.ranges]
        known = [self._opened[each.shown.location][1] for each in segments if each.shown.location in self._opened]
        # A copy under way keeps the producers that it found; see TierProducers.
        remembered = known[0].remembered if known else {}
        before = {each.metadata.end_offset + 1: each for each in segments if each.is_whole}
        log = TieredLog(self._place(partition), segments, before, self._storage, remembered)
        self._opened |= {each.shown.location: (each, log) for each in segments}
        return log

    def _shown(self, covered: CoveredRange) -> TieredSegment:
        segment = covered.segment
        name = f"{segment.segment_id.topic_id_partition}/{segment.start_offset:020}-{segment.segment_id.id}"
        location = SegmentLocation(f"{SCHEME}://{name}.log")
        known = self._opened.get(location)
        if known is not None and known[0].shown.end_offset == covered.end_offset:
            return known[0]
        size = segment.size if covered.end_offset == segment.end_offset else self._valid_bytes(covered)
        return TieredSegment(segment, LocalSegment(segment.start_offset, covered.end_offset, size, location))

    def _valid_bytes(self, covered: CoveredRange) -> int:
        """Return where the first batch begins that a later leader truncated."""
        for _, table in batches_of(covered.segment, self._storage, 0, covered.segment.size, verify_crc=False):
            row = int(table.last_offset.searchsorted(covered.end_offset, side="right"))
            if row < len(table):
                return int(table.position[row])
        return covered.segment.size


@contextmanager
def opened(native: RemoteLogContext) -> Iterator[TierLogs]:
    """Show the remote tier of `native`; during the `with` block this process opens its segments by their locations.

    One at a time. Raises as TierLogs.
    """
    logs = TierLogs(native)
    if SCHEME in SEGMENT_SOURCES:
        raise ConfigurationError("this process adopts topics already: wait until that has ended")

    def refuse_settings(*_: object) -> NoReturn:
        refuse("no settings name its remote tier as local logs")

    SEGMENT_SOURCES[SCHEME] = SourceKind(lambda _: False, refuse_settings, logs.open_segment)
    try:
        yield logs
    finally:
        del SEGMENT_SOURCES[SCHEME]
