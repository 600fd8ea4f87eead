"""The gateway: Kafka clients read whole topics through it, from their first remote offset to their last local one.

`server` listens for clients, `client_connection` is one of them with its own connection to a broker, `workers` runs
several servers on the same ports. Everything but remote records comes from the brokers; `standalone` has none.
"""

__all__ = ["allowed_apis", "client_connection", "fetch_errors", "listening", "remote_partitions", "workers"]
