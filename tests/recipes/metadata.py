"""A metadata store without SQL, as an example: it lives in this process's memory only.

`memory_content` is what it holds, with the generation; here are the parts that the border asks for, over that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from recipes.memory_content import Content, Generations, content_of, is_known
from recipes.memory_segments import MemorySegments
from tiered_storage.clock import Clock
from tiered_storage.errors import MetadataMissingError, StoreMismatchError
from tiered_storage.remote_log.metadata.life_cycle import GIVEN_BACK, expiry, held_error, why_lost, why_over
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, MetadataStore, RenewedAt
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import GrantedLeases, RefusedLease, Topic
from tiered_storage.remote_log.metadata.safety import MOST_SKEW_MS, AuditResult, DeletionFailure, Stop, printable
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection


class MemoryLeases:
    """See Leases."""

    def __init__(self, content: Content, clock: Clock) -> None:
        self._content, self._clock = content, clock

    def acquire(self, partition: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
        return _only(self.acquire_many([partition], owner, duration_ms))

    def acquire_many(self, partitions: Iterable[TopicIdPartition], owner: str, duration_ms: int) -> GrantedLeases:
        now = self._clock()
        expires_at = expiry(now, duration_ms)
        granted, refused = list[Lease](), list[RefusedLease]()
        with self._content.lock:
            for partition in sorted(set(partitions)):
                holder = self._content.leases.get(partition) or Lease(partition, owner, 0, GIVEN_BACK)
                if holder.owner != owner and holder.expires_at > now:
                    refused.append(RefusedLease(partition, held_error(replace(holder, topic_id_partition=partition))))
                    continue
                granted.append(Lease(partition, owner, holder.fencing_number + 1, expires_at))
                self._content.leases[partition] = granted[-1]
        return GrantedLeases(tuple(granted), tuple(refused))

    def heartbeat(self, lease: Lease, duration_ms: int) -> Lease:
        return _only(self.heartbeat_many([lease], duration_ms))

    def heartbeat_many(self, held: Sequence[Lease], duration_ms: int) -> GrantedLeases:
        expires_at = expiry(self._clock(), duration_ms)
        granted, refused = list[Lease](), list[RefusedLease]()
        with self._content.lock:
            for lease in held:
                lost = why_lost(lease, self._content.leases) or why_over(lease, self._content.leases)
                if lost is not None:
                    refused.append(RefusedLease(lease.topic_id_partition, lost))
                    continue
                granted.append(replace(lease, expires_at=expires_at))
                self._content.leases[lease.topic_id_partition] = granted[-1]
        return GrantedLeases(tuple(granted), tuple(refused))

    def check(self, lease: Lease) -> None:
        with self._content.lock:
            self._content.ensure_newest(lease)

    def fencing_number(self, partition: TopicIdPartition) -> int:
        with self._content.lock:
            return self._content.leases[partition].fencing_number if partition in self._content.leases else 0

    def release(self, lease: Lease) -> None:
        self.release_many([lease])

    def release_many(self, held: Sequence[Lease]) -> None:
        with self._content.lock:
            for lease in held:
                if why_lost(lease, self._content.leases) is None:
                    self._content.leases[lease.topic_id_partition] = replace(lease, expires_at=GIVEN_BACK)

    def begin_above(self, numbers: Mapping[TopicIdPartition, int]) -> None:
        with self._content.lock:
            for partition, number in numbers.items():
                newest = self._content.leases.get(partition) or Lease(partition, "", 0, GIVEN_BACK)
                highest = max(number, newest.fencing_number)
                self._content.leases[partition] = replace(newest, fencing_number=highest)

    def held(self) -> Sequence[Lease]:
        now = self._clock()
        with self._content.lock:
            running = [lease for lease in self._content.leases.values() if lease.expires_at > now]
        running.sort(key=lambda lease: -lease.expires_at)
        named_by_id = (replace(each.topic_id_partition, topic=each.topic_id_partition.topic_id) for each in running)
        return [replace(lease, topic_id_partition=by_id) for lease, by_id in zip(running, named_by_id, strict=True)]

    def end(self, partition: TopicIdPartition, ended_by: str) -> Lease | None:
        with self._content.lock:
            holder = self._content.leases.get(partition)
            if holder is None or holder.expires_at <= self._clock():
                return None
            self._content.leases[partition] = Lease(partition, ended_by, holder.fencing_number + 1, GIVEN_BACK)
            return holder


class MemoryTopics:
    """See Topics."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        with self._content.lock:
            return self._content.topics.get((cluster_id, topic_id))

    def put(self, topic: Topic) -> None:
        self.change(topic.cluster_id, topic.topic_id, lambda _: topic)

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:
        with self._content.deciding():
            wanted = change(self._content.topics.get((cluster_id, topic_id)))
            self._content.topics[cluster_id, topic_id] = wanted
            return wanted

    def named(self, name: str) -> Sequence[Topic]:
        found = (topic for topic in self.list() if topic.name == name)
        return sorted(found, key=lambda topic: (topic.cluster_id, topic.topic_id))

    def list(self) -> Sequence[Topic]:
        with self._content.lock:
            found = [*self._content.topics.values()]
        return sorted(found, key=lambda topic: (topic.cluster_id, topic.name, topic.topic_id))


class MemorySafety:
    """See Safety."""

    def __init__(self, content: Content, clock: Clock) -> None:
        self._content, self._clock = content, clock

    def stop(self, reason: str, stopped_by: str) -> None:
        with self._content.deciding():
            self._content.stop = Stop(printable(reason), printable(stopped_by), self._clock())

    def lift(self, lifted_by: str, before: int | None = None) -> None:
        del lifted_by
        with self._content.deciding():
            stop = self._content.stop
            if stop is not None and (before is None or stop.stopped_at <= before):
                self._content.stop = None

    def stopped(self) -> Stop | None:
        with self._content.lock:
            return self._content.stop

    def put_audit_result(self, result: AuditResult) -> None:
        key = (result.cluster_id, result.topic_id, result.deep)
        with self._content.deciding():
            known = self._content.results.get(key)
            if known is None or not result.audited_at < known.audited_at <= self._clock() + MOST_SKEW_MS:
                self._content.results[key] = replace(result, message=printable(result.message))

    def audit_results(self, cluster_id: str, topic_id: str) -> Sequence[AuditResult]:
        with self._content.lock:
            found = (self._content.results.get((cluster_id, topic_id, deep)) for deep in (False, True))
            return [result for result in found if result is not None]

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:
        with self._content.lock:
            for segment_id, error in errors.items():
                new = DeletionFailure(segment_id, 0, now, now, "")
                known = self._content.failures.get(segment_id, new)
                counted = replace(known, attempts=known.attempts + 1, last_failed_at=now, error=printable(error))
                self._content.failures[segment_id] = counted

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        with self._content.lock:
            for segment_id in segment_ids:
                self._content.failures.pop(segment_id, None)

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:
        with self._content.lock:
            found = [failure for _, failure in sorted(self._content.failures.items(), key=lambda item: item[0])]
        for failure in found:
            partition = failure.segment_id.topic_id_partition
            if selection.matches(partition.topic, partition.partition):
                yield failure


class MemoryIdentity:
    """See MetadataIdentity."""

    def __init__(self, content: Content) -> None:
        self._content = content

    @property
    def metadata_uuid(self) -> str:
        return self._content.metadata_uuid

    def bound_store_uuid(self) -> str | None:
        return self._content.bound_store_uuid

    def bind_store(self, uuid: str) -> None:
        with self._content.lock:
            bound = self._content.bound_store_uuid
            if bound not in {None, uuid}:
                raise StoreMismatchError(
                    f"{self._content.where}: these metadata belong to object store {bound}, not to {uuid}: correct "
                    "rsm.config.url or rlmm.config.url so that they belong together"
                )
            self._content.bound_store_uuid = uuid


class MemoryClockReadings:
    """See ClockReadings."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def read(self, boot_id: str) -> ClockReading | None:
        with self._content.lock:
            return self._content.clock_readings.get(boot_id)

    def latest(self) -> ClockReading | None:
        with self._content.lock:
            return max(self._content.clock_readings.values(), key=lambda each: each.wall, default=None)

    def latest_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:
        return self.latest() or self._newest(renewed_at())

    def begin(self, renewed_at: RenewedAt) -> None:
        if self.latest() is None and (newest := self._newest(renewed_at())) is not None:
            with self._content.lock:
                self._content.clock_readings.setdefault("", newest)

    def record(self, reading: ClockReading) -> None:
        with self._content.lock:
            self._content.clock_readings.pop("", None)
            self._content.clock_readings[reading.boot_time.boot_id] = reading

    def forget_later_than(self, wall: int) -> None:
        with self._content.lock:
            kept = {boot: each for boot, each in self._content.clock_readings.items() if each.wall <= wall}
            self._content.clock_readings = kept

    def _newest(self, renewed_at: int | None) -> ClockReading | None:
        with self._content.lock:
            times = [segment.event_timestamp for segment in self._content.segments.values()]
        newest = max([*times, *([] if renewed_at is None else [renewed_at])], default=None)
        return None if newest is None else ClockReading.of_newest_time(newest)


class MemoryMetadata:
    """See MetadataStore. memory://name is one store for all who open it in this process."""

    def __init__(self, content: Content, clock: Clock) -> None:
        self._content = content
        self.segments = MemorySegments(content)
        self.leases = MemoryLeases(content, clock)
        self.topics = MemoryTopics(content)
        self.safety = MemorySafety(content, clock)
        self.identity = MemoryIdentity(content)
        self.generation = Generations(content)
        self.clock_readings = MemoryClockReadings(content)

    @staticmethod
    def open(
        url: str, clock: Clock, *, busy_timeout_ms: int, create: bool, configs: Mapping[str, str]
    ) -> MetadataStore:
        """Open the store `url` of the space that the option `space` names."""
        del busy_timeout_ms  # nobody holds the lock for long
        place = _place(url, configs)
        if not create and not is_known(place):
            raise MetadataMissingError(f"{place}: there are no metadata: begin a process with 'create'")
        return MemoryMetadata(content_of(place), clock)

    @staticmethod
    def is_there(url: str, configs: Mapping[str, str]) -> bool:
        return is_known(_place(url, configs))

    def work_area_key(self) -> bytes:
        return self._content.work_area_key

    def check_integrity(self) -> None:
        """Memory has no structure that could be broken."""

    def spend_reserve(self) -> None:
        """No room is reserved."""

    def copy_to(self, target: Path) -> None:
        with self._content.lock, target.open("x", encoding="utf-8") as file:
            json.dump([str(segment) for segment in self._content.segments.values()], file)

    def close(self) -> None:
        """The content stays for the next one to open it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place(url: str, configs: Mapping[str, str]) -> str:
    return f"{configs['space']}, {url}"


def _only(leases: GrantedLeases) -> Lease:
    for refused in leases.refused:
        raise refused.reason
    return leases.granted[0]
