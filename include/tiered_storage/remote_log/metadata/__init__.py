"""What is known of the remote log: segments, leases, partition states, topics, safety.

`remote_log_metadata_manager` and `safety` are the borders, `sql_store` implements them. `generation` and
`manifest_sync` keep metadata and object store in step.
"""

__all__ = [
    "generation",
    "manifest_sync",
    "remote_log_metadata_manager",
    "safety",
    "sql_clock_reading",
    "sql_migrations",
    "sql_schema",
    "sql_store",
    "sqlite_database",
]
