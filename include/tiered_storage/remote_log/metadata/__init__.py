"""What is known of the remote log: segments, leases, partition states, topics, safety.

`remote_log_metadata_manager` and `safety` are the borders, `sql_store` implements them. `generation` and
`manifest_sync` keep metadata and object store in step.
"""
