"""Dump Kafka's small state files entry by entry: producer snapshots, checkpoints, identities.

The entries of a corrupt checkpoint are shown up to the damage; of a corrupt snapshot none, since its checksum covers
all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpProblem, DumpRow, RowKind
from tiered_storage.kafka_log.files.checkpoint_file import MAX_CHECKPOINT_BYTES
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import read_leader_epochs
from tiered_storage.kafka_log.files.meta_properties import MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import read_offset_checkpoint
from tiered_storage.kafka_log.files.partition_metadata import MAX_BYTES as PARTITION_METADATA_BYTES
from tiered_storage.kafka_log.files.partition_metadata import read_topic_id
from tiered_storage.kafka_log.files.small_files import read_small_file
from tiered_storage.kafka_log.files.topic_partition import CLUSTER_METADATA_TOPIC
from tiered_storage.kafka_log.log.recovery.clean_shutdown import read_clean_shutdown
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from tiered_storage.regular_files import open_regular

Entries = Iterator[Mapping[str, object]]

_CHECKPOINT_HEADER_LINES = 2
_INT32_VALUES = 1 << 31
_NONE = -1
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_CLUSTER_METADATA_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The reserved id of the cluster's metadata topic; no other topic may have it."""
_CLUSTER_METADATA = f"version: 0\ntopic_id: {_CLUSTER_METADATA_ID}".encode()


def dump_producer_snapshot(path: Path) -> Iterator[DumpEvent]:
    """Yield the producers of a snapshot; what a producer does not have, as an open transaction, is None."""

    def entries() -> Entries:
        for producer in read_producer_snapshot(path):
            yield _producer_fields(producer)

    yield from _dump(entries)


def dump_leader_epochs(path: Path) -> Iterator[DumpEvent]:
    """Yield `epoch` and `startOffset` of each leader epoch."""

    def entries() -> Entries:
        for entry in read_leader_epochs(path):
            yield {"epoch": entry.epoch, "startOffset": entry.start_offset}

    yield from _dump(entries, lambda end: _lines_before(path, end, ("epoch", "startOffset")))


def dump_offset_checkpoint(path: Path) -> Iterator[DumpEvent]:
    """Yield `topic`, `partition` and `offset` of each partition."""

    def entries() -> Entries:
        for (topic, partition), offset in read_offset_checkpoint(path).items():
            yield {"topic": topic, "partition": partition, "offset": offset}

    yield from _dump(entries, lambda end: _lines_before(path, end, ("topic", "partition", "offset")))


def dump_partition_metadata(path: Path) -> Iterator[DumpEvent]:
    """Yield `version` and `topic_id`."""

    def entries() -> Entries:
        content = read_small_file(path, PARTITION_METADATA_BYTES)
        is_of_cluster = path.parent.name == f"{CLUSTER_METADATA_TOPIC}-0" and content == _CLUSTER_METADATA
        yield {"version": 0, "topic_id": _CLUSTER_METADATA_ID if is_of_cluster else read_topic_id(path)}

    yield from _dump(entries)


def dump_meta_properties(path: Path) -> Iterator[DumpEvent]:
    """Yield the cluster and node in meta.properties, by the keys of its version."""

    def entries() -> Entries:
        found = MetaProperties.read(path)
        yield {
            "version": found.version,
            "cluster.id": found.cluster_id,
            "node.id" if found.version else "broker.id": found.node_id,
            "directory.id": found.directory_id,
        }

    yield from _dump(entries)


def dump_clean_shutdown(path: Path) -> Iterator[DumpEvent]:
    """Yield `version` and `brokerEpoch`."""
    yield from _dump(lambda: iter([{"version": 0, "brokerEpoch": read_clean_shutdown(path)}]))


def _dump(entries: Callable[[], Entries], before: Callable[[int], Entries] | None = None) -> Iterator[DumpEvent]:
    """Yield `entries`, or the problem with them and, from `before`, the entries before its position."""
    problem = None
    try:
        rows = list(entries())
    except CorruptIndexError as error:
        problem = DumpProblem(error)
        rows = list(before(error.position)) if before else []
    for fields in rows:
        yield DumpRow(RowKind.ENTRY, fields)
    if problem is not None:
        yield problem


def _lines_before(path: Path, end: int, names: tuple[str, ...]) -> Entries:
    """Yield the entries of a checkpoint in its first `end` bytes, numbers as numbers."""
    with open_regular(path) as file:
        content = file.read(min(end, MAX_CHECKPOINT_BYTES))
    for line in content.decode("ascii", "backslashreplace").splitlines()[_CHECKPOINT_HEADER_LINES:]:
        fields = line.split()
        if len(fields) == len(names):
            yield {name: _number_or_text(name, field) for name, field in zip(names, fields, strict=True)}


def _number_or_text(name: str, field: str) -> int | str:
    return int(field) if name != "topic" and _NUMBER.fullmatch(field) else field


def _producer_fields(producer: ProducerSnapshotEntry) -> dict[str, object]:
    has_batch = producer.last_offset != _NONE
    transaction = producer.current_transaction_first_offset
    return {
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "currentTxnFirstOffset": None if transaction == _NONE else transaction,
        "lastTimestamp": producer.last_timestamp,
        "firstSequence": _sequence_before(producer.last_sequence, producer.offset_delta) if has_batch else None,
        "lastSequence": producer.last_sequence if has_batch else None,
        "lastOffset": producer.last_offset if has_batch else None,
        "offsetDelta": producer.offset_delta if has_batch else None,
    }


def _sequence_before(sequence: int, records: int) -> int:
    """Return the sequence number `records` before `sequence`; 2**31 - 1 comes before 0."""
    return (sequence - records) % _INT32_VALUES
