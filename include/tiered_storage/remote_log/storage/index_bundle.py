"""The bundle: everything beside a segment's data, in one object whose sections can be read separately.

Big-endian. A head, then the sections, back to back in the order of its table:

    magic            4 bytes   "RLIB"
    version          int16     1
    section count    int16     1 to 64
    table            24 bytes for each section:
        kind         int16     see IndexKind
        reserved     int16     0
        crc          uint32    CRC-32C of the section
        position     int64     bytes from the start of the bundle
        length       int64     bytes, at most 64 MiB
    crc              uint32    CRC-32C of the head up to here

A head has at most 1,548 bytes, so the first 64 KiB of a bundle always contain it, and usually the wanted section.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tiered_storage.errors import ConfigurationError, LaterVersionError, RemoteObjectCorruptError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

MAGIC = b"RLIB"
VERSION = 1
MAX_SECTIONS = 64
MAX_SECTION_BYTES = 64 << 20
HEAD_READ_BYTES = 64 << 10

_START = struct.Struct(">4shh")
_ROW = struct.Struct(">hhIqq")
_CRC = struct.Struct(">I")
_KNOWN_KINDS = frozenset[int](IndexKind)


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a bundle: its position (bytes from the bundle's start), length, and CRC-32C."""

    kind: int
    crc32c: int
    position: int
    length: int

    def check(self, content: bytes, source: str) -> bytes:
        """Return `content`, the section's bytes. Raises RemoteObjectCorruptError if they differ from those sent."""
        found = crc32c(content)
        if len(content) != self.length or found != self.crc32c:
            raise RemoteObjectCorruptError(
                f"{source}: at byte {self.position}: {len(content)} bytes of index {self.kind} have CRC-32C "
                f"{found:08x}; {self.length} with {self.crc32c:08x} were sent"
            )
        return content


@dataclass(frozen=True, slots=True)
class BundleHead:
    """The table of a bundle, by the number of the kind, including kinds of later releases."""

    sections: Mapping[int, Section]

    @classmethod
    def parse(cls, raw: bytes | memoryview, source: str, bundle_size: int) -> Self:
        """Read the head from `raw`, the first bytes of a bundle of `bundle_size` bytes.

        Raises RemoteObjectCorruptError if it is corrupt or does not cover the bundle exactly, and LaterVersionError.
        """
        if len(raw) < _START.size:
            raise _broken(source, len(raw), "it ends inside its head")
        magic, version, count = _START.unpack_from(raw)
        if magic != MAGIC:
            raise _broken(source, 0, f"it begins with {bytes(magic)!r}, not with {MAGIC!r}")
        if version > VERSION:
            if 1 <= count <= MAX_SECTIONS and _is_head(_with_version(raw, count), count):
                raise _broken(source, 4, f"it has version {version}, but the checksum of version {VERSION}")
            raise LaterVersionError(source, version, VERSION)
        if version != VERSION:
            raise _broken(source, 4, f"version {version} of the format does not exist")
        if not 1 <= count <= MAX_SECTIONS:
            raise _broken(source, 6, f"{count} sections, not 1 to {MAX_SECTIONS}")
        table_end = _START.size + count * _ROW.size
        if len(raw) < table_end + _CRC.size:
            raise _broken(source, len(raw), "it ends inside its head")
        if not _is_head(raw, count):
            raise _broken(source, table_end, "the checksum of its head is wrong")
        rows = _ROW.iter_unpack(memoryview(raw)[_START.size : table_end])
        sections = [Section(kind, crc, position, length) for kind, _, crc, position, length in rows]
        _check_layout(sections, table_end + _CRC.size, bundle_size, source)
        return cls({section.kind: section for section in sections})


def _with_version(raw: bytes | memoryview, count: int) -> bytes:
    """Return the head of `count` sections at the start of `raw`, with our version."""
    rest = raw[_START.size : _START.size + count * _ROW.size + _CRC.size]
    return _START.pack(MAGIC, VERSION, count) + bytes(rest)


def _is_head(raw: bytes | memoryview, count: int) -> bool:
    """Return whether `raw` begins with a head of `count` sections whose checksum is right."""
    end = _START.size + count * _ROW.size
    return len(raw) >= end + _CRC.size and _CRC.unpack_from(raw, end)[0] == crc32c(memoryview(raw)[:end])


def build_bundle(contents: Mapping[IndexKind, bytes]) -> bytes:
    """Return the bundle of `contents`, which may hold empty sections but must hold one.

    Raises ConfigurationError if there is none, or one of more than 64 MiB.
    """
    if not contents:
        raise ConfigurationError("a bundle needs at least one index")
    position = _START.size + len(contents) * _ROW.size + _CRC.size
    head = bytearray(_START.pack(MAGIC, VERSION, len(contents)))
    ordered = sorted(contents.items())
    for kind, content in ordered:
        if len(content) > MAX_SECTION_BYTES:
            raise ConfigurationError(
                f"index {kind.name} has {len(content)} bytes; a bundle takes {MAX_SECTION_BYTES} of each: "
                "use smaller segments or a larger index interval"
            )
        head += _ROW.pack(kind, 0, crc32c(content), position, len(content))
        position += len(content)
    head += _CRC.pack(crc32c(head))
    return b"".join([head, *(content for _, content in ordered)])


def parse_bundle(raw: bytes, source: str) -> dict[IndexKind, bytes]:
    """Return all sections of the whole bundle `raw`, checked, without those of unknown kinds.

    Raises RemoteObjectCorruptError if anything in it is corrupt, and LaterVersionError.
    """
    head = BundleHead.parse(raw, source, len(raw))
    contents = {}
    for section in head.sections.values():
        content = section.check(raw[section.position : section.position + section.length], source)
        if section.kind in _KNOWN_KINDS:
            contents[IndexKind(section.kind)] = content
    return contents


def _check_layout(sections: list[Section], position: int, bundle_size: int, source: str) -> None:
    """Raise RemoteObjectCorruptError unless the sections, each of a different kind, fill the bundle to its end."""
    if len({section.kind for section in sections}) != len(sections):
        raise _broken(source, _START.size, "a kind of index is listed twice")
    for section in sections:
        if section.position != position or not 0 <= section.length <= MAX_SECTION_BYTES:
            raise _broken(source, position, f"index {section.kind} is said to be {section.length} bytes from "
                                            f"{section.position}")  # fmt: skip
        position += section.length
    if position != bundle_size:
        raise _broken(source, position, f"the last section ends here, and the bundle at {bundle_size}")


def _broken(source: str, position: int, reason: str) -> RemoteObjectCorruptError:
    return RemoteObjectCorruptError(f"{source}: at byte {position}: no whole bundle of indexes: {reason}")
