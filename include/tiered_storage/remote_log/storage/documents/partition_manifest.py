"""The partition manifest: the store's own record of a partition besides its segments, a small JSON object.

    format_version                 1
    cluster_id, topic, topic_id    text
    partition                      its number
    fencing_number                 of the lease under which it was written; also in the object's name
    log_start_offset               the global log start (inclusive), null if none was ever decided
    leader_epochs                  [[epoch, start offset], …]: the lineage as far back as known
    delete_state                   MARKED, STARTED or FINISHED once the partition is deleted remotely, or null
    marked_segments                ids of single segments that are marked for deletion and still exist
    written_at                     ms
    earlier_log_starts             [[log start offset, ms when a deletion moved it], …], for undelete; absent: none

Segments wholly below the global log start count as marked, and so do all from STARTED on: they are not listed, which
keeps the list short. Documents from before this list existed have none.

Each holder of the partition's lease writes its own document, so that no two write the same object, and then deletes
those of earlier holders: the one with the highest number is valid. It is written before the metadata's log start, marks
or deletion state change, so that a rebuild from the store never brings back what was about to be deleted. The document
of a partition whose deletion is FINISHED stays for good: objects of it that appear later are known as deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import EarlierLogStart, PartitionDeleteState, PartitionState, TopicIdPartition
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, delete_object
from tiered_storage.remote_log.storage.documents.json_document import (
    MAX_DOCUMENT_BYTES,
    Int32,
    JsonDocument,
    Natural,
    Text,
    encode_document,
    in_a_list,
)
from tiered_storage.remote_log.storage.documents.object_names import (
    HIGHEST_NUMBER,
    UUID,
    PartitionManifestName,
    parse_partition_manifest_name,
    partition_manifests_folder,
)

FORMAT_VERSION = 1
MAX_MARKED = 100_000
"""How many segments a document may list: 2.5 MB, well below the read limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    cluster_id: Text
    topic: Text
    topic_id: Text
    partition: Int32
    fencing_number: Annotated[int, Field(strict=True, ge=0, le=HIGHEST_NUMBER)]
    log_start_offset: Natural | None = None
    leader_epochs: tuple[Annotated[EpochEntry, in_a_list(EpochEntry)], ...]
    delete_state: Annotated[str, Field(pattern=f"^({'|'.join(PartitionDeleteState.__members__)})$")] | None = None
    marked_segments: tuple[Annotated[str, Field(pattern=f"^{UUID.pattern}$")], ...] = ()
    written_at: Natural
    earlier_log_starts: tuple[Annotated[EarlierLogStart, in_a_list(EarlierLogStart)], ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """The state of a partition, as the holder of lease `fencing_number` wrote it at `written_at` (ms).

    `marked` are the ids of single segments that are marked for deletion, in order.
    """

    topic_id_partition: TopicIdPartition
    fencing_number: int
    state: PartitionState
    written_at: int
    marked: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The object's name."""
        return PartitionManifestName(self.topic_id_partition, self.fencing_number).name

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read a document. Raises RemoteObjectCorruptError if it is corrupt, and LaterVersionError."""
        found = JsonDocument(raw, source, FORMAT_VERSION).read(_Document)
        deletion = None if found.delete_state is None else PartitionDeleteState[found.delete_state]
        return cls(
            TopicIdPartition(found.cluster_id, found.topic_id, found.partition, found.topic),
            found.fencing_number,
            PartitionState(found.log_start_offset, found.leader_epochs, deletion, found.earlier_log_starts),
            found.written_at,
            found.marked_segments,
        )

    def to_bytes(self) -> bytes:
        """Return the document's JSON."""
        key, state = self.topic_id_partition, self.state
        document = _Document(
            cluster_id=key.cluster_id,
            topic=key.topic,
            topic_id=key.topic_id,
            partition=key.partition,
            fencing_number=self.fencing_number,
            log_start_offset=state.log_start_offset,
            leader_epochs=state.lineage,
            delete_state=None if state.delete_state is None else state.delete_state.name,
            marked_segments=self.marked,
            written_at=self.written_at,
            earlier_log_starts=state.earlier_log_starts,
        )
        return encode_document(
            FORMAT_VERSION, document, omitted=set() if state.earlier_log_starts else {"earlier_log_starts"}
        )


@dataclass(frozen=True, slots=True)
class PartitionManifests:
    """The documents in one store. All methods raise what the store raises."""

    client: ObjectClient

    def newest_number(self, partition: TopicIdPartition) -> int | None:
        """Return the highest fencing number that a document of `partition` has; None if there is none."""
        return next(iter(self.numbers(partition)), None)

    def numbers(self, partition: TopicIdPartition) -> list[int]:
        """Return the fencing numbers of all documents of `partition`, the highest first: usually there is one."""
        return sorted((name.fencing_number for name in self._names(partition) if not name.temporary), reverse=True)

    def read(self, partition: TopicIdPartition) -> PartitionManifest | None:
        """Return the document of the highest number; None if there is none.

        Raises RemoteObjectCorruptError and LaterVersionError.
        """
        number = self.newest_number(partition)
        return None if number is None else self.read_numbered(partition, number)

    def read_numbered(self, partition: TopicIdPartition, number: int) -> PartitionManifest:
        """Return the document of lease `number`. Raises RemoteObjectNotFoundError, and as `read`."""
        name = PartitionManifestName(partition, number).name
        source = f"{self.client.root}/{name}"
        size = min(self.client.size(name), MAX_DOCUMENT_BYTES + 1)
        document = PartitionManifest.parse(self.client.get_range(name, 0, size), source)
        if (document.topic_id_partition, document.fencing_number) != (partition, number):
            raise RemoteObjectCorruptError(f"{source}: is of {document.topic_id_partition}, which belongs elsewhere")
        return document

    def write(self, document: PartitionManifest) -> None:
        """Write a document durably, and then delete those of earlier holders and what killed writers left."""
        content = document.to_bytes()
        self.client.put(document.name, len(content), iter((memoryview(content),)))
        for name in self._names(document.topic_id_partition):
            is_earlier = name.fencing_number < document.fencing_number
            # Only a killed rebuild leaves one of the same lease: the next one has the same number.
            is_left = name.temporary and name.fencing_number == document.fencing_number
            if is_earlier or is_left:
                delete_object(self.client, name.listed_as)

    def _names(self, partition: TopicIdPartition) -> list[PartitionManifestName]:
        found = (
            parse_partition_manifest_name(each.name) for each in self.client.list(partition_manifests_folder(partition))
        )
        return [name for name in found if name is not None]
