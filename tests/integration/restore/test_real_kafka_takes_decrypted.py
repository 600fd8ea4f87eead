"""Encrypted and compressed segments are restored as a broker wrote them, and Kafka's DumpLogSegments accepts them."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import run_on
from support.kafka_clients import CODECS
from support.key_rings import ring_of_three
from support.records import varied_records
from support.remote_logs import RemoteLogFiles
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.indexes.remote_log_index import iterate_entries
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.transforms.encoding import FrameHead

TOPIC = "secret"
ENCODED = {"remote.storage.enable": True, "remote.encryption.enabled": True, "remote.compression.enabled": True}
SEGMENTS = {"internal.segment.bytes": "3000000"}


@pytest.fixture(scope="module")
def files(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> RemoteLogFiles:
    """A topic of a real broker, batches compressed and not, copied encrypted."""
    root = tmp_path_factory.mktemp("secret")
    with RealKafka(kafka_programs, root / "broker") as kafka:
        kafka.client.create_topic(TOPIC, 1, SEGMENTS)
        for number, codec in enumerate(CODECS):
            kafka.client.produce(TOPIC, varied_records(12_000, seed=number), codec=codec, batch_num_messages=500)
        kafka.stop()
    files = RemoteLogFiles(
        root,
        properties={
            "log.dirs": [str(kafka.log_dir)],
            "topics": {TOPIC: ENCODED},
            "rsm.config.encryption.key.ring.file": str(ring_of_three(root / "keys")),
            "rsm.config.encryption.key.pair.id": "first",
        },
    )
    result = run_on(files, "copy")
    assert result.exit_code == 0, result.err
    return files


def test_kafkas_tool_accepts_what_comes_back(
    files: RemoteLogFiles, kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    [log_dir] = files.properties["log.dirs"]
    local = {each.base_offset: each for each in list_segments(Path(log_dir) / f"{TOPIC}-0")}
    back: list[Path] = []
    with files.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        for segment in remote_log.context.segments.list_remote_log_segments(partition):
            fetched = b"".join(remote_log.context.storage.fetch_log_segment(segment))
            assert fetched == local[segment.start_offset].log_path.read_bytes()
            for kind, suffix in ((IndexKind.OFFSET, "index"), (IndexKind.TIMESTAMP, "timeindex")):
                (tmp_path / f"{segment.start_offset:020}.{suffix}").write_bytes(
                    remote_log.context.storage.fetch_index(segment, kind)
                )
            back.append(tmp_path / f"{segment.start_offset:020}.log")
            back[-1].write_bytes(fetched)
    assert back
    dumped = kafka_programs.dump_log_segments([*back, *(path.with_suffix(".index") for path in back)])
    for path in back:
        assert "isvalid: true" in dumped[path]
        assert "isvalid: false" not in dumped[path]
    assert all(fetched[:61] not in path.read_bytes() for path in files.objects(".log"))


def test_each_entry_of_the_remote_log_index_is_a_chunk_of_the_object(files: RemoteLogFiles) -> None:
    """Its rdi has the place in the log; the manifest's chunk table, the place in the object."""
    with files.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        for segment in remote_log.context.segments.list_remote_log_segments(partition):
            manifest = Manifest.parse(remote_log.context.storage.fetch_index(segment, IndexKind.MANIFEST), "manifest")
            entries = [
                *iterate_entries(remote_log.context.storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX), "index")
            ]
            assert len(manifest.chunks) > 1
            assert [entry.length for entry in entries] == [chunk.length for chunk in manifest.chunks]
            in_log = accumulate((chunk.length for chunk in manifest.chunks), initial=0)
            assert [*(entry.position for entry in entries), segment.size] == [*in_log]

            [name] = {entry.object_name for entry in entries}
            stored = (files.store / name).read_bytes()
            *places, end = accumulate((chunk.stored for chunk in manifest.chunks), initial=0)
            assert end == len(stored) < segment.size
            heads = [FrameHead.parse(stored[place:], name, place) for place in places]
            assert [head.number for head in heads] == [*range(len(heads))]
            assert tuple(head.chunk for head in heads) == manifest.chunks
