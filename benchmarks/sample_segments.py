"""Segments in memory to decode: records of 1 KiB in batches of 100 KB by each codec, small ones, one-record batches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tiered_storage.kafka_log.records.record import Headers, Record
from tiered_storage.kafka_log.records.record_batch import Compression, encode_batch

RECORD_BYTES = 1024
BATCH_RECORDS = 95
"""Of 1 KiB with their keys and lengths they are a batch of 100 KB."""
SMALL_BATCH_RECORDS = 3300
"""The same of records of 30 bytes."""
FIRST_TIMESTAMP = 1_700_000_000_000
_HEADERS: Headers = (("header1", b"kafkaHeader1-val"), ("header2", b"kafkaHeader2-val"))


@dataclass(frozen=True, slots=True)
class SampleSegment:
    """A segment from offset 0 on, and how large its batches are with their records uncompressed."""

    title: str
    content: bytes
    records: int
    decompressed: int


def kib_records(codec: Compression, size: int) -> SampleSegment:
    """Return `size` bytes, about, of 1 KiB records: noise where nothing compresses them, else JSON of an event each."""
    chance = random.Random(1)  # noqa: S311 - content, no secret
    values = [chance.randbytes(RECORD_BYTES) if codec is Compression.NONE else _event(chance) for _ in range(2000)]
    batches = []
    decompressed = 0
    offset = 0
    while decompressed < size:
        records = [
            Record(at, FIRST_TIMESTAMP + at, b"key-%012d" % at, values[at % len(values)])
            for at in range(offset, offset + BATCH_RECORDS)
        ]
        batches.append(encode_batch(records, codec))
        decompressed += len(batches[-1]) if codec is Compression.NONE else len(encode_batch(records))
        offset += BATCH_RECORDS
    return SampleSegment(f"1 KiB records, {codec.name.lower()}", b"".join(batches), offset, decompressed)


def small_records(size: int) -> SampleSegment:
    """Return `size` bytes, about, of records of 30 bytes in batches of 100 KB."""
    batches: list[bytes] = []
    offset = held = 0
    while held < size:
        records = [
            Record(at, FIRST_TIMESTAMP + at, None, b"kafkaVal-%012d" % at)
            for at in range(offset, offset + SMALL_BATCH_RECORDS)
        ]
        batches.append(encode_batch(records))
        held += len(batches[-1])
        offset += SMALL_BATCH_RECORDS
    return SampleSegment("records of 30 bytes", b"".join(batches), offset, held)


def one_record_batches(count: int) -> SampleSegment:
    """Return small records, each with two headers and a batch of its own, as an idempotent producer without linger."""
    return _of_single_records(
        "one-record batches of 136 bytes",
        (Record(i, FIRST_TIMESTAMP + i, b"%05d" % i, b"kafkaVal-%05d" % i, _HEADERS) for i in range(count)),
    )


def one_kib_record_batches(count: int) -> SampleSegment:
    """Return records of 1 KiB, each with a batch of its own."""
    value = random.Random(1).randbytes(RECORD_BYTES)  # noqa: S311 - content, no secret
    return _of_single_records(
        "one-record batches of 1 KiB", (Record(i, FIRST_TIMESTAMP + i, b"%05d" % i, value) for i in range(count))
    )


def _of_single_records(title: str, records: Iterator[Record]) -> SampleSegment:
    batches = [
        encode_batch([record], producer_id=1, producer_epoch=0, base_sequence=record.offset) for record in records
    ]
    content = b"".join(batches)
    return SampleSegment(title, content, len(batches), len(content))


def _event(chance: random.Random) -> bytes:
    """An event of 1 KiB: numbers that nothing compresses, and words that repeat."""
    event = {
        "id": chance.getrandbits(48),
        "user": chance.randrange(10**9),
        "country": chance.choice(["DE", "FR", "US"]),
        "amount": chance.randrange(10**6) / 100,
        "session": f"{chance.getrandbits(128):032x}",
        "path": "",
    }
    text = json.dumps(event)
    while len(text) < RECORD_BYTES:
        text += " " + chance.choice(_WORDS)
    return text[:RECORD_BYTES].encode()


def _words() -> list[str]:
    chance = random.Random(2)  # noqa: S311 - content, no secret
    return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 10))) for _ in range(2000)]


_WORDS = _words()
