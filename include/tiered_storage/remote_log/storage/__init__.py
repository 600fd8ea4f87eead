"""The objects of a remote segment: their content, and how they come into a store and out of it.

`remote_storage_manager` is the border (KIP-405's RemoteStorageManager), and `listable_storage` what a store may offer
beyond it. `segment_objects` implements both over an object store of the room `clients`; the names of objects and the
JSON among them are in the room `documents`, and `concurrent_requests` asks about many at a time.
"""

__all__ = [
    "batch_stream",
    "commit_marker",
    "concurrent_requests",
    "listable_storage",
    "remote_storage_manager",
    "segment_objects",
]
