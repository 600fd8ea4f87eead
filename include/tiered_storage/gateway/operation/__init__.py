"""What shows operators how a gateway does: its metrics, whether it lives and is ready, and a check of it."""

__all__ = ["canary", "health", "metrics"]
