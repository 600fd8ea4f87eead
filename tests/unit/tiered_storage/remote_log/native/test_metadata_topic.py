"""Read the metadata topic from brokers whose answers have no room for every partition, and from damaged logs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.command_line import mentions, run_on
from support.native_tier import NativeTier, a_native_tier
from support.remote_logs import NOW
from tiered_storage.errors import SourceClusterError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, read_batch_header
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.remote_log.native.metadata_topic import TOPIC, BrokersMetadataTopic
from tiered_storage.remote_log.native.replay import Replay

BATCHES = 4
TWO_MORE = [Record(BATCHES + at, NOW, None, b"another") for at in range(2)]


@pytest.fixture
def tier(tmp_path: Path) -> NativeTier:
    return a_native_tier(tmp_path)


class OneBroker:
    """Brokers' answers about the topic: each Fetch has one batch at most, of the first partition that was asked for."""

    settings = SimpleNamespace(bootstrap=["a-broker:9092"])

    def __init__(self, partitions: int, per_answer: int = 1) -> None:
        self.logs = {number: [batch_at(offset) for offset in range(BATCHES)] for number in range(partitions)}
        self.per_answer = per_answer
        self.end = BATCHES

    def metadata(self, topics: Sequence[str]) -> Any:
        every = [TopicPartition(TOPIC, number) for number in self.logs]
        found = SimpleNamespace(error_code=0, partitions=self.logs, topic_partitions=every)
        return SimpleNamespace(topics=dict.fromkeys(topics, found))

    def list_offsets(self, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, ListedOffset]:
        earliest = int(OffsetSpec.EARLIEST)
        return {each: ListedOffset(0 if spec == earliest else self.end, -1, -1) for each, spec in asked.items()}

    def fetch(self, positions: Iterable[FetchPosition], _: FetchBuffer, limits: FetchLimits) -> FetchAnswer:
        del limits
        found = [
            self.logs[each.partition][min(each.offset, BATCHES - 1)] if at < self.per_answer else b""
            for at, each in enumerate(positions)
        ]
        return FetchAnswer(
            0.0,
            tuple(
                FetchedPartition(TOPIC, each.partition, 0, BATCHES, BATCHES, 0, (), -1, memoryview(raw))
                for each, raw in zip(positions, found, strict=True)
            ),
        )

    def close(self) -> None:
        """Nothing is open."""


def test_partitions_that_an_answer_has_no_room_for_are_asked_for_again() -> None:
    topic = BrokersMetadataTopic(cast(ClusterClient, OneBroker(partitions=3)))

    found = {(record.partition, record.offset) for record in topic.read({})}

    assert found == {(number, offset) for number in range(3) for offset in range(BATCHES)}


def test_a_batch_that_never_comes_is_an_error() -> None:
    topic = BrokersMetadataTopic(cast(ClusterClient, OneBroker(partitions=2, per_answer=0)))

    with pytest.raises(SourceClusterError, match="partition 0 at 0, partition 1 at 0"):
        list(topic.read({}))


def test_brokers_damaged_batch_is_named_by_partition_and_offset() -> None:
    broker = OneBroker(partitions=2)
    broker.logs[1][2] = broken(broker.logs[1][2])
    topic = BrokersMetadataTopic(cast(ClusterClient, broker))

    with pytest.raises(SourceClusterError, match=r"partition 1 .* offset 2"):
        list(topic.read({}))


def test_a_damaged_batch_at_the_end_is_counted_once() -> None:
    """Its header is sound: with a wrong checksum of records, the rest of the log is read."""
    broker = OneBroker(partitions=1)
    last = broker.logs[0][BATCHES - 1]
    broker.logs[0][BATCHES - 1] = encoded = bytes(encode_batch([Record(BATCHES - 1, NOW, None, b"a"), *TWO_MORE]))
    assert len(encoded) > len(last)
    broker.logs[0][BATCHES - 1] = encoded[:-1] + b"\x7f"
    broker.end = BATCHES + len(TWO_MORE)
    topic, replay = BrokersMetadataTopic(cast(ClusterClient, broker)), Replay(TOPIC, "a-cluster")
    for _ in range(3):
        for record in topic.read(replay.positions):
            replay.apply(record)

    assert replay.positions == {0: broker.end}
    assert [mentions(each, "offset 3") for each in replay.shown].count(True) == 1
    assert replay.refused == BATCHES


def test_what_a_damaged_batch_hides_in_a_directory_is_reported(tier: NativeTier) -> None:
    first, second, *_ = list_segments(tier.files.log_directory / f"{TOPIC}-0")
    content = first.log_path.read_bytes()
    batches = [content[start:end] for start, end in pairwise(starts_in(content))]
    first.log_path.write_bytes(b"".join((batches[0], broken(batches[1]), *batches[2:])))

    listed = run_on(tier.files, "segments", "--json")

    assert listed.exit_code == 0
    assert mentions(listed.err, f"{TOPIC}-0, offset 1", f"to offset {second.base_offset - 1}")


def test_missing_partitions_of_a_directory_are_reported(tier: NativeTier) -> None:
    folder = tier.files.log_directory
    shutil.copytree(folder / f"{TOPIC}-0", folder / f"{TOPIC}-3")

    listed = run_on(tier.files, "segments", "--json")

    assert (listed.exit_code, len(listed.rows)) == (0, len(tier.segments))
    assert mentions(listed.err, TOPIC, "partitions 1, 2 ")


def test_a_topic_is_read_from_several_directories(tier: NativeTier, tmp_path: Path) -> None:
    """A broker spreads its partitions over its log.dirs."""
    folder, other = tier.files.log_directory, tmp_path / "second, disk"
    other.mkdir()
    (folder / f"{TOPIC}-0").rename(other / f"{TOPIC}-0")
    places = f"{folder},{str(other).replace(',', '%2C')}"
    tier.files.properties |= {"rlmm.config.url": f"file://{places}", "log.dirs": [str(folder), str(other)]}

    listed = run_on(tier.files, "segments", "--json")
    read = run_on(tier.files, "read", "orders", 0, "--max-records", 100, "--json")
    tier.files.properties["rlmm.config.url"] = f"file://{places},{tmp_path / 'third'}"
    missing = run_on(tier.files, "segments")

    assert (listed.exit_code, len(listed.rows)) == (0, len(tier.segments)), listed.err
    assert (read.exit_code, len(read.out.splitlines())) == (0, 35)
    assert missing.exit_code == 1
    assert mentions(missing.err, tmp_path / "third")


def test_a_damaged_partition_of_a_directory_is_refused(tier: NativeTier) -> None:
    (tier.files.log_directory / f"{TOPIC}-0" / "partition.metadata").write_text("version: 0\ntopic_id: no-id\n")
    shutil.copytree(tier.files.log_directory / f"{TOPIC}-0", tier.files.log_directory / f"{TOPIC}-1")
    (tier.files.log_directory / f"{TOPIC}-1" / "partition.metadata").unlink()

    listed = run_on(tier.files, "segments")

    assert listed.exit_code == 1
    assert mentions(listed.err, f"{TOPIC}-0", "another broker")


def broken(batch: bytes) -> bytes:
    """Return `batch` with a magic that no Kafka has."""
    return batch[:16] + b"\x7f" + batch[17:]


def starts_in(content: bytes) -> list[int]:
    """Return where each batch begins, and the end."""
    starts = [0]
    while starts[-1] < len(content):
        starts.append(starts[-1] + read_batch_header(content, starts[-1]).size)
    return starts


def batch_at(offset: int) -> bytes:
    return bytes(encode_batch([Record(offset, NOW, None, b"a value")]))
