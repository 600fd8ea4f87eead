"""The names of the objects in the store.

    {cluster id}/{topic}-{topic id}/{partition}/{base offset, 20 digits}-{segment id}.log       a segment's bytes
                                                {base offset, 20 digits}-{segment id}.indexes   the bundle beside it
                                                {base offset, 20 digits}-{segment id}.commit    the commit marker
                                                {base offset, 20 digits}-{segment id}.key       its wrapped data key
                                                state/{fencing number, 20 digits}.json          the partition manifest
    store.json                                                                                  the store's identity
    store.generation/{number, 20 digits}.json                                                   its generation
    store.clock/now                                                                             a probe of its clock
    store.decisions/{number, 20 digits}.json                                                    of earlier releases

All names are below the store's root. The ids of topics and segments are Kafka Uuids: 22 characters of base64url. While
a local directory writes an object, its name ends with `.{16 hex digits}.tmp`; a killed process leaves it behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.storage.clients.object_client import TEMPORARY_SUFFIX

STORE_IDENTITY = "store.json"
STORE_GENERATION = "store.generation"
STORE_DECISIONS = "store.decisions"
"""Earlier releases numbered decisions there; the first generation replaces them."""
STORE_CLOCK = "store.clock"
RESERVED = frozenset({STORE_IDENTITY, STORE_GENERATION, STORE_DECISIONS, STORE_CLOCK})
"""The store's own names beside the clusters' folders."""

HIGHEST_NUMBER = 2**62
"""The highest fencing number and generation; an object with a higher one is not ours.

It leaves room to count on from a number in the store, in the metadata too.
"""

_MAX_OFFSET = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
UUID = re.compile(r"[A-Za-z0-9_-]{22}")
"""A Kafka Uuid: the form of topic ids and segment ids."""
_PARTITION_FOLDER = re.compile(
    rf"(?P<cluster_id>{_PLAIN_NAME.pattern})"
    rf"/(?P<topic>{_PLAIN_NAME.pattern})-(?P<topic_id>{UUID.pattern})"
    r"/(?P<partition>0|[1-9][0-9]{0,9})"
)
_SEGMENT_OBJECT = re.compile(
    rf"(?P<base_offset>[0-9]{{20}})-(?P<segment_id>{UUID.pattern})\.(?P<kind>log|indexes|commit|key)"
    rf"(?P<temporary>{TEMPORARY_SUFFIX.pattern})?"
)

_PARTITION_DOCUMENT = re.compile(
    rf"[^/]+/[^/]+/[^/]+/state/(?P<fencing_number>[0-9]{{20}})\.json(?P<temporary>{TEMPORARY_SUFFIX.pattern})?"
)


_NUMBERED = re.compile(r"(?P<folder>[^/]+)/(?P<number>[0-9]{20})\.json")


class ObjectKind(StrEnum):
    """The content of a segment's object; the values are the suffixes of the names."""

    DATA = "log"
    INDEXES = "indexes"
    COMMIT_MARKER = "commit"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class PartitionManifestName:
    """The parsed name of a partition manifest; `listed_as` is the whole name.

    A `temporary` one is an incomplete write and of no use.
    """

    topic_id_partition: TopicIdPartition
    fencing_number: int
    suffix: str = ""

    @property
    def name(self) -> str:
        """The document's name once it is complete."""
        return f"{partition_manifests_folder(self.topic_id_partition)}/{self.fencing_number:020}.json"

    @property
    def listed_as(self) -> str:
        """The object's name as listed."""
        return self.name + self.suffix

    @property
    def temporary(self) -> bool:
        """Whether it is an incomplete write."""
        return bool(self.suffix)


@dataclass(frozen=True, slots=True)
class SegmentObjectNames:
    """The names of one segment's objects, which have a common prefix."""

    stem: str

    @property
    def data(self) -> str:
        """The segment's bytes."""
        return f"{self.stem}.{ObjectKind.DATA}"

    @property
    def indexes(self) -> str:
        """The bundle of its indexes."""
        return f"{self.stem}.{ObjectKind.INDEXES}"

    @property
    def commit_marker(self) -> str:
        """The commit marker, which says that both others are complete."""
        return f"{self.stem}.{ObjectKind.COMMIT_MARKER}"

    @property
    def key(self) -> str:
        """The data key of an encrypted segment, wrapped by a key of the key ring."""
        return f"{self.stem}.{ObjectKind.KEY}"


@dataclass(frozen=True, slots=True)
class SegmentObjectName:
    """The parsed name of a segment's object. A `temporary` one is an incomplete write and of no use."""

    segment_id: RemoteLogSegmentId
    base_offset: int
    kind: ObjectKind
    temporary: bool = False

    @property
    def names(self) -> SegmentObjectNames:
        """The names of all objects of the same segment."""
        return segment_object_names(self.segment_id, self.base_offset)


def partition_folder(partition: TopicIdPartition) -> str:
    """Return the folder that holds everything of `partition`, without a slash at the end.

    Raises ConfigurationError if an id or the topic's name would make a name that leads elsewhere.
    """
    cluster_id = _plain("cluster id", partition.cluster_id)
    if cluster_id in RESERVED:
        raise ConfigurationError(f"a cluster cannot have the id {cluster_id!r}: the store keeps its own things there")
    topic = _plain("topic", partition.topic)
    topic_id = _uuid("topic id", partition.topic_id)
    if not 0 <= partition.partition <= _MAX_PARTITION:
        raise ConfigurationError(f"{topic}: {partition.partition} is not the number of a partition")
    return f"{cluster_id}/{topic}-{topic_id}/{partition.partition}"


def partition_manifests_folder(partition: TopicIdPartition) -> str:
    """Return the folder of the partition manifests: a separate one, since there may be 100,000 segments beside it.

    Raises ConfigurationError as `partition_folder`.
    """
    return f"{partition_folder(partition)}/state"


def segment_object_names(segment_id: RemoteLogSegmentId, base_offset: int) -> SegmentObjectNames:
    """Return the names of a segment's objects.

    Raises ConfigurationError if an id, the topic's name or the offset does not make a safe name.
    """
    # Ids are equal whatever the topic's name is, and the objects' names have it.
    return _object_names(segment_id, segment_id.topic_id_partition.topic, base_offset)


@lru_cache(maxsize=1024)
def _object_names(segment_id: RemoteLogSegmentId, topic: str, base_offset: int) -> SegmentObjectNames:  # noqa: ARG001 - a part of the key
    folder = partition_folder(segment_id.topic_id_partition)
    if not 0 <= base_offset <= _MAX_OFFSET:
        raise ConfigurationError(f"{segment_id}: {base_offset} is not a base offset")
    return SegmentObjectNames(f"{folder}/{base_offset:020}-{_uuid('segment id', segment_id.id)}")


def parse_object_name(name: str) -> SegmentObjectName | None:
    """Return the parsed `name`; None if it is not the name of a segment's object."""
    folder, _, file_name = name.rpartition("/")
    match = _SEGMENT_OBJECT.fullmatch(file_name)
    partition = None if match is None else _partition_of(folder)
    if match is None or partition is None or int(match["base_offset"]) > _MAX_OFFSET:
        return None
    segment_id = RemoteLogSegmentId(partition, match["segment_id"])
    kind = ObjectKind(match["kind"])
    return SegmentObjectName(segment_id, int(match["base_offset"]), kind, match["temporary"] is not None)


def parse_partition_manifest_name(name: str) -> PartitionManifestName | None:
    """Return the parsed `name`; None if it is not the name of a partition manifest."""
    partition = parse_partition_folder(name)
    match = _PARTITION_DOCUMENT.fullmatch(name)
    if partition is None or match is None or int(match["fencing_number"]) > HIGHEST_NUMBER:
        return None
    return PartitionManifestName(partition, int(match["fencing_number"]), match["temporary"] or "")


def parse_partition_folder(name: str) -> TopicIdPartition | None:
    """Return the partition whose folder holds the object `name`, at any depth; None if there is none."""
    folder = "/".join(name.split("/", 3)[:3])
    return _partition_of(folder) if folder != name else None


@lru_cache(maxsize=1024)
def _partition_of(folder: str) -> TopicIdPartition | None:
    """Return the partition with the `folder`; a store lists it once for each of a hundred thousand objects."""
    match = _PARTITION_FOLDER.fullmatch(folder)
    if match is None or match["cluster_id"] in {".", "..", *RESERVED} or match["topic"] in {".", ".."}:
        return None
    number = int(match["partition"])
    if number > _MAX_PARTITION:
        return None
    return TopicIdPartition(match["cluster_id"], match["topic_id"], number, match["topic"])


def store_generation_name(number: int) -> str:
    """Return the name of a generation's object."""
    return f"{STORE_GENERATION}/{number:020}.json"


def parse_store_generation_name(name: str) -> int | None:
    """Return the number of the generation with the object `name`; None if it is not a generation's."""
    return _number_in(name, STORE_GENERATION)


def parse_store_decision_name(name: str) -> int | None:
    """Return the number of the decision with the object `name`; None if it is not a decision's."""
    return _number_in(name, STORE_DECISIONS)


def _number_in(name: str, folder: str) -> int | None:
    match = _NUMBERED.fullmatch(name)
    if match is None or match["folder"] != folder:
        return None
    number = int(match["number"])
    return None if number > HIGHEST_NUMBER else number


def _plain(what: str, value: str) -> str:
    if _PLAIN_NAME.fullmatch(value) is None or value in {".", ".."}:
        raise ConfigurationError(
            f"the {what} {value[:260]!r} makes no name for an object: it must be 1 to 249 of the characters "
            "A-Z, a-z, 0-9, '.', '_' and '-'"
        )
    return value


def _uuid(what: str, value: str) -> str:
    if UUID.fullmatch(value) is None:
        raise ConfigurationError(f"the {what} {value[:40]!r} is no Kafka Uuid: it must be 22 characters of base64url")
    return value
