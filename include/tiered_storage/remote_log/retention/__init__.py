"""Total retention, and every other deletion of remote data.

`deletions` is the manager's entry; the other modules plan, mark and delete. Each passes the room `gate` first; the room
`local` has local retention.
"""

__all__ = [
    "deletions",
    "expiry",
    "expiry_planning",
    "orphan_check",
    "past_retention",
    "pending_deletions",
    "topic_deletion",
]
