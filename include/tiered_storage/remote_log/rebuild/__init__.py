"""Rebuild lost metadata from the store alone, and back metadata up.

`metadata_rebuild` rebuilds from what `stored_partitions` finds, at the place that `new_metadata` checks. `take_over`
writes backups, restores them, and lets metadata take over a store; `metadata_places` moves segments between SQL and a
topic.
"""

__all__ = ["metadata_places", "metadata_rebuild", "new_metadata", "take_over"]
