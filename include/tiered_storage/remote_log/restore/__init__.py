"""Brings topics back from the store: into a log directory that a broker starts from, or into a running cluster.

`request` is what is asked for, and `plan` what would be done. `directory` writes a log directory; `cluster` sends
committed records and keeps an `offset_map`. `validation` checks what the store has before, and what was written after.
"""

__all__ = ["client_properties", "cluster", "committed", "directory", "offset_map", "plan", "request", "validation"]
