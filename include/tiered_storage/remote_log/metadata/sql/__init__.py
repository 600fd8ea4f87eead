"""The metadata store in a SQL database, by SQLAlchemy.

`store` opens it and has its parts. Each part implements a border of `tiered_storage.remote_log.metadata` over the room
`database`.
"""

__all__ = [
    "clock_readings",
    "fact_columns",
    "leases",
    "partition_states",
    "segment_changes",
    "segment_rows",
    "segments",
    "store",
    "topic_segments",
]
