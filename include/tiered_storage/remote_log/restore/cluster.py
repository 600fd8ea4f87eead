"""Restore committed records into a running cluster, by producing them: each once, even if it is run twice.

Key, value, headers, timestamp and partition number are kept; offsets are new, and recorded in a map once acknowledged.
A run that resumes after a crash may find records in the target that the map lacks: it compares them with the next
records in the store, and maps them instead of sending them again. So no other producer may write into the topic until
everything is restored.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path

from tiered_storage.errors import ConfigurationError, TargetClusterError
from tiered_storage.kafka_log.records.record import LossyText, Record
from tiered_storage.remote_log.jobs.throttle import NO_LIMIT, LimitedReads, RateLimit
from tiered_storage.remote_log.progress import OnMoved, unreported
from tiered_storage.remote_log.restore.committed import CommittedRecords
from tiered_storage.remote_log.restore.offset_map import MapHead, OffsetMapWriter
from tiered_storage.remote_log.restore.request import RestorePlan
from tiered_storage.remote_log.restore.target_cluster import Sender, TargetCluster, TargetTopic
from tiered_storage.remote_log.restore.validation import Validation, check_bytes, check_store
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager


def map_what_is_there(
    cluster: TargetCluster,
    topic: TargetTopic,
    partition: int,
    end: int,
    records: Iterator[Record],
    offset_map: OffsetMapWriter,
) -> int:
    """Map the records that the target has up to `end` but the map lacks; return how many.

    `records` are the next ones in the store; if there are none, the target's records are not ours. Raises
    ConfigurationError if the target has less than the map, or other records.
    """
    next_new = offset_map.progress[partition].next_new
    if end < next_new:
        raise ConfigurationError(
            f"{topic.name}-{partition} ends at {end}, but {offset_map.path} has records up to {next_new - 1}: it "
            "is another topic of the same name, or has lost records; start again with another map"
        )
    count = 0
    for there in cluster.records(topic.name, partition, next_new, end):
        record = next(records, None)
        if record is None:
            break
        if not _are_the_same(record, there, topic):
            raise ConfigurationError(
                f"{topic.name}-{partition}: offset {there.offset} does not hold the record of offset {record.offset} "
                "that comes next: somebody else writes into it; start again with a topic of its own"
            )
        offset_map.add(partition, record.offset)
        count += 1
    offset_map.flush()
    return count


def compare(
    cluster: TargetCluster, topic: TargetTopic, partition: int, first: int, end: int, records: Iterator[Record]
) -> None:
    """Compare offsets `first` to `end` (exclusive) of the target with `records`. Raises TargetClusterError."""
    for there, record in zip_longest(cluster.records(topic.name, partition, first, end), records):
        if there is None or record is None or not _are_the_same(record, there, topic):
            lost = f"the record of offset {record.offset}" if record else "nothing of the store"
            found = f"what offset {there.offset} holds" if there else "nothing"
            raise TargetClusterError(f"{topic.name}-{partition}: read back {found} instead of {lost}")


def _are_the_same(record: Record, there: Record, topic: TargetTopic) -> bool:
    has_own_time = record.timestamp > 0 and not topic.stamps_records
    return (
        (record.key, record.value, record.headers) == (there.key, there.value, there.headers)
        and (record.timestamp == there.timestamp or not has_own_time)
    )  # fmt: skip


SETTLE_SECONDS = 1.0
"""How long the end must not move before everything of a producer that died counts as written."""
SETTLE_SECONDS_OF_REPLICAS = 50.0
"""The same with several replicas: the reported end is the high watermark, which a lagging follower holds back.

Every half replica.lag.time.max.ms (30 s by default) a leader drops followers that lagged for longer.
"""


_MOST_OF_A_NAME = 180
"""How much of a topic's name is in that of a map, which a file system must accept."""


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The target: a cluster, a topic (else of the same name), and the map of offsets.

    `map_path` is the map's file, or a folder with a file for each restore. `properties` are librdkafka's for login and
    encryption; client_properties.py has the list. With `append` the topic may already hold records.
    """

    bootstrap_servers: str
    map_path: Path
    topic: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    compression: str = "lz4"
    append: bool = False
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class RestoredRecords:
    """The result for one partition: the range of its records' new offsets, and how many were sent.

    `found` records were already there, from an earlier run whose map lacked them.
    """

    partition: str
    first_offset: int
    end_offset: int
    sent: int
    found: int


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What was restored, and the file of its offsets; `notices` list differences from the store."""

    partitions: tuple[RestoredRecords, ...]
    notices: tuple[str, ...]
    map_path: Path


def restore_to_cluster(
    plan: RestorePlan,
    storage: RemoteStorageManager,
    target: ClusterTarget,
    *,
    validation: Validation = Validation.SIZES,
    allow_gaps: bool = False,
    on_moved: OnMoved = unreported,
    limit: RateLimit = NO_LIMIT,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterReport:
    """Produce the committed records of `plan`, or resume an earlier run. Segments are read within `limit`.

    With Validation.RECORDS every byte in the store is checked before the first record is sent, and every record is read
    back at the end. Memory is bounded: a batch from the store, and 64 MiB that wait for acknowledgement.

    Raises ConfigurationError if the topic does not exist, has too few partitions, already holds records (unless
    `append`), or somebody else writes into it; TargetClusterError if it refuses or does not answer: run it again; as
    RestorePlan.ensure_possible; and what reading the store raises.
    """
    plan.ensure_possible(allow_gaps=allow_gaps)
    cluster = TargetCluster(target.bootstrap_servers, target.properties)
    topic = cluster.topic(plan.request.named_as(target.topic))
    reads = LimitedReads(storage, limit)
    sources = {
        each.topic_id_partition.partition: CommittedRecords(each, plan.request, reads) for each in plan.partitions
    }
    _check_partitions(topic, sources)
    check_store(plan.segments(), storage, validation)
    if validation is Validation.RECORDS:
        check_bytes(plan.segments(), reads)
    ends = cluster.ends(topic.name, sources)
    head = _head(plan, topic, {number: end for number, (_, end) in ends.items()})
    map_path = target.map_path / _map_name(topic.name, head) if target.is_folder else target.map_path

    def ensure_new() -> None:
        if not target.append:
            _check_empty(topic, ends)

    with OffsetMapWriter.open(map_path, head, ensure_new) as offset_map:
        firsts = {number: offset_map.progress[number].next_new for number in sources}
        restore = _Restore(cluster, topic, sources, offset_map)
        found = restore.map_what_is_there(sleep) if offset_map.is_resumed else {}
        sent, without_time = restore.send(target.compression, on_moved)
        if validation is Validation.RECORDS:
            restore.read_back()
        rows = tuple(
            RestoredRecords(
                f"{topic.name}-{number}",
                firsts[number],
                offset_map.progress[number].next_new,
                sent[number],
                found.get(number, 0),
            )
            for number in sources
        )
    return ClusterReport(rows, tuple(_notices(plan, topic, without_time, restore.mended)), map_path)


@dataclass(slots=True)
class _MendedKeys:
    """Counts records with a header key that is not UTF-8, for which the client can only send U+FFFD."""

    count: int = 0
    first: str = ""

    def noted(self, partition: object, records: Iterable[Record]) -> Iterator[Record]:
        """Yield `records`, counting those."""
        for record in records:
            if any(isinstance(key, LossyText) for key, _ in record.headers):
                self.first = self.first or f"{partition}, offset {record.offset}"
                self.count += 1
            yield record


@dataclass(frozen=True, slots=True)
class _Restore:
    """A restore under way: source, target and progress."""

    cluster: TargetCluster
    topic: TargetTopic
    sources: Mapping[int, CommittedRecords]
    offset_map: OffsetMapWriter
    mended: _MendedKeys = field(default_factory=_MendedKeys)

    def map_what_is_there(self, sleep: Callable[[float], None]) -> dict[int, int]:
        """Complete the map with what an earlier run had sent; return how many records that were, by partition."""
        ends = settled_ends(self.cluster, self.topic, self.sources, sleep)
        return {
            number: map_what_is_there(
                self.cluster, self.topic, number, ends[number][1], self._to_come(number), self.offset_map
            )
            for number in self.sources
        }

    def send(self, compression: str, on_moved: OnMoved) -> tuple[dict[int, int], int]:
        """Send the remaining records; return how many, by partition, and how many had no time."""
        sender = Sender(self.cluster.producer(compression), self.topic.name, self.offset_map)
        try:
            sent = {number: sender.send(number, self._to_come(number, on_moved)) for number in self.sources}
            sender.finish()
        except BaseException:
            sender.abandon()
            raise
        return sent, sender.without_time

    def read_back(self) -> None:
        """Compare everything in the map with the target."""
        for number, source in self.sources.items():
            first, end = self.offset_map.starts[number], self.offset_map.progress[number].next_new
            compare(self.cluster, self.topic, number, first, end, source.after(None))

    def _to_come(self, number: int, on_moved: OnMoved = unreported) -> Iterator[Record]:
        source = self.sources[number]
        records = source.after(self.offset_map.progress[number].last_old, on_moved)
        return self.mended.noted(source.partition.topic_id_partition, records)


def settled_ends(
    cluster: TargetCluster, topic: TargetTopic, partitions: Iterable[int], sleep: Callable[[float], None]
) -> dict[int, tuple[int, int]]:
    """Return start and end offset (exclusive) of each partition once nothing sent earlier can still arrive."""
    numbers = tuple(partitions)
    ends: dict[int, tuple[int, int]] = {}
    while (now := cluster.ends(topic.name, numbers)) != ends:
        ends = now
        sleep(SETTLE_SECONDS if topic.replicas == 1 else SETTLE_SECONDS_OF_REPLICAS)
    return ends


def _head(plan: RestorePlan, topic: TargetTopic, starts: Mapping[int, int]) -> MapHead:
    request = asdict(plan.request) | {"topic_id": plan.topic_id}
    if plan.request.partitions is not None:
        request["partitions"] = sorted(plan.request.partitions)
    target = {"cluster_id": topic.cluster_id, "topic": topic.name, "topic_id": topic.topic_id}
    return MapHead({name: value for name, value in request.items() if value is not None}, target, dict(starts))


def _check_partitions(topic: TargetTopic, numbers: Iterable[int]) -> None:
    needed = max(numbers, default=-1) + 1
    if not needed:
        raise ConfigurationError("the store has nothing that matches the request")
    if topic.partitions < needed:
        raise ConfigurationError(
            f"{topic.name} has {topic.partitions} partitions, and {needed} are needed, as each record keeps its "
            "partition's number: add partitions"
        )


def _map_name(topic: str, head: MapHead) -> str:
    """Return the file name of a restore's map: the same for a run that resumes, another for any other restore."""
    identity = json.dumps([head.source, head.target], sort_keys=True, default=str)
    return f"{topic[:_MOST_OF_A_NAME]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}-offset-map.jsonl"


def _check_empty(topic: TargetTopic, ends: Mapping[int, tuple[int, int]]) -> None:
    filled = [f"{topic.name}-{number}" for number, (start, end) in ends.items() if end > start]
    if filled:
        raise ConfigurationError(
            f"{', '.join(filled)} hold records already: restore into an empty topic, or give --append; or resume an "
            "earlier restore with its own map"
        )


def _notices(plan: RestorePlan, topic: TargetTopic, without_time: int, mended: _MendedKeys) -> Iterator[str]:
    if topic.stamps_records:
        yield (
            f"{topic.name} has message.timestamp.type=LogAppendTime: its records have the time of the restore, not "
            "their own"
        )
    if without_time:
        yield f"{without_time} records have no time, or 0: the client gave them the present one"
    if mended.count:
        yield (
            f"{mended.count} records have header keys that are not UTF-8, the first at {mended.first}: the client sent "
            "U+FFFD in the place of those bytes; a restore into a directory keeps them"
        )
    retention = topic.settings.get("retention.ms", "-1")
    latest = max((segment.metadata.max_timestamp for segment in plan.segments()), default=0)
    if retention != "-1" and not topic.stamps_records:
        yield (
            f"{topic.name} has retention.ms={retention}, which counts from the records' own times: the latest one "
            f"is of {datetime.fromtimestamp(latest / 1000, UTC):%Y-%m-%d %H:%M} UTC"
        )
    if "compact" in topic.settings.get("cleanup.policy", ""):
        yield f"{topic.name} is compacted: of each key only the last record stays"
