"""The client half of the Kafka protocol: connections, logins, and the requests that a copy needs.

`cluster` is a cluster with its leaders, which `client_settings` says how to reach; the others are the values that it
takes and gives. Messages are kio's, record bytes never pass through it, and nothing here knows a remote tier.
"""

__all__ = [
    "client_properties",
    "client_settings",
    "cluster",
    "error_codes",
    "fetch",
    "metadata",
    "partition_requests",
    "sasl",
]
