from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import RemoteLogFiles, a_copied_remote_log, flip_bit, segments_of
from tiered_storage.errors import RemoteStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, encode_leader_epochs
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, encode_aborted_transactions
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, encode_producer_snapshot
from tiered_storage.remote_log.audit.deep_audit import audit_segment
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.index_bundle import build_bundle, parse_bundle
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

Contents = dict[IndexKind, bytes]


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


def audited(files: RemoteLogFiles, segment: RemoteLogSegmentMetadata | None = None) -> tuple[Anomaly, ...]:
    """Audit the second segment, or one with other metadata."""
    with files.open() as remote_log:
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        return audit_segment(segment or segments_of(remote_log)[1], remote_log.context.storage, RateLimit())


def rewrite(files: RemoteLogFiles, change: Callable[[Contents], None], data: bytes | None = None) -> Any:
    """Send the second segment as if what `change` makes of its bundle, and `data`, had been sent from the start."""
    path, bundle_path, marker_path = (files.objects(f".{suffix}")[1] for suffix in ("log", "indexes", "commit"))
    path.write_bytes(path.read_bytes() if data is None else data)
    contents = parse_bundle(bundle_path.read_bytes(), "bundle")
    change(contents)
    manifest = Manifest.parse(contents[IndexKind.MANIFEST], "manifest")
    contents[IndexKind.MANIFEST] = replace(manifest, data_crc32c=crc32c(path.read_bytes())).to_bytes()
    bundle = build_bundle(contents)
    bundle_path.write_bytes(bundle)
    marker = CommitMarker(
        manifest.segment_id.id, path.stat().st_size, crc32c(path.read_bytes()), len(bundle), crc32c(bundle)
    )
    marker_path.write_bytes(marker.to_bytes())
    with files.open() as remote_log:
        segment = segments_of(remote_log)[1]
    return replace(segment, custom_metadata=marker.custom_metadata())


def unchanged(_: Contents) -> None:
    """Leave a bundle as it is."""


def only(anomalies: tuple[Anomaly, ...]) -> str:
    """Return the message of the one anomaly, whose kind must be that of disagreement."""
    [anomaly] = anomalies
    assert anomaly.kind is AnomalyKind.WRONG_CHECKSUM
    assert anomaly.segment_id is not None
    return anomaly.message


def test_a_sound_segment_has_nothing_wrong(files: RemoteLogFiles) -> None:
    assert audited(files) == ()
    assert audited(files, rewrite(files, unchanged)) == ()


def test_a_flipped_bit_in_the_data_is_found_and_its_batch_named(files: RemoteLogFiles) -> None:
    path = files.objects(".log")[1]
    flip_bit(path, path.stat().st_size - 3)

    assert "its bytes have CRC-32C" in only(audited(files))


def test_data_that_were_broken_when_they_were_sent_are_found_by_their_batch(files: RemoteLogFiles) -> None:
    content = bytearray(files.objects(".log")[1].read_bytes())
    content[100] ^= 1

    message = only(audited(files, rewrite(files, unchanged, bytes(content))))

    assert "it was copied so" in message
    assert "at byte 0" in message


def changed(kind: IndexKind, position: int, replacement: bytes) -> Callable[[Contents], None]:
    def change(contents: Contents) -> None:
        content = bytearray(contents[kind])
        content[position : position + len(replacement)] = replacement
        contents[kind] = bytes(content)

    return change


@pytest.mark.parametrize(
    "kind",
    [
        IndexKind.REMOTE_LOG_INDEX,
        IndexKind.REMOTE_OFFSET_INDEX,
        IndexKind.REMOTE_TIME_INDEX,
        IndexKind.OFFSET,
        IndexKind.TIMESTAMP,
        IndexKind.PRODUCER_SNAPSHOT,
    ],
)
def test_every_index_that_lacks_its_last_byte_is_found(files: RemoteLogFiles, kind: IndexKind) -> None:
    def cut(contents: Contents) -> None:
        contents[kind] = contents[kind][:-1]

    assert len(audited(files, rewrite(files, cut))) == 1


@pytest.mark.parametrize(
    ("kind", "position", "replacement"),
    [
        (IndexKind.OFFSET, 4, struct.pack(">i", 1)),
        (IndexKind.OFFSET, 0, struct.pack(">i", 3)),
        (IndexKind.TIMESTAMP, 0, struct.pack(">q", 1_700_000_014_001)),
        (IndexKind.REMOTE_OFFSET_INDEX, 0, struct.pack(">i", 1)),
        (IndexKind.REMOTE_TIME_INDEX, 0, struct.pack(">q", 5)),
    ],
)
def test_an_index_that_is_sound_in_itself_but_disagrees_with_the_log_is_found(
    files: RemoteLogFiles, kind: IndexKind, position: int, replacement: bytes
) -> None:
    message = only(audited(files, rewrite(files, changed(kind, position, replacement))))

    assert "disagrees with its log" in message


def test_a_remote_log_index_of_another_segment_is_found(files: RemoteLogFiles) -> None:
    other = parse_bundle(files.objects(".indexes")[0].read_bytes(), "bundle")

    def swap(contents: Contents) -> None:
        contents[IndexKind.REMOTE_LOG_INDEX] = other[IndexKind.REMOTE_LOG_INDEX]

    assert "remoteLogIndex" in only(audited(files, rewrite(files, swap)))


@pytest.mark.parametrize(
    ("figure", "value", "expected"),
    [
        ("batch_count", 3, "3 batches"),
        ("record_count", 9, "9 records"),
        ("max_timestamp", 1_700_000_019_001, "largest timestamp"),
    ],
)
def test_a_manifest_whose_figures_are_not_those_of_the_log_is_found(
    files: RemoteLogFiles, figure: str, value: int, expected: str
) -> None:
    def change(contents: Contents) -> None:
        manifest = Manifest.parse(contents[IndexKind.MANIFEST], "manifest")
        changed: Any = {figure: value}
        contents[IndexKind.MANIFEST] = replace(manifest, **changed).to_bytes()

    assert expected in only(audited(files, rewrite(files, change)))


def test_metadata_with_another_largest_timestamp_are_found(files: RemoteLogFiles) -> None:
    segment = rewrite(files, unchanged)

    assert "in the metadata 5" in only(audited(files, replace(segment, max_timestamp=5)))


def test_a_lineage_that_is_not_the_segments_is_found(files: RemoteLogFiles) -> None:
    def change(contents: Contents) -> None:
        contents[IndexKind.LEADER_EPOCH] = encode_leader_epochs([EpochEntry(0, 0), EpochEntry(3, 12)])

    assert "its epochs" in only(audited(files, rewrite(files, change)))


def test_aborts_that_no_marker_ends_and_producers_of_the_future_are_found(files: RemoteLogFiles) -> None:
    def change(contents: Contents) -> None:
        contents[IndexKind.TRANSACTION] = encode_aborted_transactions([AbortedTxn(7, 10, 12, 13)])
        producer = ProducerSnapshotEntry(7, 0, 1, 99, 0, 5, -1, -1)
        contents[IndexKind.PRODUCER_SNAPSHOT] = encode_producer_snapshot([producer])

    messages = [anomaly.message for anomaly in audited(files, rewrite(files, change))]

    assert len(messages) == 2
    assert any("no marker ends" in message for message in messages)
    assert any("past the segment's end" in message for message in messages)


@pytest.mark.parametrize("kind", [IndexKind.OFFSET, IndexKind.REMOTE_TIME_INDEX, IndexKind.LEADER_EPOCH])
def test_an_index_that_is_not_there_is_named(files: RemoteLogFiles, kind: IndexKind) -> None:
    def change(contents: Contents) -> None:
        del contents[kind]

    assert f"no index {kind.name}" in only(audited(files, rewrite(files, change)))


def test_a_bundle_that_is_gone_does_not_hide_what_is_wrong_with_the_data(files: RemoteLogFiles) -> None:
    files.objects(".indexes")[1].unlink()
    flip_bit(files.objects(".log")[1], 200)

    assert [anomaly.kind for anomaly in audited(files)] == [AnomalyKind.MISSING_OBJECT, AnomalyKind.WRONG_CHECKSUM]


def test_a_store_that_fails_is_no_anomaly(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RemoteStorageError("down for a while")

    monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_log_segment", fail)

    with pytest.raises(RemoteStorageError, match="down for a while"):
        audited(files)


def test_everything_that_is_read_counts_towards_the_rate(files: RemoteLogFiles) -> None:
    slept: list[float] = []
    with files.open() as remote_log:
        segment = segments_of(remote_log)[1]
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        audit_segment(segment, remote_log.context.storage, RateLimit(1000, lambda: 0.0, slept.append))

    read = files.objects(".log")[1].stat().st_size
    assert slept[-1] * 1000 >= read
