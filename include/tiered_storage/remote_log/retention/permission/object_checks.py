"""Check in the store that a segment may be deleted, or that another one holds what is deleted instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tiered_storage.errors import RemoteObjectCorruptError, RemoteStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

READS_AT_ONCE = 8


def ensure_known_versions(segments: Iterable[RemoteLogSegmentMetadata], storage: RemoteStorageManager) -> None:
    """Raise LaterVersionError if a later release wrote one of `segments`, and what the store raises.

    Missing or corrupt objects are ignored. A store that cannot be listed is responsible for its own formats.
    """
    for _, error in _unknown(tuple(segments), storage):
        raise error


def unknown_versions(
    partitions: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]], storage: RemoteStorageManager
) -> Mapping[TopicIdPartition, RemoteStorageError]:
    """Return the first error of each affected partition that `ensure_known_versions` would raise."""
    asked = [segment for segments in partitions.values() for segment in segments]
    found: dict[TopicIdPartition, RemoteStorageError] = {}
    for segment, error in _unknown(asked, storage):
        found.setdefault(segment.topic_id_partition, error)
    return found


def _unknown(
    asked: Sequence[RemoteLogSegmentMetadata], storage: RemoteStorageManager
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteStorageError]]:
    """Yield the segments with an error, in order; closing the generator cancels what has not begun."""
    listable = as_listable(storage)
    if listable is None or not asked:
        return

    def look(segment: RemoteLogSegmentMetadata) -> RemoteStorageError | None:
        try:
            return listable.later_version(segment)
        except RemoteStorageError as error:
            return error

    with ThreadPoolExecutor(min(READS_AT_ONCE, len(asked))) as readers:
        try:
            for segment, error in zip(asked, readers.map(look, asked), strict=True):
                if error is not None:
                    yield segment, error
        finally:
            readers.shutdown(wait=False, cancel_futures=True)


def ensure_present(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> None:
    """Raise RemoteObjectNotFoundError or RemoteObjectCorruptError unless data and indexes of `segment` exist.

    Reads the manifest (checked) and the last byte of the data; `verify` reads everything. Raises LaterVersionError for
    an object that a later release wrote.
    """
    ensure_known_versions([segment], storage)
    storage.fetch_index(segment, IndexKind.MANIFEST)
    last = segment.size - 1
    if sum(len(chunk) for chunk in storage.fetch_log_segment(segment, last, last)) != 1:
        raise RemoteObjectCorruptError(f"{segment.segment_id}: the store shows fewer than its {segment.size} bytes")


def ensure_whole(
    segment: RemoteLogSegmentMetadata,
    storage: RemoteStorageManager,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> None:
    """Raise RemoteObjectNotFoundError or RemoteObjectCorruptError unless every byte of `segment` is intact.

    Raises LaterVersionError for an object that a later release wrote. `on_bytes` is called with the size of each piece.
    """
    if (listable := as_listable(storage)) is not None:
        listable.verify(segment, on_bytes)
        return
    for _ in whole_pieces(segment, storage, on_bytes):
        pass


def whole_pieces(
    segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager, on_bytes: Callable[[int], object]
) -> Iterator[bytes]:
    """Stream the data of `segment`, checked as by `ensure_whole`; the last piece comes only after all checks.

    `on_bytes` is called with the size of each piece before it is yielded.
    """
    if (listable := as_listable(storage)) is not None:
        pieces = listable.verified(segment)
    else:
        storage.fetch_index(segment, IndexKind.MANIFEST)
        pieces = storage.fetch_log_segment(segment)
    for piece in pieces:
        on_bytes(len(piece))
        yield piece
