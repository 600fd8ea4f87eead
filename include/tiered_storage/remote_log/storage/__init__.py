"""Object stores, and what a remote segment is in them.

`remote_storage_manager` is the border (KIP-405's RemoteStorageManager), `object_client` the smaller one below it.
`segment_objects` implements the first over the second; `opening` finds both by URL or class name.
"""

__all__ = [
    "batch_stream",
    "commit_marker",
    "manifest",
    "object_client",
    "object_names",
    "opening",
    "partition_manifest",
    "remote_storage_manager",
    "segment_objects",
    "store_generation",
    "store_identity",
]
