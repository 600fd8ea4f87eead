"""The gateway: Kafka clients read whole topics through it, from their first remote offset to their last local one.

`server` listens for clients, `client_requests` are those of one of them, `workers` runs several servers on the same
ports. Everything but remote records comes from the brokers; `standalone` has none.
"""

__all__ = ["allowed_apis", "fetch_errors", "remote_partitions", "workers"]
