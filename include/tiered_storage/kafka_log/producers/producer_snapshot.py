"""A producer snapshot: the state of a partition's producers up to an offset.

`{offset, 20 digits}.snapshot`, where `offset` is the first one that is not in it, is a header of 10 bytes and a run of
46-byte entries, big-endian:

    version                   int16    1
    crc                       uint32   CRC-32C of all that follows
    count                     int32    how many entries follow
    entries:
      producer id             int64
      producer epoch          int16
      last sequence           int32    of its last batch; -1: none
      last offset             int64    of its last batch; -1: none
      offset delta            int32    last offset - base offset of its last batch
      timestamp               int64    ms, the largest one of its last batch or its last marker
      coordinator epoch       int32    of the transaction coordinator that wrote its last marker; -1: none
      current first offset    int64    of its open transaction; -1: none is open

A broker writes one at each roll, for the new base offset, and when it stops. The producers are in the order of its hash
table, see `in_broker_order`.

Source: KIP-98; ProducerSnapshot.json of released Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.small_files import read_small_file, replace_file
from tiered_storage.kafka_log.kernels.checksum import crc32c

VERSION = 1
MAX_BYTES = 64 << 20

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_COUNT = struct.Struct(">i")
_LEAST_BUCKETS = 16
_CHECKED_FROM = _HEADER.size - _COUNT.size


@dataclass(frozen=True, slots=True)
class ProducerSnapshotEntry:
    """One producer, with the fields of the layout above in its order; -1: none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: int


def read_producer_snapshot(path: Path) -> tuple[ProducerSnapshotEntry, ...]:
    """Read the producers of a snapshot.

    Raises CorruptIndexError if the version is unknown, the checksum is wrong, or the size is not that of its count.
    """
    return parse_producer_snapshot(read_small_file(path, MAX_BYTES), path)


def parse_producer_snapshot(content: bytes, source: Path | str) -> tuple[ProducerSnapshotEntry, ...]:
    """Return the producers of a snapshot with this `content`; raises as read_producer_snapshot, naming `source`."""
    if len(content) < _HEADER.size:
        raise CorruptIndexError(source, len(content), f"the file ends within its header of {_HEADER.size} bytes")
    version, crc, count = _HEADER.unpack_from(content)
    if version != VERSION:
        raise CorruptIndexError(source, 0, f"producer snapshot version {version} is unknown: {VERSION} was expected")
    if crc32c(content[_CHECKED_FROM:]) != crc:
        raise CorruptIndexError(source, _CHECKED_FROM, "the checksum does not match")
    if count < 0 or len(content) != _HEADER.size + count * _ENTRY.size:
        raise CorruptIndexError(source, _CHECKED_FROM, f"{len(content)} bytes are not those of {count} producers")
    return tuple(ProducerSnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(content[_HEADER.size :]))


def encode_producer_snapshot(entries: Sequence[ProducerSnapshotEntry] = ()) -> bytes:
    """Return the content of a snapshot of these producers."""
    checked = _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*astuple(entry)) for entry in entries)
    return struct.pack(">hI", VERSION, crc32c(checked)) + checked


def write_producer_snapshot(path: Path, entries: Sequence[ProducerSnapshotEntry] = ()) -> None:
    """Write a snapshot of these producers, durably and all or nothing."""
    replace_file(path, encode_producer_snapshot(entries))


def in_broker_order(entries: Sequence[ProducerSnapshotEntry]) -> tuple[ProducerSnapshotEntry, ...]:
    """Return `entries`, which are in order of their producers' first batch, in a broker's order.

    That is the bucket order of a java.util.HashMap; a broker's has more buckets if it once had more producers.
    """
    buckets = _LEAST_BUCKETS
    while len(entries) > buckets * 3 // 4:
        buckets *= 2
    return tuple(sorted(entries, key=lambda entry: _java_hash(entry.producer_id) & (buckets - 1)))


def _java_hash(producer_id: int) -> int:
    """Return the hash of a java.lang.Long as HashMap spreads it, without its sign."""
    hashed = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
    return hashed ^ (hashed >> 16)
