"""Local and total retention, and every other deletion.

`deletion_gate` decides whether anything may be deleted, by rights, verdicts, clock and format versions. `deletions` is
the manager's entry; the other modules plan, mark and delete.
"""

__all__ = [
    "deletion_gate",
    "deletions",
    "expiry",
    "expiry_planning",
    "local_retention",
    "orphan_check",
    "past_retention",
    "pending_deletions",
    "topic_deletion",
]
