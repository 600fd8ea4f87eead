"""What shows operators how a gateway does: its metrics."""

__all__ = ["metrics"]
