"""Targets: what comes over the network to be appended, from a producer and from a leader.

Nothing is written to a disk: what a log makes of such bytes before it writes them is all that can go wrong by them, and
in memory thousands of inputs a second are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fuzz.built_records import build_batch
from fuzz.segments import last_possible_segment, mended, segments, tiny_segments, uncompressed_segments
from fuzz.target import Target, value_or_error
from support.transactions import ABORT, data, marker
from tiered_storage.errors import (
    ConfigurationError,
    CorruptLogError,
    LaterVersionError,
    RemoteObjectCorruptError,
    UnexpectedAppendOffsetError,
)
from tiered_storage.kafka_log.kernels.constants import APPEND_TIME_BIT, BATCH_OVERHEAD, HIGHEST_OFFSET, INT32_MAX
from tiered_storage.kafka_log.log.batch_validation import SOURCE, RecordTimes, read_produced_batch, read_record_times
from tiered_storage.kafka_log.log.log_append import (
    PlacedBatch,
    check_followed_epochs,
    place_batch,
    read_markers,
    split_batches,
)
from tiered_storage.kafka_log.records.batch_header import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    check_crc,
    read_batch_header,
)
from tiered_storage.kafka_log.records.control_record import read_end_marker
from tiered_storage.kafka_log.records.record import INT64_MAX, Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, read_records
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner

_PARTITION = "orders-0"
_NOW = 1_700_000_000_000
_RAW, _BUILT, _STAMPED, _MISSIZED = 1, 2, 4, 8
"""Of a producer's input: bytes as they come; records built field by field; a log whose own clock stamps them; a length,
which no checksum covers, that is off by one."""
_WITH_EPOCH, _SPOILED = 2, 4
"""Of a leader's input, besides _RAW: its leader epoch is known; one batch has a wrong checksum."""

_Value = TypeVar("_Value")
_Refusal = (
    CorruptLogError | RemoteObjectCorruptError | LaterVersionError | ConfigurationError | UnexpectedAppendOffsetError
)


def append_produced(content: bytes) -> None:
    """A producer's batches: refused, or read back with the offsets of their place and all else as it was sent."""
    if len(content) < 10:
        return
    place = _Place.of(content[:10])
    for batch in _produced(content[8], content[10:]):
        header = _value_or_refusal(lambda batch=batch: read_produced_batch(batch), len(batch))  # type: ignore[misc]
        if isinstance(header, BatchHeader):
            _check_produced(header, len(batch))
            times = _times_by_both_decoders(batch, header)
            if times is not None:
                place.check(batch, header, times)


def append_followed(content: bytes) -> None:
    """A leader's batches: those that a plain walk over them takes too, or an error where that has one."""
    if len(content) < 11:
        return
    next_offset, flags = int.from_bytes(content[:8], "big") & INT64_MAX, content[8]
    leader_epoch = content[9] if flags & _WITH_EPOCH else None
    batches = _followed(flags, content[11:])
    whole = b"".join(batches)
    sent = whole[: max(0, len(whole) - content[10])]
    found = _value_or_refusal(lambda: split_batches(sent, next_offset, leader_epoch, _PARTITION), len(sent))
    if not flags & _RAW:
        _compare(found, _Walk.over(batches, len(sent), next_offset, leader_epoch))
    if isinstance(found, list):
        _check_followed(found, sent, next_offset)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a log gives a producer's batch."""

    base_offset: int
    leader_epoch: int
    timestamp_type: TimestampType

    @classmethod
    def of(cls, flags: bytes) -> _Place:
        stamp = TimestampType.LOG_APPEND_TIME if flags[8] & _STAMPED else TimestampType.CREATE_TIME
        return cls(int.from_bytes(flags[:8], "big") & INT64_MAX, flags[9], stamp)

    def check(self, batch: bytes, header: BatchHeader, times: RecordTimes) -> None:
        """Place `batch`, and read it back."""
        is_stamped = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        latest = _NOW if is_stamped else times.latest
        placed = value_or_error(
            lambda: place_batch(batch, self.base_offset, self.leader_epoch, latest, self.timestamp_type), SOURCE
        )
        if not isinstance(placed, PlacedBatch):
            assert self.base_offset + header.last_offset_delta > HIGHEST_OFFSET, f"there is room for it: {placed}"
            return
        assert placed.header == replace(
            header,
            base_offset=self.base_offset,
            partition_leader_epoch=self.leader_epoch,
            max_timestamp=latest,
            attributes=header.attributes | (APPEND_TIME_BIT if is_stamped else 0),
            crc=placed.header.crc,
        )
        _scan(placed)
        sent = [
            replace(record, offset=self.base_offset + number, timestamp=latest if is_stamped else record.timestamp)
            for number, record in enumerate(read_records(batch))
        ]
        assert read_records(placed.content) == sent


@dataclass(frozen=True, slots=True)
class _Walk:
    """The fate of a leader's batches: how many are appended, and the error of the next one, if it has one."""

    taken: int
    broken_at: int | None = None
    is_below: bool = False

    @classmethod
    def over(cls, batches: Sequence[bytes], size: int, next_offset: int, leader_epoch: int | None) -> _Walk:
        """Walk over `batches`, of which the first `size` bytes have come."""
        position = 0
        for taken, batch in enumerate(batches):
            if size - position < _least_size(batch):
                return cls(taken)
            header = value_or_error(lambda batch=batch: read_batch_header(batch, source=SOURCE), SOURCE)  # type: ignore[misc]
            if not isinstance(header, BatchHeader):
                return cls(taken, broken_at=position)
            if position + len(batch) > size or _is_above(header, leader_epoch):
                return cls(taken)
            if value_or_error(lambda batch=batch: check_crc(batch, source=SOURCE), SOURCE):  # type: ignore[misc]
                return cls(taken, broken_at=position)
            if header.base_offset < next_offset:
                return cls(taken, is_below=True)
            position += len(batch)
            next_offset = header.base_offset + header.last_offset_delta + 1
        return cls(len(batches))


def _least_size(batch: bytes) -> int:
    """Return how many bytes show the whole header of `batch`, which may be a message of magic 0 or 1."""
    return {0: 26, 1: 34}.get(batch[16], BATCH_OVERHEAD) if len(batch) > 16 else BATCH_OVERHEAD


def _value_or_refusal(read: Callable[[], _Value], size: int) -> _Value | _Refusal:
    """Return what `read` returns, or its error: a position in `size` bytes, or what a sound batch may not ask for."""
    try:
        return value_or_error(read, SOURCE, size)
    except (ConfigurationError, UnexpectedAppendOffsetError) as error:
        return error


def _produced(flags: int, content: bytes) -> list[bytes]:
    """Return the batches that a producer sends; only those with a right checksum get far.

    Their records are compressed here: what a broken or a huge frame does is for the targets of codecs.
    """
    if flags & _RAW:
        return [content]
    batches = mended(build_batch(content, with_codec=True) if flags & _BUILT else content, with_codecs=True)
    if flags & _MISSIZED:
        return [batch[:11] + bytes([batch[11] ^ 1]) + batch[12:] for batch in batches]
    return batches


def _check_produced(header: BatchHeader, size: int) -> None:
    """Of what is taken from producers, readers may rely on this."""
    assert header.size == size
    assert header.record_count == header.last_offset_delta + 1
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.producer_id >= NO_PRODUCER_ID
    assert header.has_producer or not header.is_transactional
    assert not header.has_producer or min(header.base_sequence, header.producer_epoch) >= 0


def _followed(flags: int, content: bytes) -> list[bytes]:
    """Return the batches that a leader sends: as they come, or with right checksums, or all of these but one right."""
    if flags & _RAW:
        return [content]
    batches = mended(content, with_codecs=True)
    if flags & _SPOILED and batches:
        which = (flags >> 3) % len(batches)
        batches[which] = batches[which][:-1] + bytes([batches[which][-1] ^ 1])
    return batches


def _times_by_both_decoders(batch: bytes, header: BatchHeader) -> RecordTimes | None:
    """Return what the times of the records come to, None where they are broken, once both decoders say the same."""
    plain, decoded = (
        value_or_error(lambda few=few: read_record_times(batch, header, few_records=few), SOURCE, len(batch))  # type: ignore[misc]
        for few in (INT32_MAX, 0)
    )
    if not isinstance(plain, RecordTimes):
        assert isinstance(decoded, CorruptLogError), f"the plain decoder refuses: {plain}"
        return None
    assert decoded == plain, f"{decoded}; the plain decoder: {plain}"
    records = read_records(batch)
    assert [record.offset - header.base_offset for record in records] == list(range(header.record_count))
    assert plain == _times_of(records)
    return plain


def _times_of(records: Sequence[Record]) -> RecordTimes:
    timed = [record.timestamp for record in records if record.timestamp != NO_TIMESTAMP]
    return RecordTimes(min(timed, default=None), max([NO_TIMESTAMP, *timed]))


def _compare(found: list[PlacedBatch] | _Refusal, walk: _Walk) -> None:
    if walk.is_below:
        assert isinstance(found, UnexpectedAppendOffsetError), f"a batch lies below the log's end: {found}"
    elif walk.broken_at is not None:
        assert isinstance(found, CorruptLogError), f"the batch at {walk.broken_at} is broken: {found}"
        assert found.position == walk.broken_at, f"{found}; broken is the batch at {walk.broken_at}"
    else:
        assert isinstance(found, list), f"what is sound was refused: {found}"
        assert len(found) == walk.taken


def _check_followed(found: Sequence[PlacedBatch], sent: bytes, next_offset: int) -> None:
    assert sent.startswith(b"".join(batch.content for batch in found))
    for batch in found:
        assert batch.header.base_offset >= next_offset
        next_offset = batch.header.next_offset
        _scan(batch)
    _check_markers(found, sent)
    epochs = [batch.header.partition_leader_epoch for batch in found]
    known = [epoch for epoch in epochs if epoch != NO_LEADER_EPOCH]
    refused = _value_or_refusal(lambda: check_followed_epochs(found, None, _PARTITION), 0)
    assert (refused is not None) == (known != sorted(known) or min(known, default=0) < 0), f"{known}: {refused}"


def _check_markers(found: Sequence[PlacedBatch], sent: bytes) -> None:
    """Of a control batch that cannot be read the place is named at which it was sent."""
    markers = value_or_error(lambda: read_markers(found), SOURCE, len(sent))
    expected: list[object] = []
    position = 0
    for batch in found:
        marked = value_or_error(lambda content=batch.content: read_end_marker(content, source=SOURCE), SOURCE)  # type: ignore[misc]
        if batch.header.is_control and isinstance(marked, CorruptLogError):
            assert isinstance(markers, CorruptLogError), f"the batch at {position} is broken: {marked}"
            assert markers.position == position, f"{markers}; broken is the batch at {position}"
            return
        expected.append(marked if batch.header.is_control else None)
        position += batch.header.size
    assert markers == expected


def _scan(batch: PlacedBatch) -> None:
    """Read a batch's header as the readers of a log do, its checksum compared."""
    header, content = batch.header, memoryview(batch.content)
    table, consumed = SegmentScanner(SOURCE, header.base_offset).feed(content)
    assert consumed == len(content)
    assert table.base_offset.tolist() == [header.base_offset]
    assert table.last_offset.tolist() == [header.last_offset]


def _is_above(header: BatchHeader, leader_epoch: int | None) -> bool:
    return leader_epoch is not None and header.partition_leader_epoch > leader_epoch


def _produced_seeds() -> Iterable[bytes]:
    for number, segment in enumerate([*segments(), *uncompressed_segments(), *tiny_segments()]):
        yield (1000).to_bytes(8, "big") + bytes([_STAMPED * (number & 1), number]) + segment
    yield HIGHEST_OFFSET.to_bytes(8, "big") + bytes(2) + data(count=2)
    yield bytes(10) + data(0, 7, 3, count=40, transactional=True)
    yield bytes(10) + encode_batch([Record(0, -1, None, b"untimed"), Record(1, 5, None, b"")])
    for flags in (_RAW, _MISSIZED):
        yield bytes([*bytes(8), flags, 0]) + data(0, 7, 3, count=2)
    for number in range(4):
        yield bytes([*bytes(8), _BUILT, 0]) + bytes(place * number % 240 for place in range(1, 60))


def _followed_seeds() -> Iterable[bytes]:
    for segment in [*segments(), last_possible_segment()]:
        yield bytes(11) + segment
    batches = data(5, leader_epoch=1) + data(9, 7, 0, count=3, leader_epoch=2) + marker(12, 7, ABORT)
    for flags in (0, _RAW, _WITH_EPOCH, _SPOILED, _SPOILED | 8):
        for cut in (0, 1, 200):
            yield bytes([*bytes(8), flags, 1, cut]) + batches
    yield (6).to_bytes(8, "big") + bytes(3) + batches
    yield bytes(11) + data(5) + encode_batch([Record(6, 5, b"cut", b"")], is_control=True)


APPEND_TARGETS = (
    Target("produced_batch", append_produced, _produced_seeds, has_kernels=True),
    Target("followed_batches", append_followed, _followed_seeds),
)
