"""What shows operators how a gateway does: its metrics, whether it lives and is ready, its log, and a check of it."""

__all__ = ["canary", "health", "logs", "metrics"]
