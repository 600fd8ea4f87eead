"""The second border to a store: objects that can be listed and read by name, beyond KIP-405's RemoteStorageManager.

The binding of metadata to their store, audits, rebuilds, repairs, restores and the clean-up after copies need it.
Without it, a store can still be copied to, read and deleted from; `doctor` names what is missing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tiered_storage.errors import ConfigurationError, LaterVersionError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.storage.commit_marker import StoredCopy
from tiered_storage.remote_log.storage.documents.object_names import (
    PartitionManifestName,
    SegmentObjectName,
    parse_partition_folder,
    partition_folder,
)
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifests
from tiered_storage.remote_log.storage.documents.store_generation import StoreGenerations
from tiered_storage.remote_log.storage.documents.store_identity import StoreIdentity
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.storage.transforms.encoding import Encoding


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in the store: a segment's, a partition manifest, or a foreign one. Bytes; ms of its last change."""

    name: str
    size: int
    last_modified: int
    segment: SegmentObjectName | None
    document: PartitionManifestName | None = None


class ListableStorage(RemoteStorageManager):
    """A RemoteStorageManager whose objects can be listed and read by name; derive your class from it to offer that.

    `generations` are those that the store carries, `partition_manifests` its documents of partitions.
    `encodes_segments`: whether it compresses and encrypts a segment as LogSegmentData says. All methods raise what a
    RemoteStorageManager raises.
    """

    encodes_segments = False

    generations: StoreGenerations
    partition_manifests: PartitionManifests

    @property
    def has_own_clock(self) -> bool:
        """Whether `time_of_a_write` is surely not by this machine's clock; False if that is unknown.

        True makes deletions trust the store's clock alone: a jump of this machine's clock is not looked for. A class
        that overrides `time_of_a_write` overrides this too.
        """
        return False

    @abstractmethod
    def why_no_name(self, partition: TopicIdPartition) -> str | None:
        """Return why this store can never hold anything of `partition`, such as an invalid name; None if it can."""
        ...

    @abstractmethod
    def delete_segments(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Mapping[str, TieredStorageError]:
        """Delete the objects of many segments, all markers first; return, by segment id, why one is not fully deleted.

        If a class overrides `delete_log_segment_data`, that is called for each of them.
        """
        ...

    @abstractmethod
    def delete_objects(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete objects by name, whatever they are; return those that may still exist, and why."""
        ...

    @abstractmethod
    def fetch_bundle(self, metadata: RemoteLogSegmentMetadata) -> Mapping[IndexKind, bytes]:
        """Return all indexes and the manifest, after checking marker and bundle against the metadata.

        An encrypted index is decrypted when it is taken out, which may raise EncryptionKeyError.
        Raises RemoteObjectNotFoundError or RemoteObjectCorruptError for the first problem, and LaterVersionError for
        an object that a later release wrote.
        """
        ...

    @abstractmethod
    def verify(self, metadata: RemoteLogSegmentMetadata, on_bytes: Callable[[int], object] = lambda _: None) -> None:
        """Read all objects of the segment and check every byte: marker, bundle, each index, manifest and data.

        Raises as `fetch_bundle`. `on_bytes` is called with the size of each piece of data.
        """
        ...

    @abstractmethod
    def verified(self, metadata: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        """Do as `verify`, and stream the data; the last piece comes only after all checks."""
        ...

    @abstractmethod
    def read_metadata(self, name: SegmentObjectName) -> RemoteLogSegmentMetadata:
        """Return the metadata of the finished segment that the object `name` belongs to, from the store alone.

        Raises RemoteObjectNotFoundError if it has no commit marker, RemoteObjectCorruptError and LaterVersionError.
        """
        ...

    @abstractmethod
    def find_copy(self, metadata: RemoteLogSegmentMetadata) -> StoredCopy | None:
        """Return a copy whose data and indexes are complete, with or without a commit marker; see StoredCopy.

        None if one is missing, corrupt, of a later release or of another segment. The data are not read.
        """
        ...

    @abstractmethod
    def later_version(self, metadata: RemoteLogSegmentMetadata) -> LaterVersionError | None:
        """Return the evidence that a later release wrote the segment's marker, bundle or manifest; None: there is none.

        Missing or corrupt objects are no evidence, even if the corruption is in the version. Raises what the store
        raises if it cannot be reached.
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
        """Return the names of a finished segment's objects, with their required sizes in bytes."""
        ...

    @abstractmethod
    def time_of_a_write(self) -> int | None:
        """Write a small object, and return the time of that by the store's clock (ms); None if the store has no room.

        The next call overwrites the same object. Raises what the store raises, and RemoteStorageError if it does not
        list the object.
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
    def readable_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        """Return how many bytes of the log of a segment, maybe a damaged one, are there to read.

        Raises RemoteObjectNotFoundError if there is no data object.
        """
        ...

    @abstractmethod
    def read_damaged(self, metadata: RemoteLogSegmentMetadata, position: int, size: int) -> bytes:
        """Return `size` bytes of the log of a damaged segment from `position`, unchecked.

        Chunks that cannot be decoded come as zeros. Raises RemoteObjectNotFoundError, and RemoteObjectCorruptError if
        the data object ends before that.
        """
        ...

    @abstractmethod
    def key_id(self, metadata: RemoteLogSegmentMetadata) -> str | None:
        """Return the id of the key that wraps the data key of a finished segment; None if it is not encrypted.

        Raises RemoteObjectNotFoundError and RemoteObjectCorruptError if its key object is lost or damaged.
        """
        ...

    @abstractmethod
    def rewrap_key(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Wrap the data key of an encrypted segment by the active key of the key ring; its other objects stay.

        Readers see the old or the new wrapping, and both give the same data key. Raises EncryptionKeyError.
        """
        ...

    @abstractmethod
    def ensure_identity(self, metadata_uuid: str, known_store_uuid: str | None) -> str:
        """Return the store's UUID after checking that it belongs to those metadata; see ensure_store_identity.

        Checks the store only once: a take-over in between also renews its generation.
        """
        ...

    @abstractmethod
    def ensure_belongs(self, metadata_uuid: str, known_store_uuid: str | None) -> None:
        """Raise StoreMismatchError if the store belongs to other metadata; an unbound store stays unbound.

        A store that those metadata know passes, even if it was taken over since: its generation shows that.
        """
        ...

    @abstractmethod
    def find_identity(self) -> StoreIdentity | None:
        """Return the store's identity, for metadata that are not bound yet; see find_store_identity."""
        ...

    @abstractmethod
    def read_identity(self) -> StoreIdentity | None:
        """Return the store's identity; see read_store_identity."""
        ...

    @abstractmethod
    def rebind(self, metadata_uuid: str, remember: Callable[[str], None], known_store_uuid: str | None = None) -> str:
        """Bind the store to the given metadata instead of its present ones; see rebind_store."""
        ...

    @abstractmethod
    def spend_reserve(self) -> None:
        """Let documents use the room that a store in a directory reserves for deletions and for stopping them."""
        ...


def ensure_encodes(storage: RemoteStorageManager, encoding: Encoding) -> None:
    """Raise ConfigurationError if `storage` would store a segment without the `encoding` that its topic asks for."""
    if not encoding.is_plain and not getattr(storage, "encodes_segments", False):
        raise ConfigurationError(
            f"segments of this topic are to be stored as {encoding.codec}, and {type(storage).__name__} cannot: set "
            "remote.compression.enabled and remote.encryption.enabled of the topic to false, or leave "
            "remote.log.storage.manager.class.name at its default"
        )


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
                    f"{storage.place_of(name)}: the store lists this folder in several parts, so its content is "
                    "unknown. Use a store that lists in order of names"
                )
            seen.add(name)
        yield partition, listed


def as_listable(storage: RemoteStorageManager) -> ListableStorage | None:
    """Return `storage` if it can list its objects; None otherwise."""
    return storage if isinstance(storage, ListableStorage) else None


def listing_storage(storage: RemoteStorageManager) -> ListableStorage:
    """Return `storage` if it can list its objects. Raises ConfigurationError otherwise, with its `why_not_listable`."""
    listable = as_listable(storage)
    if listable is None:
        if why := getattr(storage, "why_not_listable", ""):
            raise ConfigurationError(why)
        raise ConfigurationError(
            f"{type(storage).__name__} cannot be audited: it does not list its objects. Derive the class from "
            "tiered_storage.remote_log.storage.listable_storage.ListableStorage"
        )
    return listable
