"""Targets: the files beside a log, each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from fuzz.target import MemoryFile, Target, value_or_error
from support.records import Batch, batch_table
from tiered_storage.errors import CorruptLogError, LaterVersionError, RemoteObjectCorruptError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, encode_leader_epochs, read_leader_epochs
from tiered_storage.kafka_log.files.meta_properties import MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import read_offset_checkpoint
from tiered_storage.kafka_log.files.partition_metadata import read_topic_id
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import (
    AbortedTxn,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.producers.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    read_producer_snapshot,
)
from tiered_storage.kafka_log.producers.producer_state import ProducerState

INT64_MAX = (1 << 63) - 1

_file = MemoryFile()
_TABLE = batch_table(1000, [Batch(3, 90, 5), Batch(1, 61, 9), Batch(4, 400, 7), Batch(2, 70, 12, gap=5)])
_TRANSACTIONS = [AbortedTxn(7, 1000, 1004, 1002), AbortedTxn(8, 1002, 1009, 1010)]
_PRODUCERS = [
    ProducerSnapshotEntry(7, 0, 4, 1003, 2, 1_700_000_000_000, 3, -1),
    ProducerSnapshotEntry(8, 2, -1, -1, 0, -1, -1, 1001),
]


def _with_base_offset(read: Callable[[Path, int], None]) -> Callable[[bytes], None]:
    """Take the base offset from the first 8 bytes of the input."""

    def run(content: bytes) -> None:
        if len(content) >= 8:
            read(_file.filled(content[8:]), int.from_bytes(content[:8], "big") & INT64_MAX)

    return run


def _read_offset_index(path: Path, base_offset: int) -> None:
    index = value_or_error(lambda: OffsetIndex.read(path, base_offset), path)
    if not isinstance(index, OffsetIndex):
        return
    assert path.read_bytes().startswith(index.to_bytes())
    for offset in (base_offset, base_offset + 5, INT64_MAX):
        found = index.lookup(offset)
        assert base_offset <= found.offset <= offset
        assert found.position >= 0
    value_or_error(lambda: _check(OffsetIndexCheck(path, index)), path)


def _read_time_index(path: Path, base_offset: int) -> None:
    index = value_or_error(lambda: TimeIndex.read(path, base_offset), path)
    if not isinstance(index, TimeIndex):
        return
    assert path.read_bytes().startswith(index.to_bytes())
    for timestamp in (-1, 9, INT64_MAX):
        found = index.lookup(timestamp)
        assert -1 <= found.timestamp <= timestamp
        assert found.offset >= base_offset
    value_or_error(lambda: _check(TimeIndexCheck(path, index)), path)


def _check(check: OffsetIndexCheck | TimeIndexCheck) -> None:
    check.feed(_TABLE)
    check.finish()


def _read_transaction_index(path: Path, base_offset: int) -> None:
    index = value_or_error(lambda: TransactionIndex.read(path, base_offset), path)
    if isinstance(index, TransactionIndex):
        assert index.to_bytes() == path.read_bytes()
        assert len(index.collect_aborted(base_offset, INT64_MAX).transactions) <= len(index.transactions)


def _read_producer_snapshot(content: bytes) -> None:
    """The snapshot as it is, and with its checksum set right."""
    _take_snapshot(_file.filled(content))
    if len(content) >= 6:
        _take_snapshot(_file.filled(content[:2] + crc32c(content[6:]).to_bytes(4, "big") + content[6:]))


def _take_snapshot(path: Path) -> None:
    producers = value_or_error(lambda: read_producer_snapshot(path), path)
    if isinstance(producers, tuple):
        assert encode_producer_snapshot(producers) == path.read_bytes()
        state = ProducerState(1000, producers)
        path.write_bytes(encode_producer_snapshot(state.snapshot()))
        read_producer_snapshot(path)


def _read_leader_epochs(content: bytes) -> None:
    path = _file.filled(content)
    entries = value_or_error(lambda: read_leader_epochs(path), path, len(content))
    if isinstance(entries, tuple):
        path = _file.filled(encode_leader_epochs(entries))
        assert read_leader_epochs(path) == entries


def _read_offset_checkpoint(content: bytes) -> None:
    path = _file.filled(content)
    value_or_error(lambda: read_offset_checkpoint(path), path, len(content))


def _read_topic_id(content: bytes) -> None:
    path = _file.filled(content)
    topic_id = value_or_error(lambda: read_topic_id(path), path, len(content))
    if isinstance(topic_id, str):
        assert len(decode_uuid(topic_id)) == 16


def _read_meta_properties(content: bytes) -> None:
    path = _file.filled(content)
    found = value_or_error(lambda: MetaProperties.read(path), path, len(content))
    assert not isinstance(found, RemoteObjectCorruptError | LaterVersionError)
    if isinstance(found, CorruptLogError):
        return
    assert found.version in (0, 1)
    for text in (found.cluster_id, found.directory_id):
        assert text is None or text.encode() is not None, "what was read cannot be written anywhere"


def _indexes() -> IndexBuilder:
    builder = IndexBuilder(1000, 50)
    builder.append(_TABLE)
    builder.close()
    return builder


def _from_1000(*contents: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: [(1000).to_bytes(8, "big") + content for content in contents]


_CHECKPOINT = b"0\n2\norders 0 17\norders 1 4\n"
_META = (
    b"#comment\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\ndirectory.id=xsMTrxMGRlSGrhb3Dmq0Yg\n",
    b"! older\r\nversion:0\r\nbroker.id 3\r\n",
    b"version=1\\\n \ncluster\\u002eid = a\\tb\\\\ \nnode.id=2\n",
)

FILE_TARGETS = (
    Target(
        "offset_index",
        _with_base_offset(_read_offset_index),
        _from_1000(_indexes().offset_index().to_bytes(), bytes(24)),
    ),
    Target(
        "time_index", _with_base_offset(_read_time_index), _from_1000(_indexes().time_index().to_bytes(), bytes(24))
    ),
    Target(
        "transaction_index",
        _with_base_offset(_read_transaction_index),
        _from_1000(encode_aborted_transactions(_TRANSACTIONS)),
    ),
    Target("producer_snapshot", _read_producer_snapshot, lambda: [encode_producer_snapshot(_PRODUCERS)]),
    Target(
        "leader_epochs", _read_leader_epochs, lambda: [encode_leader_epochs([EpochEntry(0, 0), EpochEntry(3, 1500)])]
    ),
    Target("offset_checkpoint", _read_offset_checkpoint, lambda: [_CHECKPOINT, _CHECKPOINT.replace(b"\n", b"\r\n")]),
    Target(
        "partition_metadata",
        _read_topic_id,
        lambda: [b"version: 0\ntopic_id: cxfmXdFdRF2-6WITmvYjdA\n", b"version: 0\r\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"],
    ),
    Target("meta_properties", _read_meta_properties, lambda: _META),
)
