"""The objects of a remote segment: their names, formats and life in a store.

`remote_storage_manager` is the border (KIP-405's RemoteStorageManager), and `listable_storage` what a store may offer
beyond it. `segment_objects` implements both over an object store of the room `clients`.
"""

__all__ = [
    "batch_stream",
    "commit_marker",
    "listable_storage",
    "manifest",
    "object_names",
    "partition_manifest",
    "remote_storage_manager",
    "segment_objects",
    "store_generation",
    "store_identity",
]
