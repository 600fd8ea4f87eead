"""The manifest that Aiven's plugin writes beside each segment, and its field of custom metadata.

`.rsm-manifest` is a JSON object:

    version            "1"
    chunkIndex         type "fixed": originalChunkSize, originalFileSize, transformedChunkSize,
                       finalTransformedChunkSize
                       type "variable": originalChunkSize, originalFileSize, transformedChunks (base64 of a zstd frame)
    segmentIndexes     offset, timestamp, producerSnapshot, leaderEpoch, transaction (null: none), each with position
                       and size in the `.indexes` object
    compression        whether each chunk is a zstd frame
    encryption         absent: plain; else dataKey ("{key pair's id}:{base64 of the wrapped key}") and aad (base64)

The log is cut into chunks of originalChunkSize, the last one may be smaller. Each is compressed, then encrypted.
The frame of transformedChunks holds int32 count, and for two chunks or more int32 base, int8 width, and of all but the
last chunk the size less `base` in `width` bytes; then int32, the size of the last chunk. All are big-endian.

Custom metadata are a section of tagged fields: 0 the bytes of all objects, 1 the prefix of the objects' names, 2 their
name without its suffix. Each overrides what settings and metadata would give.

Source: github.com/Aiven-Open/tiered-storage-for-apache-kafka, its documentation and formats.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn, Self

import zstandard

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.transforms.zstd import decompress

INDEX_NAMES = {
    IndexKind.OFFSET: "offset",
    IndexKind.TIMESTAMP: "timestamp",
    IndexKind.PRODUCER_SNAPSHOT: "producerSnapshot",
    IndexKind.LEADER_EPOCH: "leaderEpoch",
    IndexKind.TRANSACTION: "transaction",
}
OBJECT_PREFIX_TAG, OBJECT_KEY_TAG = 1, 2

_VERSION = 1
_MOST_CHUNKS = 1 << 20
"""Chunks of 2 KiB in the largest log: a smaller chunk size is an error, and must not use up the memory."""
_MOST_SIZES_BYTES = 4 * _MOST_CHUNKS + 16
_INT = 4


@dataclass(frozen=True, slots=True)
class AivenChunk:
    """One chunk: where it is in the log, and where in the object (bytes)."""

    number: int
    position: int
    length: int
    stored_position: int
    stored_length: int


@dataclass(frozen=True, slots=True)
class WrappedDataKey:
    """A segment's data key, wrapped by the key pair `key_pair_id`, and the associated data of its chunks."""

    key_pair_id: str
    wrapped: bytes
    associated_data: bytes


@dataclass(frozen=True, slots=True)
class AivenManifest:
    """A manifest: `stored_sizes` are those of the chunks, `indexes` the position and size of each index."""

    chunk_bytes: int
    log_bytes: int
    stored_sizes: Sequence[int]
    indexes: Mapping[IndexKind, tuple[int, int]]
    is_compressed: bool
    key: WrappedDataKey | None
    _stored_ends: Sequence[int]

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read a manifest. Raises RemoteObjectCorruptError, naming `source`, and LaterVersionError."""
        document = _Document(raw, source)
        version = document.text("version")
        if version != str(_VERSION):
            if version.isdecimal() and int(version) > _VERSION:
                raise LaterVersionError(source, int(version), _VERSION)
            document.refuse(f"version {version!r} is not known")
        chunks = document.part("chunkIndex")
        chunk_bytes, log_bytes = chunks.number("originalChunkSize"), chunks.number("originalFileSize")
        if not chunk_bytes:
            chunks.refuse("its chunks have no bytes")
        count = -(-log_bytes // chunk_bytes)
        if count > _MOST_CHUNKS:
            chunks.refuse(f"a log of {log_bytes} bytes has no {count} chunks of {chunk_bytes} bytes")
        sizes = _stored_sizes(chunks, count)
        indexes = document.part("segmentIndexes")
        places = {kind: indexes.optional(name) for kind, name in INDEX_NAMES.items()}
        encryption = document.optional("encryption")
        return cls(
            chunk_bytes,
            log_bytes,
            sizes,
            {kind: (at.number("position"), at.number("size")) for kind, at in places.items() if at is not None},
            document.flag("compression"),
            None if encryption is None else _wrapped_key(encryption),
            list(accumulate(sizes)),
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of the log's object."""
        return self._stored_ends[-1] if self._stored_ends else 0

    @property
    def indexes_bytes(self) -> int:
        """Bytes of the indexes' object."""
        return max((position + size for position, size in self.indexes.values()), default=0)

    @property
    def is_plain(self) -> bool:
        """Whether the log's object has the bytes as Kafka wrote them."""
        return not self.is_compressed and self.key is None

    def chunks(self, start: int, end: int) -> Iterator[AivenChunk]:
        """Yield the chunks with the bytes of the log from `start` (inclusive) to `end` (exclusive)."""
        for number in range(start // self.chunk_bytes, min(-(-end // self.chunk_bytes), len(self.stored_sizes))):
            position = number * self.chunk_bytes
            length = min(self.chunk_bytes, self.log_bytes - position)
            size = self.stored_sizes[number]
            yield AivenChunk(number, position, length, self._stored_ends[number] - size, size)


def name_fields(custom_metadata: bytes | None) -> tuple[str | None, str | None]:
    """Return the prefix and the main part of the objects' names in custom metadata; None for each that they lack.

    Raises RemoteObjectCorruptError.
    """
    if not custom_metadata:
        return None, None
    found: dict[int, bytes] = {}
    reader = _Varints(custom_metadata)
    for _ in range(reader.next()):
        tag, size = reader.next(), reader.next()
        found[tag] = reader.take(size)
    return _compact(found.get(OBJECT_PREFIX_TAG)), _compact(found.get(OBJECT_KEY_TAG))


def _compact(raw: bytes | None) -> str | None:
    """Return the text in a compact string of Kafka."""
    if raw is None:
        return None
    reader = _Varints(raw)
    length = reader.next() - 1
    try:
        return reader.take(max(length, 0)).decode()
    except UnicodeDecodeError as error:
        raise RemoteObjectCorruptError(f"custom metadata: a name is not UTF-8 ({error.reason})") from error


class _Varints:
    """Reads Kafka's unsigned varints and bytes after them."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._raw):
            raise RemoteObjectCorruptError(f"custom metadata end at byte {len(self._raw)}, inside a field")
        self._at += size
        return self._raw[self._at - size : self._at]


class _Document:
    """An object of JSON, whose members are checked as they are taken."""

    def __init__(self, raw: bytes | dict[str, Any], source: str) -> None:
        self.source = source
        try:
            content = json.loads(raw) if isinstance(raw, bytes) else raw
        except ValueError as error:
            self.refuse(f"it is not JSON ({error})")
        if not isinstance(content, dict):
            self.refuse("it is not an object of JSON")
        self._content: dict[str, Any] = content

    def refuse(self, reason: str) -> NoReturn:
        raise RemoteObjectCorruptError(f"{self.source}: {reason}")

    def number(self, name: str) -> int:
        value = self._content.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            self.refuse(f"{name} is {value!r}, not a size")
        return value

    def text(self, name: str) -> str:
        value = self._content.get(name)
        if not isinstance(value, str):
            self.refuse(f"{name} is {value!r}, not text")
        return value

    def binary(self, name: str) -> bytes:
        return _decoded(self, name, self.text(name))

    def flag(self, name: str) -> bool:
        value = self._content.get(name)
        if not isinstance(value, bool):
            self.refuse(f"{name} is {value!r}, not true or false")
        return value

    def part(self, name: str) -> _Document:
        found = self.optional(name)
        if found is None:
            self.refuse(f"it has no {name}")
        return found

    def optional(self, name: str) -> _Document | None:
        value = self._content.get(name)
        return None if value is None else _Document(value, f"{self.source}: {name}")


def _decoded(document: _Document, name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        document.refuse(f"{name} is not base64 ({error})")


def _wrapped_key(encryption: _Document) -> WrappedDataKey:
    key_pair_id, separator, wrapped = encryption.text("dataKey").partition(":")
    if not separator or not key_pair_id:
        encryption.refuse("dataKey does not name its key pair")
    return WrappedDataKey(key_pair_id, _decoded(encryption, "dataKey", wrapped), encryption.binary("aad"))


def _stored_sizes(chunks: _Document, count: int) -> Sequence[int]:
    kind = chunks.text("type")
    if kind == "fixed":
        size, last = chunks.number("transformedChunkSize"), chunks.number("finalTransformedChunkSize")
        return [*[size] * (count - 1), last][:count] if count else []
    if kind != "variable":
        chunks.refuse(f"type {kind!r} is not known")
    return _sizes_in(chunks, chunks.binary("transformedChunks"), count)


def _sizes_in(chunks: _Document, frame: bytes, wanted: int) -> list[int]:
    raw = _unframed(chunks, frame)

    def integer(at: int, width: int = _INT) -> int:
        if at + width > len(raw):
            chunks.refuse(f"transformedChunks end at byte {len(raw)}")
        return int.from_bytes(raw[at : at + width], "big")

    count = integer(0)
    if count != wanted:
        # Before the list is made: sizes of no bytes each would let a few bytes claim billions of them.
        chunks.refuse(f"it has {count} chunks, and the log needs {wanted}")
    if count == 0:
        return []
    if count == 1:
        return [integer(_INT)]
    base, width, first = integer(_INT), integer(2 * _INT, 1), 2 * _INT + 1
    if width > _INT or first + (count - 1) * width + _INT > len(raw):
        chunks.refuse(f"transformedChunks do not hold {count} sizes of {width} bytes")
    sizes = [base + integer(first + at * width, width) for at in range(count - 1)]
    return [*sizes, integer(first + (count - 1) * width)]


def _unframed(chunks: _Document, frame: bytes) -> bytes:
    try:
        length = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        chunks.refuse(f"transformedChunks are not a zstd frame ({error})")
    if not 0 <= length <= _MOST_SIZES_BYTES:
        chunks.refuse(f"transformedChunks declare {length} bytes")
    return decompress(frame, length, chunks.source)
