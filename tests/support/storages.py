"""A remote storage whose reads wait and fail on command."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

from tiered_storage.errors import RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData, RemoteStorageManager


class StagedStorage:
    """The RemoteStorageManager `inner`, between two acts.

    After `stand_still` nothing comes back until `proceed`; `fail_with`, where it is set, is raised in place of an
    answer; `before` is called before each fetch of data.
    """

    def __init__(self, inner: RemoteStorageManager) -> None:
        self.inner = inner
        self.fetched: Counter[tuple[str, int]] = Counter()
        """How often each range, by segment id and position, was asked for."""
        self.fetched_indexes: Counter[IndexKind] = Counter()
        """How often each kind of index was asked for."""
        self.fail_with: TieredStorageError | None = None
        self.fails_for: str | None = None
        """The id of the only segment for which it fails."""
        self.break_next = False
        """Whether a bit of the next answer turns over on its way."""
        self.lacks: IndexKind | None = None
        """An index that no segment has."""
        self.before: Callable[[RemoteLogSegmentMetadata, int], None] = lambda *_: None
        self._open = threading.Event()
        self._open.set()

    def stand_still(self) -> None:
        """Let every fetch from now on wait."""
        self._open.clear()

    def proceed(self) -> None:
        """Let everything continue."""
        self._open.set()

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """As the inner one."""
        return self.inner.copy_log_segment_data(metadata, data)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        """As the inner one, in its time."""
        self.fetched[metadata.segment_id.id, start_position] += 1
        self.before(metadata, start_position)
        self._pass(metadata)
        pieces = self.inner.fetch_log_segment(metadata, start_position, end_position)
        if self.break_next:
            self.break_next = False
            return (bytes([*piece[:-1], piece[-1] ^ 1]) for piece in pieces)
        return pieces

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """As the inner one, in its time."""
        self.fetched_indexes[kind] += 1
        self._pass(metadata)
        if kind is self.lacks:
            raise RemoteObjectNotFoundError(f"{metadata.segment_id} has no {kind.name}")
        return self.inner.fetch_index(metadata, kind)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """As the inner one."""
        self.inner.delete_log_segment_data(metadata)

    def close(self) -> None:
        """Let everything continue; the inner one stays open."""
        self.proceed()

    def _pass(self, metadata: RemoteLogSegmentMetadata) -> None:
        if not self._open.wait(30):
            raise AssertionError("the store stood still until the end of the test")
        if self.fail_with is not None and self.fails_for in {None, metadata.segment_id.id}:
            raise self.fail_with
