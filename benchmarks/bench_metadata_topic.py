"""A million records of a metadata topic: the start of a host against confluent-kafka's own consumer, and look-ups.

A third of a million segments of 200 partitions, half of them deleted: what a metadata store has after some years. The
consumer reads all records of the same topic and does nothing with them; a cold start reads them, applies them, and
writes the cache. A warm start has the cache already. Each is in a process of its own; the ways take turns, and the best
round counts, because other work can only add to the time. Look-ups are of random offsets, against the same look-ups in
the same tables by SQL alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from measuring import Goal, judge
from one_broker import arguments, one_broker

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.segment_rows import in_batches
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.topic_segments import write_beginnings
from tiered_storage.remote_log.metadata.topic.partitioner import metadata_partition
from tiered_storage.remote_log.metadata.topic.records import encode_record
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)

RECORDS = 1_000_000
TOPICS, PARTITIONS_OF_EACH = 20, 10
OFFSETS_OF_A_SEGMENT = 50_000
RECORDS_OF_LIVE, RECORDS_OF_DELETED = 2, 4
MEGABYTES = 500
LEAST_OF_CONSUMER, MOST_OF_COLD, MOST_TIMES_SQL = 0.5, 0.1, 2
LOOK_UPS = 2_000
COLD, WARM, CONSUME, LOOK_UP = "cold", "warm", "consume", "look-up"
CACHE, WRITER, SQL = "cache", "cache-of-the-writer", "metadata.sqlite"
TIMES_AT_ONCE = 10


def partitions() -> list[TopicIdPartition]:
    random = Random(405)  # noqa: S311 - content, no secret
    ids = [random_uuid(random.randbytes) for _ in range(TOPICS)]
    return [
        TopicIdPartition("benchmark", topic_id, partition, f"topic-of-the-benchmark-{number}")
        for number, topic_id in enumerate(ids)
        for partition in range(PARTITIONS_OF_EACH)
    ]


def segments_of_each(records: int) -> int:
    """Return the segments of a partition, an even number: half of them live, half deleted."""
    return 2 * (records // (TOPICS * PARTITIONS_OF_EACH * (RECORDS_OF_LIVE + RECORDS_OF_DELETED)))


def segments(records: int) -> Iterator[list[RemoteLogSegmentMetadata]]:
    """Yield all segments, one of each partition at a time."""
    random, every = Random(1176), partitions()  # noqa: S311 - content, no secret
    for number in range(segments_of_each(records)):
        start = number * OFFSETS_OF_A_SEGMENT
        yield [
            RemoteLogSegmentMetadata(
                RemoteLogSegmentId(partition, random_uuid(random.randbytes)),
                start,
                start + OFFSETS_OF_A_SEGMENT - 1,
                max_timestamp=1_700_000_000_000 + 60_000 * number,
                event_timestamp=1_700_000_000_100 + 60_000 * number,
                size=100 << 20,
                leader_epochs=(EpochEntry(number // 100, start),),
                fencing_number=number + 1,
            )
            for partition in every
        ]


def steps(segment: RemoteLogSegmentMetadata, *states: SegmentState) -> Iterator[bytes]:
    """Yield the records of steps of `segment`."""
    for state in states:
        custom = b"custom metadata of the store" if state is SegmentState.COPY_SEGMENT_FINISHED else None
        at = segment.event_timestamp + 1000 * state
        yield encode_record(RemoteLogSegmentMetadataUpdate(segment.segment_id, state, at, custom))


def history(records: int) -> Iterator[tuple[list[RemoteLogSegmentMetadata], list[tuple[TopicIdPartition, bytes]]]]:
    """Yield segments that begin, and the records of that time: when half have begun, the oldest are deleted."""
    kept: deque[RemoteLogSegmentMetadata] = deque()
    most = segments_of_each(records) // 2 * TOPICS * PARTITIONS_OF_EACH
    every = segments(records)
    while begun := list(chain.from_iterable(islice(every, TIMES_AT_ONCE))):
        values = [(each, encode_record(each)) for each in begun]
        values += [(each, value) for each in begun for value in steps(each, SegmentState.COPY_SEGMENT_FINISHED)]
        kept.extend(begun)
        while len(kept) > most:
            oldest = kept.popleft()
            ends = steps(oldest, SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED)
            values += [(oldest, value) for value in ends]
        yield begun, [(segment.topic_id_partition, value) for segment, value in values]


def open_store(root: Path, servers: str, cache: str = CACHE) -> TopicMetadataStore:
    options = {
        "remote.log.metadata.common.client.bootstrap.servers": servers,
        "remote.log.metadata.cache.directory": str(root / cache),
        "remote.log.metadata.topic.replication.factor": "1",
        "remote.log.metadata.topic.min.isr": "1",
    }
    url = f"sqlite:///{root / SQL}"
    return TopicMetadataStore.open(url, wall_clock, busy_timeout_ms=60_000, create=True, configs=options)


def fill(root: Path, servers: str, records: int) -> int:
    """Write the records, and what SQL has beside them; return how many records there are."""
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True, "log_level": 3})
    written = 0

    def delivered(error: Any, _: Any) -> None:
        failures.extend([error] if error is not None else [])

    with open_store(root, servers, WRITER) as store:
        topic = store.state.topic
        places = {each: metadata_partition(each, topic.partitions) for each in partitions()}
        for begun, values in history(records):
            with store.sql.database.writing() as connection:
                for some in in_batches(begun):
                    write_beginnings(connection, some)
            for partition, value in values:
                producer.produce(topic.name, value, partition=places[partition], on_delivery=delivered)
            written += len(values)
            producer.flush()
    if failures:
        raise SystemExit(f"the records were not written, nothing was measured: {failures[0]}")
    return written


def start(root: Path, servers: str) -> dict[str, float]:
    """Open the store and read all of the topic that its cache lacks."""
    begun = time.perf_counter()
    with open_store(root, servers) as store:
        store.state.catch_up()
        seconds = time.perf_counter() - begun
        consumed, skipped = sum(store.state.cache.consumed().values()), store.state.cache.skipped_count()
    assert not skipped
    return {"seconds": seconds, "records": consumed, "mebibytes": _peak()}


def consume(root: Path, servers: str) -> dict[str, float]:
    """Read all of the topic by confluent-kafka."""
    with open_store(root, servers, WRITER) as store:
        topic = store.state.topic
        ends = store.state.log.ends(topic, range(topic.partitions))
    begun = time.perf_counter()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
    found = 0
    while found < sum(ends.values()):
        found += len(consumer.consume(10_000, 1))
    seconds = time.perf_counter() - begun
    consumer.close()
    return {"seconds": seconds, "records": found, "mebibytes": _peak()}


def look_up(root: Path, servers: str) -> dict[str, float]:
    """Look for random offsets, in turns by the store and by SQL alone; return the medians (s)."""
    with open_store(root, servers) as store:
        store.state.catch_up()
        beside = SqlRemoteLogMetadataManager(store.state.cache.database)
        last = max(each.end_offset for each in store.segments.list_remote_log_segments(partitions()[0]))
        random, every = Random(32), partitions()  # noqa: S311 - content, no secret
        wanted = [(random.choice(every), random.randrange(last // 2 + 1, last)) for _ in range(LOOK_UPS)]
        taken: dict[str, list[float]] = {"ours": [], "sql": []}
        for partition, offset in wanted:
            for name, manager in (("ours", store.segments), ("sql", beside)):
                taken[name].append(_seconds_of(manager, partition, offset))
    return {name: sorted(each)[len(each) // 2] for name, each in taken.items()}


def _seconds_of(manager: RemoteLogMetadataManager, partition: TopicIdPartition, offset: int) -> float:
    begun = time.perf_counter()
    found = manager.remote_log_segment_metadata(partition, offset)
    seconds = time.perf_counter() - begun
    assert found is not None
    assert found.start_offset <= offset <= found.end_offset
    return seconds


def _peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


WAYS: dict[str, Callable[[Path, str], dict[str, float]]] = {
    COLD: start,
    WARM: start,
    CONSUME: consume,
    LOOK_UP: look_up,
}


def run(way: str, root: Path, servers: str) -> dict[str, float]:
    """Run a way in a new process, so that its memory is its own."""
    if way == COLD:
        shutil.rmtree(root / CACHE, ignore_errors=True)
    command = [sys.executable, __file__, "--way", way, str(root), servers]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, float] = json.loads(answer)
    if "seconds" in found:
        print(f"  {way:8} {found['seconds']:7.2f} s, {found['records']:,.0f} records, {found['mebibytes']:.0f} MiB")
    return found


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--way", nargs=3, help="used by this program itself")
    given = parser.parse_args()
    if given.way:
        way, root, servers = given.way
        print(json.dumps(WAYS[way](Path(root), servers)))
        return 0
    with one_broker(given.directory, "metadata-topic-") as (root, kafka):
        servers = kafka.bootstrap_servers
        records = fill(root, servers, given.records)
        found: dict[str, list[dict[str, float]]] = {}
        for number in range(given.rounds):
            # A warm start needs the cache of the cold one.
            for way in (CONSUME, COLD, WARM) if number % 2 else (COLD, WARM, CONSUME):
                found.setdefault(way, []).append(run(way, root, servers))
        looked = run(LOOK_UP, root, servers)
    for way, rounds in found.items():
        assert {each["records"] for each in rounds} == {records}, way
    return judge(goals(records, found, looked))


def goals(records: int, found: dict[str, list[dict[str, float]]], looked: dict[str, float]) -> list[Goal]:
    """Return the goals of the measured rounds."""
    cold, warm, consumed = (min(each["seconds"] for each in found[way]) for way in (COLD, WARM, CONSUME))
    memory = max(each["mebibytes"] for each in found[COLD])
    ours, sql = (1e6 * looked[name] for name in ("ours", "sql"))
    what = "metadata topic"
    return [
        Goal(
            f"{what}, cold start, {records:,} records",
            f"{cold:.2f} s",
            f"{consumed:.2f} s confluent-kafka",
            consumed / cold,
            LEAST_OF_CONSUMER,
        ),
        Goal(f"{what}, warm start", f"{warm:.2f} s", f"{cold:.2f} s cold", warm / cold, MOST_OF_COLD, is_most=True),
        Goal(f"{what}, look-up", f"{ours:.0f} us", f"{sql:.0f} us SQL alone", ours / sql, MOST_TIMES_SQL, is_most=True),
        Goal(
            f"{what}, cold start, memory",
            f"{memory:.0f} MiB",
            f"{MEGABYTES} MiB allowed",
            memory / MEGABYTES,
            1,
            is_most=True,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
