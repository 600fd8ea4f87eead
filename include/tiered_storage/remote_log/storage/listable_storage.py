"""The second border to a store: what can be listed and read as objects, beside KIP-405's RemoteStorageManager.

The binding of metadata to their store, audits, rebuilds, repairs, restores and the clean-up after copies need it.
A store that does not have it is copied to, read and deleted from; `doctor` names what it goes without.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tiered_storage.errors import LaterVersionError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.commit_marker import StoredCopy
from tiered_storage.remote_log.storage.object_names import (
    PartitionManifestName,
    SegmentObjectName,
    parse_partition_folder,
    partition_folder,
)
from tiered_storage.remote_log.storage.partition_manifest import PartitionManifests
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.storage.store_generation import StoreGenerations
from tiered_storage.remote_log.storage.store_identity import StoreIdentity


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in the store: a segment's, a partition's document, or none of ours. Bytes; ms of its last change."""

    name: str
    size: int
    last_modified: int
    segment: SegmentObjectName | None
    document: PartitionManifestName | None = None


class ListableStorage(RemoteStorageManager):
    """A RemoteStorageManager whose objects can be listed and read by name; derive from it to offer that.

    `generations` are those of the metadata that the store carries, `partition_manifests` what it knows of partitions
    beside their segments. All methods raise what a RemoteStorageManager raises.
    """

    generations: StoreGenerations
    partition_manifests: PartitionManifests

    @abstractmethod
    def why_no_name(self, partition: TopicIdPartition) -> str | None:
        """Return why this store can never hold anything of `partition`: its ids or its topic make no name here."""
        ...

    @abstractmethod
    def delete_segments(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        """Remove the objects of many segments, all markers first; return, by segment id, why one is not all gone.

        A class that changes `delete_log_segment_data` has it called for each of them.
        """
        ...

    @abstractmethod
    def delete_objects(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Remove objects by their names, whatever they are; return those that may still be there, and why."""
        ...

    @abstractmethod
    def fetch_bundle(self, metadata: RemoteLogSegmentMetadata) -> dict[IndexKind, bytes]:
        """Return all indexes and the manifest, once marker and bundle are those that the metadata know of.

        Raises RemoteObjectNotFoundError or RemoteObjectCorruptError for the first thing that is wrong, and
        LaterVersionError for what a later release wrote.
        """
        ...

    @abstractmethod
    def verify(self, metadata: RemoteLogSegmentMetadata, on_bytes: Callable[[int], object] = lambda _: None) -> None:
        """Read all that belongs to the segment and check every byte: marker, bundle, each index, manifest and data.

        Raises as `fetch_bundle`. `on_bytes` is called with the size of each piece of data.
        """
        ...

    @abstractmethod
    def verified(self, metadata: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        """Do as `verify`, and stream the data; the last piece only comes after all was right."""
        ...

    @abstractmethod
    def read_metadata(self, name: SegmentObjectName) -> RemoteLogSegmentMetadata:
        """Return the metadata of a finished segment from the store alone, to which the object `name` belongs.

        Raises RemoteObjectNotFoundError if it has no commit marker, RemoteObjectCorruptError and LaterVersionError.
        """
        ...

    @abstractmethod
    def find_copy(self, metadata: RemoteLogSegmentMetadata) -> StoredCopy | None:
        """Return a copy whose data and indexes are there in full, with a commit marker or without; see StoredCopy.

        None if one of them is missing, broken, a later release's or another segment's. Of the data no byte is read.
        """
        ...

    @abstractmethod
    def later_version(self, metadata: RemoteLogSegmentMetadata) -> LaterVersionError | None:
        """Return what says that a later release wrote the segment's marker, bundle or manifest; None: nothing does.

        What is missing or broken says nothing, also where its version is what broke. Raises what the store raises if
        it cannot be asked.
        """
        ...

    @abstractmethod
    def list_objects(self, folder: str = "", after: str = "") -> Iterator[ListedObject]:
        """Stream every object in `folder` and below, ours or not; "" means the whole store; see ObjectClient.list.

        All objects of one partition follow one another.
        """
        ...

    @abstractmethod
    def expected_objects(self, metadata: RemoteLogSegmentMetadata) -> dict[str, int]:
        """Return the names of a finished segment's objects, and the bytes that each must have."""
        ...

    @abstractmethod
    def time_of_a_write(self) -> int | None:
        """Write a small object, and return when that was by the store's clock (ms); None if it has no room for it.

        The next call writes the same object again. Raises what the store raises, and RemoteStorageError if it does
        not list it.
        """
        ...

    @abstractmethod
    def place_of(self, name: str) -> str:
        """Return where the object `name` is, as a URL without secrets, for messages."""
        ...

    @abstractmethod
    def object_size(self, name: str) -> int:
        """Return the bytes of an object. Raises RemoteObjectNotFoundError."""
        ...

    @abstractmethod
    def read_object(self, name: str, position: int, size: int) -> bytes:
        """Return `size` bytes of an object from `position`, unchecked: for what is known to be damaged.

        Raises RemoteObjectNotFoundError, and RemoteObjectCorruptError if the object ends before that.
        """
        ...

    @abstractmethod
    def ensure_identity(self, metadata_uuid: str, known_store_uuid: str | None) -> str:
        """Return the store's UUID, once it is sure that it belongs to those metadata; see ensure_store_identity.

        Asks the store once: whoever takes it over meanwhile also renews its generation.
        """
        ...

    @abstractmethod
    def ensure_belongs(self, metadata_uuid: str, known_store_uuid: str | None) -> None:
        """Raise StoreMismatchError if the store belongs to other metadata; a store that belongs to nobody stays so.

        A store that those metadata know passes, whoever took it since: its generation tells.
        """
        ...

    @abstractmethod
    def find_identity(self) -> StoreIdentity | None:
        """Return whose store this is, for metadata that know none yet; see find_store_identity."""
        ...

    @abstractmethod
    def read_identity(self) -> StoreIdentity | None:
        """Return whose store this is; see read_store_identity."""
        ...

    @abstractmethod
    def bind_anew(
        self, metadata_uuid: str, remember: Callable[[str], None], known_store_uuid: str | None = None
    ) -> str:
        """Take the store away from the metadata that it belongs to, for those named; see bind_store_anew."""
        ...

    @abstractmethod
    def spend_reserve(self) -> None:
        """Let documents use the room that a store in a directory keeps for deletions, and for stopping them."""
        ...


def list_by_partition(
    storage: ListableStorage, folder: str = ""
) -> Iterator[tuple[TopicIdPartition | None, Iterator[ListedObject]]]:
    """Stream what `list_objects` does, partition by partition; None stands for objects of no partition.

    Raises RemoteStorageError for a store that lists a partition in several parts: each would look like all of it.
    """
    seen: set[str] = set()
    for partition, listed in groupby(storage.list_objects(folder), lambda found: parse_partition_folder(found.name)):
        if partition is not None:
            name = partition_folder(partition)
            if name in seen:
                raise RemoteStorageError(
                    f"{storage.place_of(name)}: the store lists this folder in several parts, as it does not list in "
                    "order of names, so nobody can say what of the partition is there: use a store that does"
                )
            seen.add(name)
        yield partition, listed
