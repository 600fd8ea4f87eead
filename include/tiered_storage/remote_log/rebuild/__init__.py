"""Rebuild lost metadata from the store alone, and back metadata up.

`metadata_rebuild` rebuilds from what `stored_partitions` finds. `take_over` writes backups, restores them, and lets
metadata take over a store.
"""

__all__ = ["metadata_rebuild", "take_over"]
