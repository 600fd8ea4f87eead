"""What one process of the gateway grants its clients: memory, idle time, and remote bytes a second.

`memory_budget` has the memory that all connections share, `client_quotas` the remote bytes of each client a second, and
`remote_turns` and `remote_share` the time that remote work leaves for local answers.
`idle_connections` closes the connections of clients that are gone, or that read nothing.
"""

__all__ = ["client_quotas", "idle_connections", "memory_budget", "remote_share", "remote_turns"]
