"""Kafka's own bytes on disk: record batches, indexes, checkpoints, segments and logs.

`kernels` and `files` are the lowest rooms; `records`, `indexes` and `producers` stand on them, then `columnar`, `log`
and `dump`. Nothing here knows a remote tier.
"""

__all__ = [
    "columnar",
    "dump",
    "files",
    "indexes",
    "kernels",
    "log",
    "producers",
    "records",
]
