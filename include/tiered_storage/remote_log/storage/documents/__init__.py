"""The JSON documents in a store, and the names of its objects.

`manifest` describes a segment, `partition_manifest` a partition, `segment_key` holds the wrapped key of an encrypted
segment. `store_identity` and `store_generation` tie the store to its metadata, and `object_names` names every object.
"""

__all__ = [
    "json_document",
    "manifest",
    "object_names",
    "partition_manifest",
    "segment_key",
    "store_generation",
    "store_identity",
]
