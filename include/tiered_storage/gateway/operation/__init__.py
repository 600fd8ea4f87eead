"""What shows operators how a gateway does: its metrics, and a check of it.

`metrics` counts connections, requests and remote reads. `canary` sends a record through the gateway and reads it back.
"""

__all__ = ["canary", "metrics"]
