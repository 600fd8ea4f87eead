"""The ledger of acknowledged records, and the judgement whether each of them is in the tiers exactly once.

Each record has a key of its own. The brokers' acknowledgement names partition and offset; it is written to a file, a
line a record. Both tiers are then read whole: the remote one by Remote Log's reader, the brokers' by Kafka's consumer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation

SILENCE_SECONDS = 60.0
_BATCH_SECONDS = 0.2
MOST_NAMED = 5


class LedgerError(TieredStorageError):
    """A tier could not be read whole."""


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the place of a record that was delivered, to a broker or to a consumer."""
        return cls(str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


Tier = Mapping[Place, Sequence[bytes]]
"""The keys of all records that a tier gives for each place: one, unless it gives an offset twice."""


class Ledger:
    """What the brokers acknowledged, also in the file at `path`. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Begin an empty ledger."""
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._places: dict[bytes, Place] = {}
        self._lock = Lock()

    def acknowledge(self, key: bytes, place: Place) -> None:
        """Write down one record."""
        with self._lock:
            self._places[key] = place
            self._file.write(f"{key.decode()},{place.topic},{place.partition},{place.offset}\n")

    def __len__(self) -> int:
        return len(self._places)

    def acknowledged(self) -> dict[bytes, Place]:
        """Return the place of each acknowledged record, by its key."""
        with self._lock:
            return dict(self._places)


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """How many acknowledged records there are, and where: in the remote tier; else on the brokers only; else lost.

    `twice` counts records at more than one place, and offsets that a tier gives more than once. `trimmed` counts the
    remote records that the brokers have no more.
    """

    acknowledged: int
    remote: int
    local: int
    lost: int
    twice: int
    trimmed: int = 0
    examples: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether every acknowledged record is in the tiers exactly once."""
        return self.lost == 0 and self.twice == 0

    def __add__(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(
            self.acknowledged + other.acknowledged,
            self.remote + other.remote,
            self.local + other.local,
            self.lost + other.lost,
            self.twice + other.twice,
            self.trimmed + other.trimmed,
            (*self.examples, *other.examples)[:MOST_NAMED],
        )


def judge(acknowledged: Mapping[bytes, Place], remote: Tier, local: Tier) -> dict[str, RecordCounts]:
    """Return the counts of each topic that has records anywhere."""
    by_topic: defaultdict[str, dict[bytes, Place]] = defaultdict(dict)
    for key, place in acknowledged.items():
        by_topic[place.topic][key] = place
    topics = {*by_topic, *(place.topic for place in (*remote, *local))}
    return {topic: _judge(by_topic[topic], _of(topic, remote), _of(topic, local)) for topic in sorted(topics)}


def _of(topic: str, tier: Tier) -> Tier:
    return {place: keys for place, keys in tier.items() if place.topic == topic}


def _judge(acknowledged: Mapping[bytes, Place], remote: Tier, local: Tier) -> RecordCounts:
    in_remote = {key for key, place in acknowledged.items() if key in remote.get(place, ())}
    in_local = {key for key, place in acknowledged.items() if key in local.get(place, ())}
    lost = acknowledged.keys() - in_remote - in_local
    places: defaultdict[bytes, set[Place]] = defaultdict(set)
    for tier in (remote, local):
        for place, keys in tier.items():
            for key in keys:
                places[key].add(place)
    moved = {key: found for key, found in places.items() if len(found) > 1}
    repeated = [place for tier in (remote, local) for place, keys in tier.items() if len(keys) > 1]
    examples = [
        *(f"lost: {key.decode()}, acknowledged in {acknowledged[key]}" for key in sorted(lost)[:MOST_NAMED]),
        *(f"twice: {key.decode()}, in {' and '.join(map(str, found))}" for key, found in moved.items()),
        *(f"twice: {place}" for place in repeated),
    ]
    return RecordCounts(
        acknowledged=len(acknowledged),
        remote=len(in_remote),
        local=len(in_local - in_remote),
        lost=len(lost),
        twice=len(moved) + len(repeated),
        trimmed=len(in_remote - in_local),
        examples=tuple(examples[:MOST_NAMED]),
    )


def read_remote(remote_log: RemoteLogManager, partitions: Iterable[TopicIdPartition] | None = None) -> Tier:
    """Read the remote tier by our reader, without aborted records, up to the end of each partition's last segment."""
    found: defaultdict[Place, list[bytes]] = defaultdict(list)
    chosen = list(remote_log.context.segments.list_partitions()) if partitions is None else list(partitions)
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        for each in chosen:
            snapshot = reader.snapshot(each)
            if snapshot.remote_end <= snapshot.log_start_offset:
                continue
            committed = Isolation.READ_COMMITTED
            for record in reader.records(
                each, snapshot.log_start_offset, end_offset=snapshot.remote_end, isolation=committed
            ):
                found[Place(each.topic, each.partition, record.offset)].append(record.key or b"")
    return found


def read_local(properties: Mapping[str, Any], topics: Iterable[str]) -> Tier:
    """Read `topics` by Kafka's consumer, from each partition's first record to its end.

    That is what the brokers hold; through a gateway, it is both tiers.

    Raises LedgerError if neither a record nor an end comes for SILENCE_SECONDS.
    """
    found: defaultdict[Place, list[bytes]] = defaultdict(list)
    settings = {
        "group.id": "ledger",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "check.crcs": True,
        **properties,
    }
    with closing(Consumer(settings)) as consumer:
        known = consumer.list_topics(timeout=SILENCE_SECONDS).topics
        open_ends = {(topic, number) for topic in topics for number in known[topic].partitions}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in open_ends])
        silent_since = time.monotonic()
        while open_ends:
            # It waits for all of them, or for its time limit.
            messages = consumer.consume(1000, timeout=_BATCH_SECONDS)
            if messages:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > SILENCE_SECONDS:
                raise LedgerError(f"the servers give nothing more of {sorted(open_ends)} for {SILENCE_SECONDS:g} s")
            for message in messages:
                place, error = Place.of(message), message.error()
                if error is None:
                    found[place].append(message.key() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ends.discard((place.topic, place.partition))
                elif not error.retriable():
                    raise KafkaException(error)
    return found
