"""All bytes or batches of a remote segment, for a reader that takes it whole: no index, no cache, no deadline.

The store compares the checksum of the whole, which the segment's commit marker has. So a damaged remote log index stops
no such reader, and a single flipped bit does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager


def fetch_whole(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> Iterator[bytes]:
    """Stream all bytes of `segment` in order; the last ones come only after the store has compared the checksum.

    Raises what the store raises, and RemoteObjectCorruptError after the last bytes if there are more or fewer than were
    sent.
    """
    size = 0
    for buffer in storage.fetch_log_segment(segment):
        size += len(buffer)
        yield buffer
    if size != segment.size:
        raise RemoteObjectCorruptError(f"{segment.segment_id}: {size} bytes came, {segment.size} were sent")


def checked_batches(
    segment: RemoteLogSegmentMetadata, content: Iterable[bytes]
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield the batches of `segment`, whose bytes are `content`: each time some with their bytes and their headers.

    Raises UnsupportedMagicError or CorruptRecordError for the first batch that is broken.
    """
    stream = BatchStream(str(segment.segment_id), segment.start_offset, segment.size)
    for buffer in content:
        yield from stream.windows(buffer)
    stream.finish()
