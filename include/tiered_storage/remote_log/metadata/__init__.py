"""The metadata of the remote log: segments, leases, partition states, topics, safety.

`metadata_store`, `remote_log_metadata_manager` and `safety` are the borders, which the room `sql` implements by the
rules of `life_cycle`. `generation` and `manifest_sync` keep metadata and object store in step and `outdated_metadata`
compares them; `lost_identity` recognises topics that are remote under other ids, and `held_limits` delays lower limits
of brokers.
"""

__all__ = [
    "generation",
    "held_limits",
    "life_cycle",
    "lost_identity",
    "manifest_sync",
    "metadata_store",
    "outdated_metadata",
    "remote_log_metadata_manager",
    "safety",
]
