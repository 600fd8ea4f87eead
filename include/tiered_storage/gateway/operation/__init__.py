"""What shows operators how a gateway does: its metrics, whether it lives and is ready, and a check of it.

`metrics` counts connections, requests and remote reads, `health` answers /health and /ready beside them, and `logs`
sets up the process's log. `canary` sends a record through the gateway and reads it back.
"""

__all__ = ["canary", "health", "logs", "metrics"]
