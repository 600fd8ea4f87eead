"""A copy as the store alone knows it, whether or not anybody finished it: its bundle, and what its marker has to say.

What is certain of it: the bundle's sections have their checksums, and its manifest tells of the segment by all its ids
and its base offset; a commit marker, where there is one, tells of this very bundle. Of the data only the size is known
until they are read: `finished` tells the checksum that they must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.index_bundle import parse_bundle
from tiered_storage.remote_log.storage.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """The indexes of a copy, and its metadata as those of a finished one, as its manifest tells them."""

    contents: Mapping[IndexKind, bytes]
    finished: RemoteLogSegmentMetadata


def parse_copy(
    raw: bytes, source: str, metadata: RemoteLogSegmentMetadata, marker: CommitMarker | None
) -> StoredCopy | None:
    """Return the copy whose bundle at `source` is `raw`; None where it is not that of `metadata`, or of `marker`.

    Raises RemoteObjectCorruptError where the bundle is broken.
    """
    contents = parse_bundle(raw, source)
    manifest = Manifest.parse(contents.get(IndexKind.MANIFEST, b""), source)
    if manifest.data_crc32c is None:
        return None
    told = CommitMarker(manifest.segment_id.id, manifest.size, manifest.data_crc32c, len(raw), crc32c(raw))
    if marker not in {None, told}:
        return None
    if (manifest.segment_id, manifest.base_offset) != (metadata.segment_id, metadata.start_offset):
        return None
    return StoredCopy(contents, manifest.metadata(told.custom_metadata()))
