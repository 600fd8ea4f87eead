"""The partition manifest: the store's own record of a partition besides its segments, a small JSON object.

    format_version                 1
    cluster_id, topic, topic_id    text
    partition                      its number
    fencing_number                 of the lease under which it was written; also in the object's name
    log_start_offset               OUR log start (inclusive), null if none was ever decided
    leader_epochs                  [[epoch, start offset], …]: the lineage as far back as known
    delete_state                   MARKED, STARTED or FINISHED once the partition is deleted remotely, or null
    marked_segments                ids of single segments that are marked for deletion and still exist
    written_at                     ms
    earlier_log_starts             [[log start offset, ms when a deletion moved it], …], for undelete; absent: none

Segments wholly below our log start count as marked, and so do all from STARTED on: they are not listed, which keeps the
list short. Documents from before this list existed have none.

Each holder of the partition's lease writes its own document, so that no two write the same object, and then deletes
those of earlier holders: the one with the highest number is valid. It is written before the metadata's log start, marks
or deletion state change, so that a rebuild from the store never brings back what was about to be deleted. The document
of a partition whose deletion is FINISHED stays for good: objects of it that appear later are known as deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import EarlierLogStart, PartitionDeleteState, PartitionState, TopicIdPartition
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, delete_object
from tiered_storage.remote_log.storage.documents.json_document import MAX_DOCUMENT_BYTES, JsonDocument, encode_document
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

_MAX_INT32 = 2**31 - 1


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
        document = JsonDocument(raw, source, FORMAT_VERSION)
        number = document.integer("partition", maximum=_MAX_INT32)
        key = TopicIdPartition(document.text("cluster_id"), document.text("topic_id"), number, document.text("topic"))
        deletion = document.optional_text("delete_state")
        if deletion is not None and deletion not in PartitionDeleteState.__members__:
            raise document.wrong("delete_state", " or ".join(PartitionDeleteState.__members__))
        state = PartitionState(
            document.optional_integer("log_start_offset"),
            tuple(EpochEntry(epoch, start) for epoch, start in document.pairs("leader_epochs")),
            None if deletion is None else PartitionDeleteState[deletion],
            tuple(EarlierLogStart(*pair) for pair in document.optional_pairs("earlier_log_starts")),
        )
        marked = document.texts("marked_segments", UUID)
        fencing_number = document.integer("fencing_number", maximum=HIGHEST_NUMBER)
        return cls(key, fencing_number, state, document.integer("written_at"), marked)

    def to_bytes(self) -> bytes:
        """Return the document's JSON."""
        key, deletion = self.topic_id_partition, self.state.delete_state
        earlier = [[each.offset, each.moved_at] for each in self.state.earlier_log_starts]
        return encode_document(
            FORMAT_VERSION,
            {
                "cluster_id": key.cluster_id,
                "topic": key.topic,
                "topic_id": key.topic_id,
                "partition": key.partition,
                "fencing_number": self.fencing_number,
                "log_start_offset": self.state.log_start_offset,
                "leader_epochs": [[entry.epoch, entry.start_offset] for entry in self.state.lineage],
                "delete_state": None if deletion is None else deletion.name,
                "marked_segments": list(self.marked),
                "written_at": self.written_at,
                **({"earlier_log_starts": earlier} if earlier else {}),
            },
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
