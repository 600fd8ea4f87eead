"""The remote log index of KIP-405's drafts: where in the store each chunk of a remote segment is.

A chunk is a run of whole batches. `remoteLogIndex` is a run of entries, one for each chunk, big-endian:

    magic             int16    0
    length            int16    bytes of this entry, these two fields and all that follow
    crc               uint32   CRC-32 (that of zlib) from first offset to the end of the entry
    first offset      int64    of the chunk's first batch
    last offset       int64    of its last batch, inclusive
    first timestamp   int64    ms; the smallest in the headers of its batches, -1: a header has none
    last timestamp    int64    ms; the largest of all its records, -1: none
    data length       int32    bytes of the chunk in the store
    rdi length        int16    bytes of the rdi
    rdi               bytes    where the chunk is: position (int64, bytes from the start of the object), then the name
                               of the object below the store's root in UTF-8

No record of a chunk is later than its last timestamp, which is what look-ups need. One may be earlier than its first
timestamp: a batch's header has its first record's, and a producer may have put an earlier one after it.

Source: KIP-405, drafts 27 to 85, section Remote Log Indexes. It leaves the rdi and the width of checksums open.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError, CorruptIndexError

MAGIC = 0
MAX_ENTRY_BYTES = 2**15 - 1

_HEAD = struct.Struct(">hhI")
_FIXED = struct.Struct(">qqqqih")
_POSITION = struct.Struct(">q")
MIN_ENTRY_BYTES = _HEAD.size + _FIXED.size + _POSITION.size + 1


@dataclass(frozen=True, slots=True)
class RemoteLogIndexEntry:
    """One chunk: offsets (inclusive), timestamps (ms, -1: none), and its place in an object (bytes)."""

    first_offset: int
    last_offset: int
    first_timestamp: int
    last_timestamp: int
    object_name: str
    position: int
    length: int

    def to_bytes(self) -> bytes:
        """Return the entry's bytes. Raises ConfigurationError if the object's name is too long for one."""
        rdi = _POSITION.pack(self.position) + self.object_name.encode()
        length = _HEAD.size + _FIXED.size + len(rdi)
        if length > MAX_ENTRY_BYTES:
            raise ConfigurationError(f"{self.object_name[:80]}…: too long a name for an entry of the remote log index")
        fixed = _FIXED.pack(
            self.first_offset, self.last_offset, self.first_timestamp, self.last_timestamp, self.length, len(rdi)
        )
        return _HEAD.pack(MAGIC, length, zlib.crc32(rdi, zlib.crc32(fixed))) + fixed + rdi


def read_entry(raw: bytes, position: int, source: str) -> tuple[RemoteLogIndexEntry, int]:
    """Return the entry at `position` of the remote log index `raw`, and where the next one begins.

    Raises CorruptIndexError, naming `source`, if no complete and valid entry with the right checksum begins there.
    """
    end = _entry_end(raw, position, source)
    fixed_position = position + _HEAD.size
    expected = _HEAD.unpack_from(raw, position)[2]
    found = zlib.crc32(memoryview(raw)[fixed_position:end])
    if found != expected:
        raise CorruptIndexError(source, position, f"the entry has CRC-32 {found:08x} and says {expected:08x}")
    first_offset, last_offset, first_timestamp, last_timestamp, length, rdi_length = _FIXED.unpack_from(
        raw, fixed_position
    )
    rdi_position = fixed_position + _FIXED.size
    if rdi_length != end - rdi_position:
        raise CorruptIndexError(source, position, f"an rdi of {rdi_length} bytes does not end with its entry")
    if not 0 <= first_offset <= last_offset or length <= 0:
        raise CorruptIndexError(source, position, f"offsets {first_offset} to {last_offset} in {length} bytes")
    if first_timestamp < -1 or last_timestamp < -1:
        raise CorruptIndexError(source, position, f"timestamps {first_timestamp} and {last_timestamp}")
    (object_position,) = _POSITION.unpack_from(raw, rdi_position)
    if object_position < 0:
        raise CorruptIndexError(source, position, f"the chunk is said to begin at byte {object_position}")
    try:
        object_name = raw[rdi_position + _POSITION.size : end].decode()
    except UnicodeDecodeError as error:
        raise CorruptIndexError(source, position, f"the name of its object is not UTF-8 ({error.reason})") from error
    return (
        RemoteLogIndexEntry(
            first_offset, last_offset, first_timestamp, last_timestamp, object_name, object_position, length
        ),
        end,
    )


def iterate_entries(raw: bytes, source: str) -> Iterator[RemoteLogIndexEntry]:
    """Yield all entries of the remote log index `raw`.

    Raises CorruptIndexError for the first corrupt entry, or the first with offsets not above those before it.
    """
    position, next_offset = 0, 0
    while position < len(raw):
        entry, end = read_entry(raw, position, source)
        if entry.first_offset < next_offset:
            raise CorruptIndexError(
                source, position, f"offset {entry.first_offset} comes again, after {next_offset - 1}"
            )
        yield entry
        position, next_offset = end, entry.last_offset + 1


def _entry_end(raw: bytes, position: int, source: str) -> int:
    """Return the end of the entry at `position` by its length, which fits into `raw`."""
    left = len(raw) - position
    if position < 0 or left < MIN_ENTRY_BYTES:
        raise CorruptIndexError(source, position, f"{max(left, 0)} bytes are less than an entry")
    magic, length, _ = _HEAD.unpack_from(raw, position)
    if magic != MAGIC:
        raise CorruptIndexError(source, position, f"magic {magic} is not known, only {MAGIC}")
    if not MIN_ENTRY_BYTES <= length <= left:
        raise CorruptIndexError(source, position, f"an entry of {length} bytes in the {left} that are left")
    return position + int(length)
