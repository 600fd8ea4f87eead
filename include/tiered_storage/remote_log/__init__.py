"""KIP-405: copies closed segments to a store, keeps their metadata, reads, repairs and deletes them.

`manager` is what programs use; `model` has the values that all rooms share, `context` the open parts that they work
with. The rooms follow the life of a segment: `source`, `copy`, `read`, `retention`, then `audit`, `repair`, `rebuild`,
`restore`, `follower`; `service` does what is due by itself, and `adopt` takes over what Kafka itself tiered.
"""

__all__ = [
    "adopt",
    "audit",
    "context",
    "copy",
    "coverage",
    "enabling",
    "follower",
    "indexes",
    "jobs",
    "lineage",
    "manager",
    "metadata",
    "metrics",
    "model",
    "native",
    "progress",
    "read",
    "rebuild",
    "repair",
    "restore",
    "retention",
    "selection",
    "service",
    "source",
    "storage",
    "tables",
    "tiering_policy",
]
