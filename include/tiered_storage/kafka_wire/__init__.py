"""The client half of the Kafka protocol: the requests that a copy needs, sent to the brokers that answer them.

`cluster` is a cluster with its leaders, which `connections` reach; the others are the values that it takes and gives.
Messages are kio's, record bytes never pass through it, and nothing here knows a remote tier.
"""

__all__ = [
    "cluster",
    "controller_clock",
    "fetch",
    "fetch_layout",
    "metadata",
    "partition_offsets",
    "partition_requests",
    "rights",
    "topic_configs",
]
