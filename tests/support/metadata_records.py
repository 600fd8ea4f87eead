"""Records of the metadata topic for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tiered_storage.kafka_log.files.kafka_uuid import RESERVED_UUIDS, encode_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.topic.records import (
    MetadataEvent,
    MetadataRecord,
    RemoteLogSegmentMetadataSnapshot,
)
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

CLUSTER = "the-cluster-of-the-topic"

_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_COUNT = st.integers(0, 2**31 - 1)
_CUSTOM = st.none() | st.binary(max_size=300)
_UUIDS = st.binary(min_size=16, max_size=16).filter(lambda raw: raw not in RESERVED_UUIDS).map(encode_uuid)
_NAMES = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
_PARTITIONS = st.builds(TopicIdPartition, st.just(CLUSTER), _UUIDS, _COUNT, _NAMES)
_SEGMENT_IDS = st.builds(RemoteLogSegmentId, _PARTITIONS, _UUIDS)
_EPOCHS = st.dictionaries(_INT32, _INT64, min_size=1, max_size=140).map(
    lambda starts: tuple(EpochEntry(epoch, starts[epoch]) for epoch in sorted(starts))
)
_OFFSETS = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(sorted)


@st.composite
def _segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start, end = draw(_OFFSETS)
    return RemoteLogSegmentMetadata(
        draw(_SEGMENT_IDS),
        start,
        end,
        max_timestamp=draw(_INT64),
        event_timestamp=draw(_INT64),
        size=draw(_COUNT),
        leader_epochs=draw(_EPOCHS),
        state=draw(st.sampled_from(SegmentState)),
        broker_id=draw(_INT32),
        custom_metadata=draw(_CUSTOM),
    )


@st.composite
def _snapshots(draw: st.DrawFn) -> RemoteLogSegmentMetadataSnapshot:
    start, end = draw(_OFFSETS)
    return RemoteLogSegmentMetadataSnapshot(
        draw(_UUIDS),
        start,
        end,
        max_timestamp=draw(_INT64),
        event_timestamp=draw(_INT64),
        size=draw(_COUNT),
        leader_epochs=draw(_EPOCHS),
        state=draw(st.sampled_from(SegmentState)),
        broker_id=draw(_INT32),
        custom_metadata=draw(_CUSTOM),
    )


_UPDATES = st.builds(
    RemoteLogSegmentMetadataUpdate, _SEGMENT_IDS, st.sampled_from(SegmentState), _INT64, custom_metadata=_CUSTOM
)
_DELETES = st.builds(RemotePartitionDeleteMetadata, _PARTITIONS, st.sampled_from(PartitionDeleteState), _INT64)


@st.composite
def metadata_events(draw: st.DrawFn) -> MetadataEvent:
    """Any event that a value can hold."""
    record: MetadataRecord = draw(st.one_of(_segments(), _UPDATES, _DELETES, _snapshots()))
    if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot):
        return MetadataEvent(record, record.broker_id, draw(st.booleans()))
    return MetadataEvent(record, draw(_INT32))
