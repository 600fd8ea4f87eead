"""The contract of RemoteStorageManager, checked with every implementation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from contract.object_stores import failing_data
from support.remote_segments import INDEXES, copied, partition, segment_bytes, segment_data, segment_metadata
from tiered_storage.clock import wall_clock
from tiered_storage.errors import (
    CorruptRecordError,
    DeletionRefusedError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.remote_log.model import UNKNOWN_SIZE, RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.retention.permission.clock_agreement import STORE_PRECISION_MS, ensure_store_agrees
from tiered_storage.remote_log.storage.clients.object_client import delete_object
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.documents.object_names import (
    STORE_CLOCK,
    ObjectKind,
    partition_folder,
    segment_object_names,
)
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

if TYPE_CHECKING:
    from contract.object_stores import StoreUnderTest
    from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
    from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

MIB = 1 << 20


def copy(storage: ObjectRemoteStorageManager, content: bytes, start_offset: int = 4200) -> RemoteLogSegmentMetadata:
    metadata = segment_metadata(len(content), start_offset)
    return copied(metadata, storage.copy_log_segment_data(metadata, segment_data(content)))


def overwrite(client: ObjectClient, name: str, content: bytes) -> None:
    client.put(name, len(content), iter((memoryview(content),)))


def read(client: ObjectClient, name: str) -> bytes:
    return client.get_range(name, 0, client.size(name))


def test_a_store_reads_its_time_from_the_same_object_each_time(storage: ObjectRemoteStorageManager) -> None:
    begun = wall_clock()
    store_time = storage.time_of_a_write()
    assert store_time is not None
    assert begun - STORE_PRECISION_MS <= store_time <= wall_clock() + STORE_PRECISION_MS
    assert ensure_store_agrees(wall_clock, storage, 1_000)
    with pytest.raises(DeletionRefusedError, match=r"clock\.max\.skew\.ms"):
        ensure_store_agrees(lambda: wall_clock() + 3_000, storage, 1_000)
    assert len(list(storage.list_objects(STORE_CLOCK))) == 1


def test_a_copied_segment_is_fetched_whole(storage: ObjectRemoteStorageManager) -> None:
    content = segment_bytes(3 * MIB + 17)
    metadata = copy(storage, content)
    assert b"".join(storage.fetch_log_segment(metadata)) == content


def test_a_large_segment_is_sent_in_parts_and_fetched_whole(storage: ObjectRemoteStorageManager) -> None:
    content = segment_bytes(20 * MIB + 1)
    metadata = copy(storage, content)
    pieces = list(storage.fetch_log_segment(metadata))
    assert b"".join(pieces) == content
    assert max(len(piece) for piece in pieces) <= 4 * MIB


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 0), (0, 99_999), (99_999, 99_999), (1, 1), (5, 77_777), (99_998, None), (0, None), (50_000, None)],
)
def test_both_ends_of_a_range_are_inclusive(storage: ObjectRemoteStorageManager, start: int, end: int | None) -> None:
    content = segment_bytes(100_000)
    metadata = copy(storage, content)
    expected = content[start:] if end is None else content[start : end + 1]
    assert b"".join(storage.fetch_log_segment(metadata, start, end)) == expected


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 1000), (1000, None), (1000, 1000), (0, -1)])
def test_a_range_outside_the_segment_is_refused(
    storage: ObjectRemoteStorageManager, start: int, end: int | None
) -> None:
    metadata = copy(storage, segment_bytes(1000))
    with pytest.raises(ValueError, match="not in it"):
        storage.fetch_log_segment(metadata, start, end)


def test_each_index_is_fetched_as_it_was_sent(storage: ObjectRemoteStorageManager) -> None:
    metadata = copy(storage, segment_bytes(1000))
    assert {kind: storage.fetch_index(metadata, kind) for kind in INDEXES} == INDEXES


def test_indexes_are_fetched_without_custom_metadata_too(storage: ObjectRemoteStorageManager) -> None:
    metadata = replace(copy(storage, segment_bytes(1000)), custom_metadata=None)
    assert storage.fetch_index(metadata, IndexKind.OFFSET) == INDEXES[IndexKind.OFFSET]
    assert b"".join(storage.fetch_log_segment(metadata)) == segment_bytes(1000)


def test_a_manifest_is_made_with_the_checksum_of_the_data(storage: ObjectRemoteStorageManager) -> None:
    metadata = copy(storage, b"123456789")
    manifest = Manifest.parse(storage.fetch_index(metadata, IndexKind.MANIFEST), "manifest")
    manifest.check_against(metadata, "manifest")
    assert manifest.data_crc32c == 0xE3069283


def test_a_kind_of_index_that_the_segment_lacks_is_not_found(storage: ObjectRemoteStorageManager) -> None:
    metadata = copy(storage, segment_bytes(1000))
    with pytest.raises(RemoteObjectNotFoundError, match="no index TRANSACTION"):
        storage.fetch_index(metadata, IndexKind.TRANSACTION)


def test_a_segment_that_was_never_copied_is_not_found(storage: ObjectRemoteStorageManager) -> None:
    there = copy(storage, segment_bytes(1000))
    missing = replace(segment_metadata(1000), custom_metadata=there.custom_metadata)
    name = segment_object_names(missing.segment_id, missing.start_offset).stem
    with pytest.raises(RemoteObjectNotFoundError, match=name):
        list(storage.fetch_log_segment(missing))
    with pytest.raises(RemoteObjectNotFoundError, match=name):
        list(storage.fetch_log_segment(missing, 10, 20))
    with pytest.raises(RemoteObjectNotFoundError, match=name):
        storage.fetch_index(missing, IndexKind.OFFSET)


def test_deleting_twice_is_no_error(storage: ObjectRemoteStorageManager) -> None:
    kept, gone = copy(storage, segment_bytes(1000)), copy(storage, segment_bytes(1000))
    storage.delete_log_segment_data(gone)
    storage.delete_log_segment_data(gone)
    with pytest.raises(RemoteObjectNotFoundError):
        list(storage.fetch_log_segment(gone))
    left = {found.segment.segment_id for found in storage.list_objects() if found.segment}
    assert left == {kept.segment_id}


def test_deleting_an_unknown_segment_is_no_error(storage: ObjectRemoteStorageManager) -> None:
    storage.delete_log_segment_data(segment_metadata(1000))


def test_a_half_written_segment_is_deleted(storage: ObjectRemoteStorageManager, client: ObjectClient) -> None:
    metadata = segment_metadata(1000)
    names = segment_object_names(metadata.segment_id, metadata.start_offset)
    overwrite(client, names.data, segment_bytes(1000))
    storage.delete_log_segment_data(metadata)
    assert list(storage.list_objects()) == []


def test_a_segment_known_by_bounds_is_deleted_whatever_offset_it_begins_at(storage: ObjectRemoteStorageManager) -> None:
    kept, begun = copy(storage, segment_bytes(1000), 4200), copy(storage, segment_bytes(1000), 5000)
    known = replace(begun, start_offset=4100, size=UNKNOWN_SIZE, custom_metadata=None)
    storage.delete_log_segment_data(known)
    storage.delete_log_segment_data(known)
    assert {found.segment.segment_id for found in storage.list_objects() if found.segment} == {kept.segment_id}


def test_the_same_copy_can_be_repeated(storage: ObjectRemoteStorageManager) -> None:
    content = segment_bytes(9 * MIB)
    metadata = segment_metadata(len(content))
    first = storage.copy_log_segment_data(metadata, segment_data(content))
    second = storage.copy_log_segment_data(metadata, segment_data(content, chunk_size=77_777))
    assert first == second
    assert b"".join(storage.fetch_log_segment(copied(metadata, first))) == content


def test_another_copy_under_the_same_id_is_refused_and_changes_nothing(
    storage: ObjectRemoteStorageManager, client: ObjectClient
) -> None:
    """A worker that was given up writes again after its successor finished the segment."""
    content = segment_bytes(9 * MIB)
    metadata = copy(storage, content)
    before = {found.name: read(client, found.name) for found in client.list()}
    late = replace(metadata, custom_metadata=None, state=SegmentState.COPY_SEGMENT_STARTED)
    other_indexes = {**INDEXES, IndexKind.TIMESTAMP: b"other"}
    for data in (segment_data(segment_bytes(9 * MIB, seed=1)), segment_data(content, indexes=other_indexes)):
        with pytest.raises(RemoteObjectCorruptError, match=r"\.commit") as raised:
            storage.copy_log_segment_data(late, data)
        assert metadata.segment_id.id in str(raised.value)
    assert {found.name: read(client, found.name) for found in client.list()} == before
    storage.verify(metadata)


@pytest.mark.parametrize("size", [MIB, 30 * MIB])
def test_a_source_that_fails_midway_leaves_nothing(
    storage: ObjectRemoteStorageManager, store: StoreUnderTest, size: int
) -> None:
    failure = CorruptRecordError("00000000000000004200.log", 17, "its checksum is wrong")
    metadata = segment_metadata(size)
    with pytest.raises(CorruptRecordError) as raised:
        storage.copy_log_segment_data(metadata, failing_data(segment_bytes(size), failure, after=size * 3 // 4))
    assert raised.value is failure
    assert list(storage.list_objects()) == []
    assert store.unfinished() == []


def test_a_source_may_fail_with_an_error_that_stores_raise_too(storage: ObjectRemoteStorageManager) -> None:
    failure = FileNotFoundError(2, "the segment is gone")
    metadata = segment_metadata(10 * MIB)
    with pytest.raises(FileNotFoundError) as raised:
        storage.copy_log_segment_data(metadata, failing_data(segment_bytes(10 * MIB), failure, after=9 * MIB))
    assert raised.value is failure


@pytest.mark.parametrize("came", [0, MIB, 9 * MIB, 11 * MIB])
def test_a_source_with_more_or_fewer_bytes_than_announced_is_refused(
    storage: ObjectRemoteStorageManager, store: StoreUnderTest, came: int
) -> None:
    metadata = segment_metadata(10 * MIB)
    data = replace(segment_data(segment_bytes(came)), size=10 * MIB)
    with pytest.raises(RemoteObjectCorruptError, match="announced"):
        storage.copy_log_segment_data(metadata, data)
    assert list(storage.list_objects()) == []
    assert store.unfinished() == []


def test_failed_indexes_leave_no_complete_segment(storage: ObjectRemoteStorageManager) -> None:
    def broken_indexes() -> dict[IndexKind, bytes]:
        raise CorruptRecordError("00000000000000004200.log", 0, "truncated")

    metadata = segment_metadata(1000)
    with pytest.raises(CorruptRecordError):
        storage.copy_log_segment_data(metadata, replace(segment_data(segment_bytes(1000)), indexes=broken_indexes))
    assert [found.segment.kind for found in storage.list_objects() if found.segment] == [ObjectKind.DATA]
    storage.delete_log_segment_data(metadata)
    assert list(storage.list_objects()) == []


@pytest.mark.parametrize("position", [0, 4 * MIB, 9 * MIB - 1])
def test_a_changed_byte_of_the_data_is_detected(
    storage: ObjectRemoteStorageManager, client: ObjectClient, position: int
) -> None:
    content = segment_bytes(9 * MIB)
    metadata = copy(storage, content)
    broken = bytearray(content)
    broken[position] ^= 1
    name = segment_object_names(metadata.segment_id, metadata.start_offset).data
    overwrite(client, name, bytes(broken))
    received = 0
    with pytest.raises(RemoteObjectCorruptError, match=name):
        for piece in storage.fetch_log_segment(metadata):
            received += len(piece)
    assert received < len(content)
    with pytest.raises(RemoteObjectCorruptError, match=name):
        storage.verify(metadata)


@pytest.mark.parametrize("lost", [1, 5 * MIB, 9 * MIB])
def test_truncated_data_is_detected(storage: ObjectRemoteStorageManager, client: ObjectClient, lost: int) -> None:
    content = segment_bytes(9 * MIB)
    metadata = copy(storage, content)
    name = segment_object_names(metadata.segment_id, metadata.start_offset).data
    overwrite(client, name, content[: len(content) - lost])
    with pytest.raises(RemoteObjectCorruptError, match=name):
        list(storage.fetch_log_segment(metadata))
    with pytest.raises(RemoteObjectCorruptError, match=name):
        list(storage.fetch_log_segment(metadata, len(content) - 10, len(content) - 1))
    with pytest.raises(RemoteObjectCorruptError, match=name):
        storage.verify(metadata)


@pytest.mark.parametrize("part", ["head", "small section", "large section", "end"])
def test_a_broken_bundle_is_detected(storage: ObjectRemoteStorageManager, client: ObjectClient, part: str) -> None:
    metadata = copy(storage, segment_bytes(1000))
    name = segment_object_names(metadata.segment_id, metadata.start_offset).indexes
    bundle = bytearray(read(client, name))
    if part == "end":
        del bundle[-1:]
    else:
        wanted = {
            "head": b"RLIB",
            "small section": INDEXES[IndexKind.REMOTE_OFFSET_INDEX],
            "large section": INDEXES[IndexKind.OFFSET],
        }
        bundle[bundle.index(wanted[part]) + 2] ^= 0x40
    overwrite(client, name, bytes(bundle))
    kinds = {"small section": IndexKind.REMOTE_OFFSET_INDEX, "large section": IndexKind.OFFSET}
    with pytest.raises(RemoteObjectCorruptError, match=name):
        storage.fetch_index(metadata, kinds.get(part, IndexKind.LEADER_EPOCH))
    with pytest.raises(RemoteObjectCorruptError, match=name):
        storage.verify(metadata)


def test_verification_reads_everything_and_finds_nothing_wrong(storage: ObjectRemoteStorageManager) -> None:
    storage.verify(copy(storage, segment_bytes(9 * MIB)))


@pytest.mark.parametrize("kind", [kind for kind in ObjectKind if kind is not ObjectKind.KEY])
def test_verification_reports_each_missing_object(
    storage: ObjectRemoteStorageManager, client: ObjectClient, kind: ObjectKind
) -> None:
    metadata = copy(storage, segment_bytes(1000))
    name = f"{segment_object_names(metadata.segment_id, metadata.start_offset).stem}.{kind}"
    delete_object(client, name)
    with pytest.raises(RemoteObjectNotFoundError, match=name):
        storage.verify(metadata)


def test_metadata_are_read_from_the_store_alone(storage: ObjectRemoteStorageManager) -> None:
    metadata = copy(storage, segment_bytes(1000))
    found = [listed.segment for listed in storage.list_objects() if listed.segment]
    markers = [segment for segment in found if segment.kind is ObjectKind.COMMIT_MARKER]
    assert [storage.read_metadata(marker) for marker in markers] == [
        replace(metadata, state=SegmentState.COPY_SEGMENT_FINISHED)
    ]


def test_a_listing_has_names_sizes_and_foreign_objects(
    storage: ObjectRemoteStorageManager, client: ObjectClient
) -> None:
    metadata = copy(storage, segment_bytes(1000))
    names = segment_object_names(metadata.segment_id, metadata.start_offset)
    overwrite(client, "somebody/else's file.txt", b"hello")
    found = {listed.name: listed for listed in storage.list_objects()}
    assert found.keys() == {names.data, names.indexes, names.commit_marker, "somebody/else's file.txt"}
    assert found[names.data].size == 1000
    assert found["somebody/else's file.txt"].segment is None
    own = found[names.data].segment
    assert own is not None
    assert (own.segment_id, own.base_offset, own.kind) == (metadata.segment_id, 4200, ObjectKind.DATA)


def test_a_listing_of_a_partition_leaves_out_its_neighbours(storage: ObjectRemoteStorageManager) -> None:
    content = segment_bytes(100)
    for number in (1, 10):
        metadata = segment_metadata(len(content), of=partition(number))
        storage.copy_log_segment_data(metadata, segment_data(content))
    listed = list(storage.list_objects(partition_folder(partition(1))))
    assert {found.segment.segment_id.topic_id_partition.partition for found in listed if found.segment} == {1}
    assert len(listed) == 3
    assert list(storage.list_objects(partition_folder(partition(7)))) == []


def test_several_threads_use_one_manager(storage: ObjectRemoteStorageManager) -> None:
    contents = [segment_bytes(9 * MIB if i % 4 == 0 else 50_000, seed=i) for i in range(12)]

    def there_and_back(i: int) -> bool:
        metadata = copy(storage, contents[i], start_offset=i * 1000)
        same = b"".join(storage.fetch_log_segment(metadata)) == contents[i]
        index = storage.fetch_index(metadata, IndexKind.OFFSET) == INDEXES[IndexKind.OFFSET]
        storage.delete_log_segment_data(metadata)
        return same and index

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(there_and_back, range(len(contents))))
    assert list(storage.list_objects()) == []


def test_closing_twice_does_nothing(storage: ObjectRemoteStorageManager) -> None:
    storage.close()
    storage.close()
