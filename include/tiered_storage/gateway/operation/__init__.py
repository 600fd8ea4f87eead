"""What shows operators how a gateway does: its metrics, whether it lives and is ready, and its log."""

__all__ = ["health", "logs", "metrics"]
