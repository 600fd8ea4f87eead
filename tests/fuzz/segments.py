"""Segments to begin from, and what makes sound batches of a fuzzer's bytes."""

from __future__ import annotations

from collections.abc import Iterable

from support.records import varied_records
from support.transactions import ABORT, data, marker
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, CODEC_BITS, CRC_END, HIGHEST_OFFSET, LOG_OVERHEAD
from tiered_storage.kafka_log.records.compression import Compression, compress
from tiered_storage.kafka_log.records.record_batch import Record, TimestampType, encode_batch, encode_empty_batch


def mended(content: bytes, *, with_codecs: bool) -> list[bytes]:
    """Cut `content` into batches whose magic, length and checksum are right.

    With codecs, the records of each are compressed as its attributes say: so what a fuzzer does to them arrives.
    """
    batches = []
    position = 0
    while len(content) - position >= BATCH_OVERHEAD:
        size = LOG_OVERHEAD + int.from_bytes(content[position + 8 : position + 12], "big")
        if not BATCH_OVERHEAD <= size <= len(content) - position:
            size = len(content) - position
        batch = bytearray(content[position : position + size])
        position += size
        codec = batch[CRC_END + 1] & CODEC_BITS
        if with_codecs and 0 < codec <= max(Compression):
            batch[BATCH_OVERHEAD:] = compress(Compression(codec), bytes(batch[BATCH_OVERHEAD:]))
        batch[16] = 2
        batch[8:12] = (len(batch) - LOG_OVERHEAD).to_bytes(4, "big")
        batch[CRC_END - 4 : CRC_END] = crc32c(memoryview(batch)[CRC_END:]).to_bytes(4, "big")
        batches.append(bytes(batch))
    return batches


def segments() -> Iterable[bytes]:
    """Yield small segments of every kind."""
    records = list(varied_records(12, seed=1))
    for codec in Compression:
        for stamp in TimestampType:
            yield encode_batch(records[:6], codec, timestamp_type=stamp) + encode_batch(records[6:], codec)
    transactional = data(0, 7, 0, count=2, transactional=True)
    yield transactional + data(2, 8, 0, transactional=True) + marker(3, 7, ABORT) + marker(4, 8)
    yield encode_empty_batch(transactional) + data(5, -1, count=2)
    yield encode_batch(records[:2], delete_horizon=1_600_000_000_000)


def uncompressed_segments() -> Iterable[bytes]:
    """Yield segments whose records lie open, whatever codec their attributes say."""
    records = list(varied_records(12, seed=2))
    for codec in Compression:
        batch = bytearray(encode_batch(records))
        batch[CRC_END + 1] |= codec
        yield bytes(batch)


def tiny_segments() -> Iterable[bytes]:
    """Yield segments of one record, so small that a change of a byte changes what it means."""
    for headers in ((), (("ö", b"v"),), (("", None), ("k", b"")), (("k", b"v"),)):
        for key, value in ((None, b"value"), (b"k", None), (b"", b"")):
            yield encode_batch([Record(0, 5, key, value, headers)])


def last_possible_segment() -> bytes:
    """Return a segment that no offset could follow, if it had one more."""
    return encode_batch([Record(HIGHEST_OFFSET - 1, 5, None, b"a"), Record(HIGHEST_OFFSET, 5, None, b"b")])
