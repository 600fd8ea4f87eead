"""Rebuilds lost metadata from the store alone, and backs metadata up.

`rebuild` opens what a rebuild needs, `metadata_rebuild` does it. `take_over` writes backups, restores them, and lets
metadata take over a store.
"""
