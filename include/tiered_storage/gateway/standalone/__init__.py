"""The gateway without brokers: it serves a log directory, the remote log, or both as one log, read-only.

`server` listens for clients, `connection` is one of them, `requests` answers what it asks. Groups are refused.
"""

__all__ = ["server"]
