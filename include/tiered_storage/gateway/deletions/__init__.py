"""What clients delete at the brokers is deleted from the remote log too.

`client_deletions` changes the answers on one connection. `remote_deletions` does the work for all of a process.
"""

__all__ = ["client_deletions", "remote_deletions"]
