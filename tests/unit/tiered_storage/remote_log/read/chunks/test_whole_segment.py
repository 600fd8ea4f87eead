"""A segment as a whole: its bytes and batches, or an error that shows what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, a_copied_remote_log
from tiered_storage.errors import CorruptRecordError, RemoteObjectCorruptError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.chunks.whole_segment import checked_batches, fetch_whole
from tiered_storage.remote_log.storage.remote_storage_manager import PassingStorage


class Shortened(PassingStorage):
    """A storage that checks nothing and leaves out the last byte."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int = 0, end_position: int | None = None
    ) -> Iterator[bytes]:
        yield b"".join(self.storage.fetch_log_segment(metadata, start_position, end_position))[:-1]


def test_all_bytes_come_in_order_and_hold_every_batch(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        for segment in remote_log.context.segments.list_remote_log_segments(ORDERS_0):
            content = list(fetch_whole(segment, remote_log.context.storage))
            batches = list(checked_batches(segment, content))

            assert b"".join(bytes(window) for window, _ in batches) == b"".join(content)
            assert sum(len(window) for window, _ in batches) == segment.size
            assert int(batches[0][1].base_offset[0]) == segment.start_offset
            assert int(batches[-1][1].last_offset[-1]) == segment.end_offset


def test_a_flipped_bit_is_an_error_of_the_whole(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    stored = files.objects(".log")[0]
    stored.write_bytes(bytes([stored.read_bytes()[0] ^ 1]) + stored.read_bytes()[1:])
    with files.open() as remote_log:
        segment = next(iter(remote_log.context.segments.list_remote_log_segments(ORDERS_0)))
        with pytest.raises(RemoteObjectCorruptError, match=stored.name):
            list(fetch_whole(segment, remote_log.context.storage))


def test_a_storage_that_returns_too_few_bytes_is_found_out(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        segment = next(iter(remote_log.context.segments.list_remote_log_segments(ORDERS_0)))
        with pytest.raises(RemoteObjectCorruptError, match=f"{segment.size - 1} bytes"):
            list(fetch_whole(segment, Shortened(remote_log.context.storage)))
        with pytest.raises(CorruptRecordError):
            list(checked_batches(segment, Shortened(remote_log.context.storage).fetch_log_segment(segment)))
