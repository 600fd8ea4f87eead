"""What processes that stay up have in common: the gateway and the service.

`logs` sets up a process's log on standard error. `health` answers /health and /ready beside its metrics.
"""

__all__ = ["health", "logs"]
