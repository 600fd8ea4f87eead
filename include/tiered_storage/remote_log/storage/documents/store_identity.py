"""The store's identity: a small object at its root that names the metadata it belongs to.

`store.json` is a JSON object: format_version (1), store_uuid and metadata_uuid. The metadata keep the store's UUID in
turn. If the two do not match, nothing may be deleted: a wrong URL or an empty mount point would look like a store that
lost all segments, or like one full of orphans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, StoreMismatchError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient, discard_unfinished
from tiered_storage.remote_log.storage.documents.json_document import (
    MAX_DOCUMENT_BYTES,
    JsonDocument,
    Text,
    encode_document,
)
from tiered_storage.remote_log.storage.documents.object_names import (
    STORE_IDENTITY,
    parse_partition_folder,
    parse_store_generation_name,
)

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The store's UUID and that of the metadata it belongs to."""

    store_uuid: Text
    metadata_uuid: Text

    def ensure_of(self, place: str, metadata_uuid: str, known_store_uuid: str | None) -> None:
        """Raise StoreMismatchError unless the store at `place` belongs to `metadata_uuid`, which know that store.

        `known_store_uuid` is None if they know none yet.
        """
        if self.metadata_uuid != metadata_uuid:
            raise StoreMismatchError(
                f"{place}: the store belongs to the metadata {self.metadata_uuid}, not to {metadata_uuid}: correct "
                "rsm.config.url or rlmm.config.url, put the backup of its own metadata back with "
                "'tiered-storage metadata restore', or rebuild them with 'tiered-storage rebuild-metadata'"
            )
        if known_store_uuid not in {None, self.store_uuid}:
            raise StoreMismatchError(
                f"{place}: this is the store {self.store_uuid}; the metadata {metadata_uuid} know {known_store_uuid}: "
                "is the URL right, and the right disk mounted?"
            )


def read_store_identity(client: ObjectClient) -> StoreIdentity | None:
    """Return the store's identity, or None if it has none yet.

    Raises RemoteObjectCorruptError if it is corrupt, and LaterVersionError.
    """
    try:
        size = min(client.size(STORE_IDENTITY), MAX_DOCUMENT_BYTES + 1)
        raw = client.get_range(STORE_IDENTITY, 0, size)
    except RemoteObjectNotFoundError:
        return None
    try:
        return JsonDocument(raw, f"{client.root}/{STORE_IDENTITY}", FORMAT_VERSION).read(StoreIdentity)
    except RemoteObjectCorruptError as error:
        raise RemoteObjectCorruptError(
            f"{error}: run 'tiered-storage metadata take-over' with the metadata of this store to write it again, or "
            "'tiered-storage rebuild-metadata' if they are lost"
        ) from error


def find_store_identity(client: ObjectClient) -> StoreIdentity | None:
    """Return the identity of a store for metadata that are not bound yet; None if the store was never used.

    A store without identity is listed up to the first object of Remote Log. Raises StoreMismatchError if there is one,
    a generation or anything of a partition: then the store belongs to metadata, and its identity was lost.
    """
    identity = read_store_identity(client)
    if identity is not None:
        return identity
    used = next((found.name for found in client.list() if _is_of_a_used_store(found.name)), None)
    if used is None:
        return None
    # Another process may have marked and used it meanwhile.
    identity = read_store_identity(client)
    if identity is None:
        raise StoreMismatchError(
            f"{client.root}: {STORE_IDENTITY} is missing, and {used} shows that the store belongs to other metadata: "
            "run 'tiered-storage metadata take-over' with those to write it again, or 'tiered-storage "
            "rebuild-metadata' if they are lost"
        )
    return identity


def _is_of_a_used_store(name: str) -> bool:
    return parse_store_generation_name(name) is not None or parse_partition_folder(name) is not None


def ensure_store_identity(
    client: ObjectClient,
    metadata_uuid: str,
    known_store_uuid: str | None = None,
    new_uuid: Callable[[], str] = random_uuid,
) -> str:
    """Return the UUID of a store that belongs to `metadata_uuid`; mark a store that belongs to no metadata yet.

    If the metadata know `known_store_uuid` already, the store must be that one, and is never marked again.
    Of two processes that mark it at once, one wins. Raises StoreMismatchError, and what the store raises.
    """
    identity = find_store_identity(client) if known_store_uuid is None else read_store_identity(client)
    if identity is None and known_store_uuid is None:
        client.create(STORE_IDENTITY, encode_document(FORMAT_VERSION, StoreIdentity(new_uuid(), metadata_uuid)))
        identity = read_store_identity(client)
    if identity is None:
        raise StoreMismatchError(
            f"{client.root}: no {STORE_IDENTITY} is there, yet the metadata {metadata_uuid} know a store "
            f"{known_store_uuid}: is the URL right, and the disk mounted?"
        )
    identity.ensure_of(client.root, metadata_uuid, known_store_uuid)
    if known_store_uuid is None:
        # Nobody marks it any more: a temporary object is from a killed process, or from one that lost.
        discard_unfinished(client, [STORE_IDENTITY])
    return identity.store_uuid


def rebind_store(
    client: ObjectClient,
    metadata_uuid: str,
    remember: Callable[[str], None],
    known_store_uuid: str | None = None,
    new_uuid: Callable[[], str] = random_uuid,
) -> str:
    """Bind the store to the metadata `metadata_uuid`, whatever it belonged to before; return its own UUID.

    `remember` writes that UUID into those metadata before the store is changed. A store without identity, or with a
    damaged one, gets `known_store_uuid`, which the metadata know already, or a new one. The old metadata are refused
    from then on. Raises what the store raises.
    """
    store_uuid = _readable_uuid(client) or known_store_uuid or new_uuid()
    remember(store_uuid)
    content = encode_document(FORMAT_VERSION, StoreIdentity(store_uuid, metadata_uuid))
    client.put(STORE_IDENTITY, len(content), iter((memoryview(content),)))
    # A process that was killed as it wrote the object left a temporary one.
    discard_unfinished(client, [STORE_IDENTITY])
    return store_uuid


def _readable_uuid(client: ObjectClient) -> str | None:
    try:
        identity = read_store_identity(client)
    except RemoteObjectCorruptError:
        return None
    return None if identity is None else identity.store_uuid
