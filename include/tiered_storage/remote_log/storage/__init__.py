"""Object stores, and the objects of a remote segment.

`remote_storage_manager` is the border (KIP-405's RemoteStorageManager), `listable_storage` what a store may offer
beyond it, `object_client` the smaller border below both. `segment_objects` implements the first two over the third;
`opening` finds them by URL or class name.
"""

__all__ = [
    "batch_stream",
    "commit_marker",
    "listable_storage",
    "manifest",
    "object_client",
    "object_names",
    "opening",
    "options",
    "partition_manifest",
    "remote_storage_manager",
    "segment_objects",
    "store_generation",
    "store_identity",
]
