"""In which order a segment's objects are written, read and removed, and what the manifest has to agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_segments import INDEXES, copied, segment_bytes, segment_data, segment_metadata
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
)
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.clients.object_client import WrittenObject, delete_object
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import ObjectKind, parse_object_name
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

CONTENT = segment_bytes(10_000)


class RecordingDirectory(LocalDirectory):
    """A directory that remembers what was asked of it, and is full for names with a certain end."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: list[str] = []
        self.full_for = self.stuck = "nothing"
        self.before_creation: Callable[[], None] = lambda: None

    def put(
        self,
        name: str,
        size: int,
        chunks: Iterator[memoryview],
        *,
        more_follows: bool = False,
        at_most: bool = False,
    ) -> WrittenObject:
        self.calls.append(f"put {name.rpartition('.')[2]}{' ...' if more_follows else ''}")
        if name.endswith(self.full_for):
            raise RemoteStorageFullError(f"{name}: no room")
        return super().put(name, size, chunks, more_follows=more_follows, at_most=at_most)

    def create(self, name: str, content: bytes) -> bool:
        self.calls.append(f"create {name.rpartition('.')[2]}")
        if name.endswith(self.full_for):
            raise RemoteStorageFullError(f"{name}: no room")
        self.before_creation()
        return super().create(name, content)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        self.calls.append(f"get {name.rpartition('.')[2]} {start}+{length}")
        return super().get_range(name, start, length)

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        self.calls.append("delete " + ", ".join(name.rpartition(".")[2] for name in names))
        stuck = {name: RemoteStorageError(f"{name}: stuck") for name in names if name.endswith(self.stuck)}
        return {**stuck, **super().delete_many([name for name in names if name not in stuck])}


@pytest.fixture
def client(tmp_path: Path) -> RecordingDirectory:
    return RecordingDirectory(tmp_path)


@pytest.fixture
def storage(client: RecordingDirectory) -> ObjectRemoteStorageManager:
    return ObjectRemoteStorageManager(client)


def copy(storage: ObjectRemoteStorageManager) -> RemoteLogSegmentMetadata:
    metadata = segment_metadata(len(CONTENT))
    return copied(metadata, storage.copy_log_segment_data(metadata, segment_data(CONTENT)))


def with_manifest(manifest: Manifest) -> dict[IndexKind, bytes]:
    return {**INDEXES, IndexKind.MANIFEST: manifest.to_bytes()}


def test_the_marker_is_written_last(storage: ObjectRemoteStorageManager, client: RecordingDirectory) -> None:
    copy(storage)
    assert client.calls == ["put log ...", "put indexes ...", "create commit"]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_of_two_concurrent_copies_to_finish_counts(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, tmp_path: Path, seed: int
) -> None:
    metadata = segment_metadata(len(CONTENT))
    first = ObjectRemoteStorageManager(LocalDirectory(tmp_path))
    others = segment_data(segment_bytes(len(CONTENT), seed))
    finished: list[bytes] = []
    client.before_creation = lambda: finished.append(first.copy_log_segment_data(metadata, others))
    if seed == 0:
        # The same content: the two are one.
        custom_metadata = storage.copy_log_segment_data(metadata, segment_data(CONTENT))
        assert finished == [custom_metadata]
        storage.verify(copied(metadata, custom_metadata))
    else:
        with pytest.raises(RemoteObjectCorruptError, match="another attempt"):
            storage.copy_log_segment_data(metadata, segment_data(CONTENT))
        storage.verify(copied(metadata, finished[0]))


def test_once_a_segment_is_finished_another_attempt_writes_nothing(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory
) -> None:
    metadata = copy(storage)
    client.calls.clear()
    storage.copy_log_segment_data(replace(metadata, custom_metadata=None), segment_data(CONTENT))
    assert [call for call in client.calls if not call.startswith("get commit")] == []


def test_an_attempt_that_overtakes_the_finished_one_fails_and_every_look_at_the_bytes_finds_it(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, tmp_path: Path
) -> None:
    metadata = segment_metadata(len(CONTENT))
    first = ObjectRemoteStorageManager(LocalDirectory(tmp_path))
    finished: list[bytes] = []

    def while_it_is_sent() -> Iterator[memoryview]:
        finished.append(first.copy_log_segment_data(metadata, segment_data(CONTENT)))
        yield memoryview(segment_bytes(len(CONTENT), 1))

    late = replace(segment_data(CONTENT), chunks=while_it_is_sent())
    with pytest.raises(RemoteObjectCorruptError, match="another attempt"):
        storage.copy_log_segment_data(metadata, late)
    with pytest.raises(RemoteObjectCorruptError):
        storage.verify(copied(metadata, finished[0]))


def test_the_marker_is_removed_first(storage: ObjectRemoteStorageManager, client: RecordingDirectory) -> None:
    metadata = copy(storage)
    client.calls.clear()
    storage.delete_log_segment_data(metadata)
    assert client.calls == ["delete commit", "delete indexes, log"]


def test_all_markers_of_many_segments_are_removed_first(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory
) -> None:
    segments = [copy(storage), copy(storage)]
    client.calls.clear()

    assert storage.delete_segments(segments) == {}

    assert client.calls == ["delete commit, commit", "delete indexes, log, indexes, log"]
    assert list(client.list()) == []


@pytest.mark.parametrize("kind", [kind for kind in ObjectKind if kind is not ObjectKind.KEY])
def test_a_segment_whose_deletion_fails_is_reported_and_holds_up_no_other(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, kind: ObjectKind
) -> None:
    stuck, other = copy(storage), copy(storage)
    client.stuck = f"{stuck.segment_id.id}.{kind}"

    failed = storage.delete_segments([stuck, other])

    assert list(failed) == [stuck.segment_id.id]
    left = {found.name.rpartition(".")[2] for found in client.list() if stuck.segment_id.id in found.name}
    assert left == ({"log", "indexes", "commit"} if kind is ObjectKind.COMMIT_MARKER else {kind})
    assert not any(other.segment_id.id in found.name for found in client.list())
    client.stuck = "nothing"
    assert storage.delete_segments([stuck, other]) == {}
    assert list(client.list()) == []


def test_no_segment_counts_as_deleted_if_leftovers_cannot_be_listed(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [copy(storage), copy(storage)]

    def refused(_: object, __: object) -> None:
        raise RemoteStorageError("the folder cannot be read")

    monkeypatch.setattr(RecordingDirectory, "discard_unfinished_many", refused)
    assert set(storage.delete_segments(segments)) == {segment.segment_id.id for segment in segments}


@pytest.mark.parametrize("kind", [kind for kind in ObjectKind if kind is not ObjectKind.KEY])
def test_a_copy_that_fails_at_any_object_is_not_marked_as_whole(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, kind: ObjectKind
) -> None:
    client.full_for = f".{kind}"
    metadata = segment_metadata(len(CONTENT))
    with pytest.raises(RemoteStorageFullError):
        storage.copy_log_segment_data(metadata, segment_data(CONTENT))
    names = [parse_object_name(found.name) for found in client.list()]
    assert ObjectKind.COMMIT_MARKER not in {name.kind for name in names if name}
    storage.delete_log_segment_data(metadata)
    assert list(client.list()) == []


def test_a_deletion_removes_what_a_killed_copy_left(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, tmp_path: Path
) -> None:
    metadata = copy(storage)
    (data,) = (found.name for found in client.list() if found.name.endswith(".log"))
    (tmp_path / f"{data}.0123456789abcdef.tmp").write_bytes(b"half")
    storage.delete_log_segment_data(metadata)
    assert list(client.list()) == []


def test_indexes_take_one_request_or_two(storage: ObjectRemoteStorageManager, client: RecordingDirectory) -> None:
    metadata = copy(storage)
    client.calls.clear()
    storage.fetch_index(metadata, IndexKind.REMOTE_OFFSET_INDEX)
    assert client.calls == ["get indexes 0+65536"]
    storage.fetch_index(metadata, IndexKind.OFFSET)
    assert len(client.calls) == 3
    assert client.calls[2].endswith("+100000")


def test_a_manifest_that_is_handed_over_is_kept_and_completed(storage: ObjectRemoteStorageManager) -> None:
    metadata = segment_metadata(len(CONTENT))
    manifest = replace(Manifest.of(metadata), max_timestamp=77, batch_count=3, record_count=99)
    kept = copied(
        metadata, storage.copy_log_segment_data(metadata, segment_data(CONTENT, indexes=with_manifest(manifest)))
    )
    stored = Manifest.parse(storage.fetch_index(kept, IndexKind.MANIFEST), "manifest")
    assert stored.data_crc32c is not None
    assert replace(stored, data_crc32c=None) == manifest
    storage.verify(kept)


def test_bytes_that_changed_on_their_way_are_found(storage: ObjectRemoteStorageManager) -> None:
    metadata = segment_metadata(len(CONTENT))
    manifest = replace(Manifest.of(metadata), data_crc32c=0x12345678)
    with pytest.raises(RemoteObjectCorruptError, match="changed"):
        storage.copy_log_segment_data(metadata, segment_data(CONTENT, indexes=with_manifest(manifest)))


def test_another_segments_manifest_is_refused(storage: ObjectRemoteStorageManager) -> None:
    metadata = segment_metadata(len(CONTENT))
    other = Manifest.of(segment_metadata(len(CONTENT)))
    with pytest.raises(RemoteObjectCorruptError, match="manifest"):
        storage.copy_log_segment_data(metadata, segment_data(CONTENT, indexes=with_manifest(other)))


def test_data_of_another_size_than_the_metadata_tell_are_refused(storage: ObjectRemoteStorageManager) -> None:
    with pytest.raises(ConfigurationError, match=r"\b10000 .*\b9999 "):
        storage.copy_log_segment_data(segment_metadata(9999), segment_data(CONTENT))


def test_an_empty_segment_is_fetched_as_nothing(storage: ObjectRemoteStorageManager) -> None:
    metadata = segment_metadata(0)
    kept = copied(metadata, storage.copy_log_segment_data(metadata, segment_data(b"")))
    assert list(storage.fetch_log_segment(kept)) == []
    storage.verify(kept)


def test_metadata_that_disagree_with_the_store_do_not_verify(storage: ObjectRemoteStorageManager) -> None:
    metadata = copy(storage)
    with pytest.raises(RemoteObjectCorruptError, match="commit: has"):
        storage.verify(replace(metadata, custom_metadata=copy(storage).custom_metadata, size=9))
    with pytest.raises(RemoteObjectCorruptError, match="manifest"):
        storage.verify(replace(metadata, end_offset=metadata.end_offset + 1))


def test_metadata_of_a_segment_without_marker_are_not_made(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory
) -> None:
    copy(storage)
    names = {found.segment.kind: found.segment for found in storage.list_objects() if found.segment}
    delete_object(client, names[ObjectKind.DATA].names.commit_marker)
    with pytest.raises(RemoteObjectNotFoundError):
        storage.read_metadata(names[ObjectKind.DATA])


def test_metadata_are_not_made_from_objects_that_were_moved(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory, tmp_path: Path
) -> None:
    copy(storage)
    for found in list(client.list()):
        (tmp_path / found.name).rename(
            tmp_path / found.name.replace("/00000000000000004200-", "/00000000000000004201-")
        )
    (moved, *_) = (found.segment for found in storage.list_objects() if found.segment)
    with pytest.raises(RemoteObjectCorruptError, match="another segment"):
        storage.read_metadata(moved)


def test_a_range_is_read_in_bounded_pieces_when_they_are_asked_for(
    storage: ObjectRemoteStorageManager, client: RecordingDirectory
) -> None:
    content = segment_bytes(9 << 20)
    metadata = segment_metadata(len(content))
    kept = copied(metadata, storage.copy_log_segment_data(metadata, segment_data(content)))
    client.calls.clear()
    pieces = storage.fetch_log_segment(kept, 5)
    assert client.calls == []
    assert next(pieces) == content[5 : 5 + (4 << 20)]
    assert client.calls == ["get log 5+4194304"]
