"""What one process of the gateway grants its clients: memory, idle time, and remote bytes a second."""

__all__ = ["client_quotas", "idle_connections", "memory_budget"]
